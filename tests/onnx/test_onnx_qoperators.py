"""onnxruntime's QLinear operators by onnxruntime itself, and nets as its quantizer writes them in QOperator format."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import onnx_quantized as nets
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from convdispatch.api import InvalidArgument
from convdispatch.onnx import load

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "float32": TensorProto.FLOAT, "int32": TensorProto.INT32}


def one(kind: str, operands: list, out: str, **attributes):
    """A model of one node, and its feeds: arrays of two axes and more are fed, others are the file's."""
    names, inputs, held, feeds = [], [], [], {}
    for i, value in enumerate(operands):
        names.append("" if value is None else f"x{i}")
        if value is not None and value.ndim > 1 and not (kind == "QGemm" and i):
            inputs.append(helper.make_tensor_value_info(names[-1], TYPES[value.dtype.name], value.shape))
            feeds[names[-1]] = value
        elif value is not None:
            held.append(numpy_helper.from_array(value, names[-1]))
    nodes = [helper.make_node(kind, names, ["y"], domain="com.microsoft", **attributes)]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TYPES[out], None)], held)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=sets)
    made.ir_version = 8
    return made, feeds


def both(kind: str, operands: list, out: str, **attributes) -> tuple[np.ndarray, np.ndarray]:
    """What is computed here and what onnxruntime computes."""
    proto, feeds = one(kind, operands, out, **attributes)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    have, want = load(proto)(feeds)["y"], session.run(None, feeds)[0]
    assert have.dtype == want.dtype
    return have, want


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of bytes."""
    every = np.arange(256) + np.iinfo(dtype).min
    a, b = np.meshgrid(every, every)
    return a.astype(dtype).reshape(1, 1, 256, 256), b.astype(dtype).reshape(1, 1, 256, 256)


SCALES = [(np.float32(0.031), np.float32(0.0173), 2), (np.float32(0.5), np.float32(0.25), 7)]
"""Of both operands, and y's zero point: an even one, or an odd one and scales whose sums lie halfway often."""


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_all_pairs_of_bytes(kind, scales, dtype):
    """Equal but at ties: onnxruntime rounds with y's zero point added, QuantizeLinear before it is."""
    a, b = pairs(dtype)
    (sa, sb, zero), sy = scales, np.float32(0.05 if kind == "QLinearAdd" else 0.11)
    za, zb, zy = (np.array(each, dtype) for each in (100, 3, zero))
    sy = sy if zero == 2 else np.float32(1)
    have, want = both(kind, [a, sa, za, b, sb, zb, sy, zy], dtype)
    left, right = (a.astype(np.float64) - 100) * sa, (b.astype(np.float64) - 3) * sb
    exact = (left + right if kind == "QLinearAdd" else left * right) / np.float64(sy)
    tie = np.abs(exact - np.floor(exact) - 0.5) < 1e-4
    wrong = have != want
    assert not (wrong & ~tie).any()
    assert np.abs(have.astype(int) - want.astype(int)).max() <= 1
    assert wrong.mean() < 1e-3 or zero % 2


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("kind", "sy", "attributes"),
    [
        ("QLinearSigmoid", 1 / 256, {}),
        ("QLinearLeakyRelu", 0.04, {"alpha": 0.1}),
        ("QLinearSoftmax", 1 / 256, {"axis": -1, "opset": 13}),
    ],
)
def test_all_bytes(kind, sy, attributes, dtype):
    x = pairs(dtype)[0]
    zero, least = np.array(90, dtype), np.array(np.iinfo(dtype).min, dtype)
    given = [x, np.float32(0.037), zero, np.float32(sy), zero if "Leaky" in kind else least]
    np.testing.assert_array_equal(*both(kind, given, dtype, **attributes))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_pools_and_joins(dtype):
    random, limits = np.random.default_rng(0), np.iinfo(dtype)
    x, other = (random.integers(limits.min, limits.max + 1, (2, c, 13, 14)).astype(dtype) for c in (16, 5))
    sx, so, sy = np.float32(0.0371), np.float32(0.021), np.float32(0.0293)
    zero, zy = np.array(7, dtype), np.array(11, dtype)
    window = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    for kind, given, attributes in (
        ("QLinearGlobalAveragePool", [x, sx, zero, np.float32(0.004), zy], {}),
        ("QLinearAveragePool", [x, sx, zero, sy, zy], window | {"count_include_pad": 1}),
        ("QLinearAveragePool", [x, sx, zero, sy, zy], window),
        ("QLinearConcat", [sy, zy, x, sx, zero, other, so, zero], {"axis": 1}),
        ("QLinearConcat", [sx, zero, x, sx, zero, other, sx, zero], {"axis": 1}),
    ):
        have, want = both(kind, given, dtype, **attributes)
        apart = np.abs(have.astype(int) - want.astype(int))
        # A mean is summed in float32 in some order: beside a tie it may fall on the other side.
        assert apart.max() <= (kind == "QLinearAveragePool")
        assert apart.mean() < 1e-3


@pytest.mark.parametrize("across", [0, 1])
def test_a_linear_map(across):
    random = np.random.default_rng(1)
    x = random.integers(0, 256, (3, 40)).astype(np.uint8)
    w = random.integers(-64, 64, (40, 24)).astype(np.int8)  # without VNNI onnxruntime's pairs of products saturate
    w = np.ascontiguousarray(w.T) if across else w
    scales = random.uniform(0.001, 0.01, 24).astype(np.float32)
    bias, zeros = random.integers(-3000, 3000, 24).astype(np.int32), np.zeros(24, np.int8)
    given = [x, np.float32(0.02), np.uint8(120), w, scales, zeros, bias]
    have, want = both("QGemm", given, "float32", transB=across)
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(*both("QGemm", [*given, np.float32(0.31), np.uint8(117)], "uint8", transB=across))


def test_what_is_not_here_is_said():
    x, scale, zero = np.zeros((1, 4, 5, 5), np.uint8), np.float32(0.1), np.uint8(0)
    for kind, given, attributes, words in (
        ("QLinearGlobalAveragePool", [x, scale, zero, scale, zero], {"channels_last": 1}, "channels first"),
        ("QLinearSigmoid", [x, scale, None, scale], {}, "no zero points"),
        ("QLinearSoftmax", [x, scale, zero, scale, zero], {"opset": 12, "axis": 1}, "operator set 12"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            load(one(kind, given, "uint8", **attributes)[0])
    proto, feeds = one("QLinearSigmoid", [x, scale, zero, np.float32(1 / 256)], "uint8")
    before = proto.SerializeToString()
    assert (load(proto)(feeds)["y"] == 128).all()
    assert proto.SerializeToString() == before


SMALL = (1, 3, 32, 32)


@pytest.mark.parametrize("name", ["basic_residual", "dense", "gated"])
def test_a_net_in_qoperator_format(name, tmp_path, monkeypatch):
    """Layers are those of its QDQ form."""
    tool = pytest.importorskip("onnxruntime.quantization")
    # On processors too that would be faster with numbers.
    monkeypatch.setattr("convdispatch.inference.passes.integer_convolutions._is_slower", lambda node: False)
    path = str(tmp_path / "net.onnx")
    nets.quantize(getattr(nets, name)(3, SMALL), SMALL, path, quant_format=tool.QuantFormat.QOperator)
    names, kinds = nets.as_onnxruntime(path, range(10, 14), SMALL)
    assert names.count("quantized_convolution") == kinds.count("QLinearConv") + kinds.count("Gemm")
