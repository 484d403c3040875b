"""ONNX's own backend cases as far as convolutional nets need their operators: which there are, and one of them run."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

_NAMES = """
Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast Ceil Celu Clip Concat Constant ConstantOfShape Conv
ConvTranspose CumSum DepthToSpace Div Dropout Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu
Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity
InstanceNormalization LRN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpPool MatMul Max MaxPool Mean
MeanVarianceNormalization Min Mish Mul Neg Not OneHot Or PRelu Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceMax
ReduceMean ReduceMin ReduceSum Relu Reshape Resize Selu Shape Sigmoid Sign Slice Softmax Softplus Softsign SpaceToDepth
Split Sqrt Squeeze Sub Sum Swish Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
"""
CNN = frozenset(_NAMES.split())
"""Operators of the selection's single nodes."""
_CORE_NAMES = """
AveragePool BatchNormalization Conv ConvTranspose Gemm GlobalAveragePool GlobalMaxPool GroupNormalization
InstanceNormalization LRN LpPool MaxPool Relu
"""
CORE = frozenset(_CORE_NAMES.split())
"""Operators of convolutional layers: with what was converted from PyTorch and the nine nets, 216 cases in onnx 1.23."""
KINDS = ("node", "pytorch-converted", "pytorch-operator")
NETS = "real"
"""The nine whole nets, which carry no results: onnxruntime computes them (the reference is 0.3 % off in DenseNet)."""


def cases(kinds=KINDS, operators=CNN) -> dict:
    """Case by name; single nodes of ``operators`` alone. Loading those takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in kinds:
            for case in load_model_tests(kind=kind):
                if kind != "node" or {node.op_type for node in case.model.graph.node} <= operators:
                    found[f"{kind}:{case.name}"] = case
    return found


def data_sets(case):
    """(inputs, expected outputs) of a case, from its memory or its folder."""
    import onnx
    from onnx import numpy_helper

    def arrays(folder, what):
        read = []
        for place in range(len(list(folder.glob(f"{what}_*.pb")))):
            tensor = onnx.TensorProto()
            tensor.ParseFromString((folder / f"{what}_{place}.pb").read_bytes())
            read.append(numpy_helper.to_array(tensor))
        return read

    if case.kind == NETS:
        yield _by_onnxruntime(_light(case))
        return
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_array(v) for v in inputs], [_array(v) for v in outputs]
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        yield arrays(folder, "input"), arrays(folder, "output")


def _light(case) -> Path:
    import onnx

    return Path(onnx.__file__).parents[1] / case.url


def _by_onnxruntime(path):
    """Random pictures and what onnxruntime makes of them."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {value.name: rng.random(value.shape, np.float32) for value in session.get_inputs()}
    return list(feeds.values()), session.run(None, feeds)


def _array(value):
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def run(case, prepare) -> None:
    """Run a case by ``prepare(model).run(inputs)`` and compare as onnx's own runner does."""
    import onnx

    path = _light(case) if case.kind == NETS else f"{case.model_dir}/model.onnx"
    model = case.model if case.model is not None else onnx.load(path)
    prepared = prepare(model)
    for inputs, expected in data_sets(case):
        got = prepared.run(inputs)
        assert len(got) == len(expected)
        for have, want in zip(got, expected, strict=True):
            assert have.shape == want.shape, f"shape {have.shape}, expected {want.shape}"
            assert have.dtype == want.dtype, f"dtype {have.dtype}, expected {want.dtype}"
            np.testing.assert_allclose(
                have.astype(np.float64) if have.dtype.kind == "f" else have,
                want.astype(np.float64) if want.dtype.kind == "f" else want,
                rtol=case.rtol, atol=case.atol,
            )  # fmt: skip
