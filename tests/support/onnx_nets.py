"""ONNX's nine light nets with seeded random weights: their own are constants, which any convolution gets right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("light_*.onnx"))


def seeded(name: str, batch: int = 1, logits: bool = True):
    """``(model, name of its input, shape)``: weights drawn so that values keep their size from layer to layer.

    A batch above 1 is written into the input and reshapes that name it; with ``logits`` a last softmax is left out.
    """
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers: dict[str, list] = {}
    for node in graph.node:
        for place, value in enumerate(node.input):
            readers.setdefault(value, []).append((node, place))

    def reader(value):
        node, place = readers[value][0]
        return reader(node.output[0]) if node.op_type == "Unsqueeze" else (node.op_type, place)

    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = tuple(int(size) for size in shapes[node.input[0]])
            graph.initializer.append(
                numpy_helper.from_array(_values(shape, reader(node.output[0]), rng), node.output[0])
            )
    del graph.node[:]
    graph.node.extend(kept)
    if logits and graph.node[-1].op_type == "Softmax":
        graph.output[0].name = graph.node[-1].input[0]
        del graph.node[-1]
    held = {tensor.name for tensor in graph.initializer}
    (given,) = (value for value in graph.input if value.name not in held)
    sizes = given.type.tensor_type.shape.dim
    sizes[0].dim_value = batch
    if batch > 1:
        _rebatch(graph, batch)
    return model, given.name, tuple(size.dim_value for size in sizes)


def _values(shape, role, rng):
    kind, place = role
    if kind in ("Conv", "Gemm") and place == 1:  # keeps the variance through a relu
        fan = np.prod(shape[1:])
        return (rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)
    if kind == "Mul" or (kind == "BatchNormalization" and place in (1, 4)):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (rng.standard_normal(shape) * 0.1).astype(np.float32)


def _rebatch(graph, batch: int) -> None:
    """Reshapes that say 1 for the batch say more; what is declared of values within is dropped."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] in tensors:
            shape = numpy_helper.to_array(tensors[node.input[1]]).copy()
            if shape[0] == 1:
                shape[0] = batch
                tensors[node.input[1]].CopyFrom(numpy_helper.from_array(shape, node.input[1]))
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.shape.dim[0].dim_value = batch


def picture(shape, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference over the largest value."""
    return float(np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max())
