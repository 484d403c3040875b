"""Small ONNX models for tests: one node, or a few, with weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def value(name, shape, dtype="float32"):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def model(nodes, inputs, outputs, weights=None, opset=21, functions=(), domains=()):
    """A ModelProto; ``inputs`` name to shape or (shape, dtype), ``outputs`` names, ``weights`` name to array."""
    declared = [
        value(name, *(given if isinstance(given, tuple) and isinstance(given[0], list) else (given,)))
        for name, given in inputs.items()
    ]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "test", declared, outs, tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def residual(opset=21):
    """A convolution with batch norm and relu, a residual sum, a pooling, a linear map: of any batch and size."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": normal(8, 3, 3, 3, seed=1) / 4,
        "scale": rng.uniform(0.5, 1.5, 8).astype(np.float32),
        "shift": normal(8, seed=2),
        "mean": normal(8, seed=3),
        "var": rng.uniform(0.5, 1.5, 8).astype(np.float32),
        "w2": normal(8, 8, 3, 3, seed=4) / 8,
        "b2": normal(8, seed=5),
        "w3": normal(10, 8, seed=6),
        "b3": normal(10, seed=7),
    }
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c1 scale shift mean var", "n1"),
        node("Relu", "n1", "r1"),
        node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
        node("Add", "c2 r1", "s"),
        node("Relu", "s", "r2"),
        node("GlobalAveragePool", "r2", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w3 b3", "y", transB=1),
    ]
    return model(nodes, {"x": ["batch", 3, "height", "width"]}, ["y"], weights, opset)


def expected(proto, *arrays):
    """What onnx's reference answers, as a list."""
    from onnx.reference import ReferenceEvaluator

    held = {tensor.name for tensor in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in held]
    return ReferenceEvaluator(proto).run(None, dict(zip(names, arrays, strict=True)))


def saved(proto, path):
    onnx.save(proto, path)
    return path
