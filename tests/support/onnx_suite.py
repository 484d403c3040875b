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
"""Operators of the single nodes."""


def cases() -> dict:
    """Case by name: single nodes of ``CNN``, and what was converted from PyTorch. Loading takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("node", "pytorch-converted", "pytorch-operator"):
            for case in load_model_tests(kind=kind):
                if kind != "node" or {node.op_type for node in case.model.graph.node} <= CNN:
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

    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_array(v) for v in inputs], [_array(v) for v in outputs]
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        yield arrays(folder, "input"), arrays(folder, "output")


def _array(value):
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def run(case, prepare) -> None:
    """Run a case by ``prepare(model).run(inputs)`` and compare as onnx's own runner does."""
    import onnx

    model = case.model if case.model is not None else onnx.load(f"{case.model_dir}/model.onnx")
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
