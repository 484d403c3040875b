"""ONNX's quantized operators by onnx's own cases, and nets in 8 bits as onnxruntime's tool writes them."""

import importlib
import itertools
import warnings

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import onnx
import onnx_quantized as nets
from onnx_models import expected, model, node, normal, value

from convdispatch.api import InvalidArgument
from convdispatch.onnx import Backend, load

OPERATORS = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
    "MatMulInteger",
)  # fmt: skip
NARROW = ("float8", "e4m3", "e5m2", "int4", "int2", "float4", "blocked", "bfloat16")
"""Of other types than 8 and 16 bits, and scales of blocks: refused."""


def _cases() -> dict:
    package = "onnx.backend.test.case.node"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in OPERATORS:
            importlib.import_module(f"{package}.{operator.lower()}")
        known = importlib.import_module(package)._NodeTestCases
    mine = [case for case in known if case.model is not None and case.model.graph.node[0].op_type in OPERATORS]
    return {case.name: case for case in mine if len(case.model.graph.node) == 1}


CASES = _cases()


def test_no_operator_lacks_its_cases():
    assert {case.model.graph.node[0].op_type for case in CASES.values()} == set(OPERATORS)


@pytest.mark.parametrize("name", sorted(CASES))
def test_onnxs_own_cases(name):
    from onnx_suite import data_sets

    case = CASES[name]
    for given, wanted in data_sets(case):
        if any(word in name for word in NARROW):
            try:
                got = Backend.prepare(case.model).run(given)
            except InvalidArgument as error:
                assert len(str(error)) > 20  # noqa: PT017
                continue
        else:
            got = Backend.prepare(case.model).run(given)
        for have, want in zip(got, wanted, strict=True):
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, rtol=case.rtol, atol=case.atol)


SMALL = (1, 3, 32, 32)
NETS = {
    "residual": (nets.basic_residual, {}),
    "bottleneck": (nets.bottleneck, {}),
    "groups": (lambda seed, shape: nets.bottleneck(seed, shape, 4), {"per_channel": False}),
    "inverted": (nets.inverted, {}),
    "plain": (nets.plain, {"per_channel": False}),
    "inception": (nets.inception, {}),
    "fire": (nets.fire, {"activation_type": "QInt8"}),
    "dense": (nets.dense, {}),
    "gated": (nets.gated, {}),
    "dilated": (nets.dilated, {"weight_type": "QUInt8", "per_channel": False}),
    "normalized": (nets.normalized, {}),
    "leaky": (nets.leaky, {"activation_type": "QInt8"}),
}


@pytest.fixture
def integers(monkeypatch):
    """Integers are convolved as such, on processors too that would be faster with numbers."""
    from convdispatch.inference.passes import integer_convolutions

    monkeypatch.setattr(integer_convolutions, "_is_slower", lambda node: False)


@pytest.mark.parametrize("name", NETS)
def test_a_quantized_net_gives_what_onnxruntime_gives(name, tmp_path, integers):
    tool = pytest.importorskip("onnxruntime.quantization")
    make, options = NETS[name]
    path = str(tmp_path / "net.onnx")
    given = {key: getattr(tool.QuantType, value) if "type" in key else value for key, value in options.items()}
    nets.quantize(make(len(name), SMALL), SMALL, path, **given)
    names, kinds = nets.as_onnxruntime(path, range(10, 15), SMALL)
    convolutions = kinds.count("Conv") + kinds.count("Gemm")
    split = 2 if options.get("weight_type") == "QUInt8" else 1  # weights with a zero point may be a sum of two
    assert convolutions <= names.count("quantized_convolution") <= split * convolutions


def test_between_layers_there_are_only_integers(tmp_path, integers):
    """A net of residual blocks: numbers come in and go out; sums, activations and pools are the convolutions' or
    integers'."""
    pytest.importorskip("onnxruntime.quantization")
    path = str(tmp_path / "net.onnx")
    nets.quantize(nets.bottleneck(0, SMALL), SMALL, path)
    names = [layer.name for layer in load(path).build(SMALL).layers]
    numbers = {"quantize", "dequantized_average", "dequantize"}  # quantize_pixels: where pictures are turned, too
    assert set(names) - {"quantized_convolution", "max_pool", "reorder", "quantize_pixels"} == numbers
    assert names.count("quantize") + names.count("quantize_pixels") == 2
    assert names.count("dequantize") == 1


def test_where_integers_are_slow_numbers_are_convolved(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime.quantization")
    from convdispatch.inference.passes import integer_convolutions

    monkeypatch.setattr(integer_convolutions, "_is_slower", lambda node: True)
    path = str(tmp_path / "net.onnx")
    nets.quantize(nets.bottleneck(0, SMALL), SMALL, path)
    net, x = load(path), nets.pictures(3, SMALL)
    slow = net(x)
    assert "quantized_convolution" not in [layer.name for layer in net.latest.layers]
    monkeypatch.setattr(integer_convolutions, "_is_slower", lambda node: False)
    fast = load(path)(x)
    assert np.abs(slow - fast).max() <= 0.1 * np.abs(fast).max()
    assert slow.argmax() == fast.argmax()


def test_a_dynamically_quantized_net(tmp_path):
    """Scales and zero points of x are computed by the net, padding's too."""
    onnxruntime = pytest.importorskip("onnxruntime")
    tool = pytest.importorskip("onnxruntime.quantization")
    path = str(tmp_path / "net.onnx")
    net = nets.Net(0, SMALL)
    onnx.save(net.logits(net.conv(net.conv("x", 16, stride=2), 32, stride=2)), f"{path}.float")
    tool.quantize_dynamic(f"{path}.float", path, op_types_to_quantize=["Conv", "MatMul", "Gemm"])
    kinds = {each.op_type for each in onnx.load(path).graph.node}
    assert {"ConvInteger", "DynamicQuantizeLinear"} <= kinds
    x = nets.pictures(1, SMALL)
    want = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(load(path)(x), want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def test_a_zero_point_of_weights_and_one_that_moves():
    """Exact: weights of uint8 that take nine bits without their zero point, an x zero point that the net is given."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (1, 6, 9, 8)).astype(np.uint8)
    w = random.integers(0, 256, (10, 3, 3, 3)).astype(np.uint8)
    nodes = [node("ConvInteger", "x w xz wz", "y", pads=[1, 0, 2, 1], group=2)]
    proto = model(
        nodes, {"x": ([1, 6, 9, 8], "uint8"), "xz": ([], "uint8")}, ["y"], {"w": w, "wz": np.uint8(40)}, opset=10
    )
    for zero in (0, 3, 255):
        padded = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (1, 2), (0, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        whole = w.astype(np.int64) - 40
        halves = [
            np.einsum("nchwij,ocij->nohw", windows[:, 3 * g : 3 * g + 3], whole[5 * g : 5 * g + 5]) for g in (0, 1)
        ]
        np.testing.assert_array_equal(load(proto)({"x": x, "xz": np.uint8(zero)})["y"], np.concatenate(halves, 1))


def _every_difference(kind, x_type, w_type, x_zero):
    """(model, x, exact sums): weights of every value less every zero point, one a channel, times one x a pixel.

    Pixel (or row) k has the value farthest from ``x_zero`` in channel k, and ``x_zero`` elsewhere, so that its sums are
    that distance times the weights of input channel k.
    """
    limits = {name: np.iinfo(name) for name in (x_type, w_type)}
    least, most = limits[x_type].min, limits[x_type].max
    far = most if most - x_zero >= x_zero - least else least
    values = np.arange(limits[w_type].min, limits[w_type].max + 1)
    w = np.broadcast_to(values, (256, 256))  # [output channel][input channel]
    exact = (far - x_zero) * (w.T - values)  # [pixel][output channel]
    x = np.full((256, 256), x_zero, x_type)
    np.fill_diagonal(x, far)
    zeros, product = values.astype(w_type), "MatMul" in kind
    if product:
        w = w.T
    else:
        x, w, exact = x.T.reshape(1, 256, 16, 16), w.reshape(256, 256, 1, 1), exact.T.reshape(1, 256, 16, 16)
    consts = {"w": np.ascontiguousarray(w).astype(w_type), "wz": zeros, "xz": np.asarray(x_zero, x_type)}
    ones = {"s": np.float32(1), "t": np.ones(256, np.float32), "u": np.float32(512), "z": np.uint8(100)}
    if kind in ("ConvInteger", "MatMulInteger"):
        nodes = [node(kind, "x w xz wz", "y")]
    elif kind in ("QLinearConv", "QLinearMatMul"):
        nodes, consts = [node(kind, "x s xz w t wz u z", "y")], {**consts, **ones}
    else:
        axis, consts = {"axis": 1 if product else 0}, {**consts, **ones}
        nodes = [node("DequantizeLinear", "x s xz", "d"), node("DequantizeLinear", "w t wz", "v", **axis)]
        nodes += [node(kind, "d v", "c"), node("QuantizeLinear", "c u z", "y")]
    if "Integer" not in kind:
        exact = np.clip(np.rint(exact / 512) + 100, 0, 255)
    return model(nodes, {"x": (list(x.shape), x_type)}, ["y"], consts), x, exact


KINDS = ["ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "Conv", "MatMul"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_less_every_zero_point_is_exact(kind, integers, full):
    """Also where the difference is 255, which no two numbers of 8 bits add up to. Each pair of types takes one of the
    three zero points, by turns over the kinds; with --full all."""
    for turn, (x_type, w_type) in enumerate(itertools.product(("uint8", "int8"), repeat=2), KINDS.index(kind)):
        zeros = (np.iinfo(x_type).min, 7, np.iinfo(x_type).max)
        for x_zero in zeros if full else zeros[turn % 3 :][:1]:
            proto, x, exact = _every_difference(kind, x_type, w_type, x_zero)
            got = load(proto)({"x": x})["y"]
            np.testing.assert_array_equal(got, exact, err_msg=f"x {x_type}, w {w_type}, x's zero point {x_zero}")


@pytest.mark.parametrize("kind", ["MatMulInteger", "QLinearMatMul"])
def test_every_weight_that_is_an_input_less_every_zero_point_is_exact(kind):
    for x_type, w_type in itertools.product(("uint8", "int8"), repeat=2):
        proto, x, exact = _every_difference(kind, x_type, w_type, np.iinfo(x_type).min)
        (held,) = (each for each in proto.graph.initializer if each.name == "w")
        w = onnx.numpy_helper.to_array(held)
        proto.graph.initializer.remove(held)
        proto.graph.input.append(value("w", list(w.shape), w_type))
        np.testing.assert_array_equal(load(proto)({"x": x, "w": w})["y"], exact, err_msg=f"x {x_type}, w {w_type}")


def test_integers_of_sixteen_bits_and_axes_run_in_numbers():
    """What no convolution of integers takes: x of 16 bits, and scales along an axis of x."""
    w = (normal(4, 3, 3, 3) / 5).astype(np.float32)
    s = np.array([0.01, 0.02, 0.03], np.float32)
    for scale, zero, options in ((np.float32(1e-4), np.uint16(30000), {}), (s, np.zeros(3, np.int8), {"axis": 1})):
        nodes = [
            node("QuantizeLinear", "x s z", "q", **options),
            node("DequantizeLinear", "q s z", "d", **options),
            node("Conv", "d w", "y"),
        ]
        proto = model(nodes, {"x": [1, 3, 6, 6]}, ["y"], {"s": scale, "z": zero, "w": w})
        x = normal(1, 3, 6, 6)
        np.testing.assert_allclose(load(proto)(x), expected(proto, x)[0], rtol=1e-4, atol=1e-5)
