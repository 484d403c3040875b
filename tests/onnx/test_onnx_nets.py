"""ONNX's nine nets with seeded weights, and files that the three of an OCR package are: logits against onnxruntime."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: peers)")

import onnx_nets  # noqa: E402

from convdispatch.onnx import load  # noqa: E402

QUICK = {"squeezenet"}
"""Of the nine those that are built within seconds; --full takes all."""


def theirs(source, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.parametrize("name", onnx_nets.NAMES)
def test_logits_of_the_nine_nets(name, full):
    if name not in QUICK and not full:
        pytest.skip("with --full only")
    model, given, shape = onnx_nets.seeded(name)
    x = onnx_nets.picture(shape)
    (wanted,) = theirs(model.SerializeToString(), {given: x})
    assert wanted.std() > 0.01  # not the same everywhere
    assert onnx_nets.error(load(model)(x), wanted) < 1e-4


def _ocr() -> dict[str, Path]:
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    folder = Path(found.submodule_search_locations[0]) / "models" if found is not None else None
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.onnx"))}


OCR = _ocr()


@pytest.mark.skipif(not OCR, reason="rapidocr-onnxruntime is not installed")
@pytest.mark.parametrize("name", OCR)
def test_the_nets_of_an_ocr_package(name, full):
    """Transposed convolutions, strides of two numbers, squeezing; a decoder of matrix products on sequences."""
    if "cls" not in name and not full:
        pytest.skip("with --full only")
    import onnx

    proto = onnx.load(OCR[name])
    last = proto.graph.node[-1]
    if last.op_type in ("Sigmoid", "Softmax"):  # logits
        proto.graph.output[0].name = last.input[0]
        del proto.graph.node[-1]
        del proto.graph.output[0].type.tensor_type.shape.dim[:]
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    x = onnx_nets.picture((2, 3, 48, 192))
    if "det" in name:
        x = onnx_nets.picture((1, 3, 128, 96))
    (wanted,) = theirs(proto.SerializeToString(), {"x": x})
    got = load(proto)(x)
    assert onnx_nets.error(np.asarray(got), wanted) < 1e-4
