"""Quantized convolutions: problems and their texts, tables, ``conv`` against ONNX's rule, refusals in words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx_quantized import saturates

from convdispatch import ConvProblem, InvalidArgument, InvalidProblem, Quantization, constant, conv, conv_backward_data
from convdispatch.measurement import quantized, reference


def drawn(seed: int, x_shape, w_shape, dtype="uint8"):
    random, limits = np.random.default_rng(seed), np.iinfo(dtype)
    x = random.integers(limits.min, limits.max + 1, x_shape).astype(dtype)
    w = random.integers(-128, 128, w_shape).astype(np.int8)
    return x, w, random.integers(-5000, 5000, w_shape[0]).astype(np.int32)


@pytest.mark.parametrize(
    "text",
    [
        "fwd_u8s8u8_nhwc_mb1ic8ih9iw9oc16kh3kw3ph1pw1",
        "fwd_s8s8s32_mb1ic8iw9oc16kw3",
        "fwd_u8s8f16_g4mb2ic8ih9iw8oc16kh3kw3+residual+constant",
    ],
)
def test_a_problems_text_comes_back(text):
    problem = ConvProblem.parse(text)
    assert str(problem) == text
    assert ConvProblem.parse(str(problem)) == problem
    assert problem.quantized
    assert problem.bias


def test_bytes_count_each_tensor_in_its_own_dtype():
    problem = ConvProblem.parse("u8s8s32_mb1ic8ih9oc16kh1")
    assert problem.bytes == 8 * 81 + 16 * 8 + 4 * 16 * 81
    assert problem.form("bias") == ((48,), "int32")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"direction": "bwd_data"}, "forward only"),
        ({"direction": "bwd_weights"}, "forward only"),
        ({"math": "tf32"}, "exactly"),
        ({"accumulate": True}, "residual"),
        ({"activation": "relu"}, "bounds of its table"),
        ({"out_dtype": "float64"}, "out_dtype must be one of int8"),
        ({"dtype": "float32", "out_dtype": "int8"}, "out_dtype is for x of int8"),
        ({"dtype": "int4"}, "dtype must be one of"),
    ],
)
def test_problems_that_there_are_not_are_refused_in_words(changes, words):
    with pytest.raises(InvalidProblem, match=words):
        ConvProblem(**{"ic": 8, "oc": 8, "iw": 9, "kw": 3, "dtype": "int8"} | changes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x_scale": 0.0}, "above 0"),
        ({"w_scale": [0.1, float("inf")]}, "above 0"),
        ({"w_scale": np.ones((4, 2))}, "blocks"),
        ({"dtype": "int4"}, "4 bits"),
        ({"dtype": "uint8", "y_zero_point": -1}, "within uint8"),
        ({"dtype": "float32", "y_scale": 2.0}, "no y_scale"),
        ({"dtype": "int32", "sum_scale": 2.0}, "8 bits"),
    ],
)
def test_quantizations_that_there_are_not_are_refused_in_words(given, words):
    with pytest.raises(InvalidArgument, match=words):
        Quantization(**given)


def test_calls_are_refused_in_words():
    x, w, bias = drawn(0, (1, 4, 5, 5), (6, 4, 3, 3))
    q = Quantization()
    for arguments, options, words in [
        ((x.astype(np.float32), w), {"quantization": q}, "quantize it by"),
        ((x, w.astype(np.uint8)), {"quantization": q}, "subtract 128"),
        ((x, w, bias.astype(np.float32)), {"quantization": q}, "bias is int32"),
        ((x, w), {"quantization": q, "activation": "tanh"}, "fuses relu"),
        ((x, w), {"quantization": q, "accumulate": True}, "does not accumulate"),
        ((x, w), {"quantization": Quantization(x_zero_point=-3)}, "within uint8"),
        ((x, w), {"quantization": Quantization(w_scale=[1.0, 2.0])}, "1 or 6 numbers"),
        ((x, w), {"quantization": q, "residual": np.zeros((1, 6, 3, 3), np.int8)}, "residual must be int32"),
        ((x, w), {"quantization": q, "out": np.zeros((1, 6, 3, 3), np.int8)}, "out must be int32"),
        ((x, w), {"quantization": "u8"}, "must be a Quantization"),
        ((x, w), {}, "quantization=Quantization"),
    ]:
        with pytest.raises(InvalidArgument, match=words):
            conv(*arguments, **options)
    with pytest.raises(InvalidArgument, match="no gradients"):
        conv_backward_data(np.zeros((1, 6, 3, 3), np.int8), w, x.shape)


GEOMETRIES = [
    ((2, 8, 9, 8), (16, 8, 3, 3), {"strides": [1, 1], "pads": [1, 1, 1, 1]}),
    ((1, 12, 7, 7), (20, 12, 1, 1), {}),
    ((1, 12, 7, 6), (12, 1, 3, 3), {"group": 12, "pads": [1, 0, 2, 1]}),
    ((1, 12, 9, 9), (8, 6, 3, 2), {"group": 2, "strides": [2, 3], "dilations": [2, 1], "pads": [0, 1, 3, 0]}),
    ((2, 5, 11), (7, 5, 4), {"pads": [2, 1]}),
    ((1, 3, 4, 5, 6), (9, 3, 2, 3, 3), {"pads": [1, 1, 1, 0, 1, 1]}),
]


def onnx_model(attributes, x, w, bias, x_scale, x_zero, w_scale, y_scale, y_zero):
    from onnx import TensorProto, helper, numpy_helper

    values = {
        "xs": np.float32(x_scale), "xz": np.array(x_zero, x.dtype), "w": w, "ws": np.asarray(w_scale, np.float32),
        "wz": np.zeros(np.shape(w_scale), np.int8), "ys": np.float32(y_scale), "yz": np.array(y_zero, x.dtype),
        "b": bias,
    }  # fmt: skip
    kind = TensorProto.UINT8 if x.dtype == np.uint8 else TensorProto.INT8
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("geometry", range(len(GEOMETRIES)))
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_conv_gives_the_bits_of_onnxruntime_and_of_onnx_reference(geometry, per_channel, dtype):
    """QLinearConv of both, every element: ties are frequent with scales that are powers of two."""
    onnxruntime = pytest.importorskip("onnxruntime")
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator

    x_shape, w_shape, attributes = GEOMETRIES[geometry]
    x, w, bias = drawn(geometry, x_shape, w_shape, dtype)
    w = w // 2 if saturates() else w
    x_zero, y_zero = (7, 130) if dtype == "uint8" else (-3, -10)  # even: onnx.reference adds it before it rounds
    spread = 60.0 * np.sqrt(w[0].size) * 74
    scales = 2.0 ** np.arange(w_shape[0]).__mod__(3) / 4 if per_channel else np.float32(0.5)
    y_scale = 2.0 ** round(np.log2(spread / 60))
    model = onnx_model(attributes, x, w, bias, 0.5, x_zero, scales, y_scale, y_zero)
    axes = len(x_shape) - 2
    pads = attributes.get("pads", [0] * 2 * axes)
    q = Quantization(0.5, x_zero, scales, y_scale, y_zero, dtype=dtype)
    y = conv(
        x, w, bias, quantization=q, stride=attributes.get("strides", 1), groups=attributes.get("group", 1),
        dilation=attributes.get("dilations", 1), padding=list(zip(pads[:axes], pads[axes:], strict=True)),
    )  # fmt: skip
    assert y.dtype == np.dtype(dtype)
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(y, runtime.run(None, {"x": x})[0])
    if attributes.get("group", 1) == 1 and not per_channel:
        np.testing.assert_array_equal(y, evaluator(model).run(None, {"x": x})[0])


@pytest.mark.parametrize("out", ["int8", "uint8", "int32", "float32", "float16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_reference_is_what_int64_and_float32_say(out, layout):
    """By loops of their own, for each dtype of y, with a residual."""
    problem = ConvProblem(
        mb=1, ic=4, ih=5, iw=6, oc=6, kh=3, kw=2, sh=2, ph=1, pw=1, pw_r=0, g=2, dtype="uint8", out_dtype=out,
        residual=True, layout=layout,
    )  # fmt: skip
    given = quantized.random_operands(problem, 5)
    x, w, r = given["x"], given["w"], given["residual"]
    if layout == "nhwc":
        x, w, r = (np.moveaxis(each, -1, 1) for each in (x, w, r))
    table = given["bias"]
    floats, zero = table.view(np.float32), int(table[0])
    expected = np.empty((1, 6, problem.oh, problem.ow))
    for n, i, j in itertools.product(range(6), range(problem.oh), range(problem.ow)):
        total = int(table[16 + n])
        for c, a, b in itertools.product(range(2), range(3), range(2)):
            row, column = 2 * i + a - 1, j + b - 1
            value = int(x[0, n // 3 * 2 + c, row, column]) if 0 <= row < 5 and 0 <= column < 6 else zero
            total += (value - zero) * int(w[n, c, a, b])
        if out == "int32":
            expected[0, n, i, j] = min(max(total + int(r[0, n, i, j]), table[10]), table[11])
            continue
        v = np.float32(total) * floats[22 + n]
        v = np.rint(v) if table[3] else v
        v = np.float32(min(max(v, floats[8]), floats[9]) * floats[5])
        v = v + np.float32(np.float32(r[0, n, i, j]) - np.float32(table[2])) * floats[4]
        v = v / floats[12] if problem.out_itemsize == 1 else v
        v = min(max(v, floats[6]), floats[7])
        expected[0, n, i, j] = np.rint(v) + table[1] if problem.out_itemsize == 1 else v.astype(out)
    found = reference.compute(problem, **{name: given[name] for name in ("x", "w", "bias", "residual")})
    np.testing.assert_array_equal(np.moveaxis(found, -1, 1) if layout == "nhwc" else found, expected)
    at = reference.positions(problem, 50)
    sampled = reference.sample(problem, at, **{name: given[name] for name in ("x", "w", "bias", "residual")})
    np.testing.assert_array_equal(sampled, found.ravel()[at])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("activation", [None, "relu", "relu6", "clip(-1,2)"])
def test_activations_are_bounds(dtype, activation):
    x, w, bias = drawn(3, (1, 6, 6, 6), (5, 6, 3, 3), dtype)
    zero = 20
    q = Quantization(0.02, 3, 0.05, 0.1, zero, dtype=dtype)
    plain = conv(x, w, bias, quantization=Quantization(0.02, 3, 0.05, dtype="float32"))
    low, high = {None: (-np.inf, np.inf), "relu": (0, np.inf), "relu6": (0, 6), "clip(-1,2)": (-1, 2)}[activation]
    limits = np.iinfo(dtype)
    steps = np.float32(0.02) * np.float32(0.05) / np.float32(0.1)
    sums = conv(x, w, bias, quantization=Quantization(x_zero_point=3))
    v = np.clip(np.rint(sums.astype(np.float32) * steps), np.rint(low / 0.1), np.rint(high / 0.1)) + zero
    got = conv(x, w, bias, quantization=q, activation=activation)
    np.testing.assert_array_equal(got, np.clip(v, limits.min, limits.max))
    assert plain.dtype == np.float32


def test_a_residual_is_added_before_or_after_the_sum_is_rounded():
    x, w, bias = drawn(4, (1, 6, 6, 6), (5, 6, 3, 3))
    r = np.random.default_rng(1).integers(0, 256, (1, 5, 4, 4)).astype(np.uint8)
    alone = conv(x, w, bias, quantization=Quantization(0.02, 3, 0.01, 0.5, 100, dtype="uint8"))
    q = Quantization(
        0.02, 3, 0.01, 0.7, 110, dtype="uint8", residual_scale=0.3, residual_zero_point=50, sum_scale=0.5,
        sum_zero_point=100,
    )  # fmt: skip
    got = conv(x, w, bias, quantization=q, residual=r)
    one, two = (alone.astype(np.float32) - 100) * np.float32(0.5), (r.astype(np.float32) - 50) * np.float32(0.3)
    np.testing.assert_array_equal(got, np.clip(np.rint((one + two) / np.float32(0.7)) + 110, 0, 255))


def test_out_constants_and_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

    x, w, bias = drawn(6, (2, 16, 7, 7), (24, 16, 3, 3))
    q = Quantization(0.1, 120, 0.1, 5.0, 128, dtype="uint8")
    expected = conv(x, w, bias, quantization=q, padding=1)
    out = np.empty_like(expected)
    assert conv(x, constant(w), constant(bias), quantization=q, padding=1, out=out) is out
    np.testing.assert_array_equal(out, expected)
    for weights in (torch.from_numpy(w), constant(torch.from_numpy(w))):
        y = conv(torch.from_numpy(x), weights, torch.from_numpy(bias), quantization=q, padding=1)
        assert y.dtype == torch.uint8
        np.testing.assert_array_equal(y.numpy(), expected)


def test_tensors_on_a_device():
    from convdispatch import Tensor

    x, w, bias = drawn(7, (2, 16, 7, 7), (24, 16, 3, 3))
    q = Quantization(0.1, 120, 0.1, 5.0, 128, dtype="uint8")
    y = conv(Tensor.from_numpy(x), Tensor.from_numpy(w), Tensor.from_numpy(bias), quantization=q)
    assert isinstance(y, Tensor)
    np.testing.assert_array_equal(y.numpy(), conv(x, w, bias, quantization=q))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--dir=FWD_B --dt=u8:s8:u8 mb1ic8ih9oc16oh9kh3ph1", "fwd_u8s8u8_mb1ic8ih9iw9oc16kh3kw3ph1pw1"),
        ("--dt=s8:s8:s32 mb1ic8ih9oc16oh9kh3ph1", "fwd_s8s8s32_mb1ic8ih9iw9oc16kh3kw3ph1pw1"),
        ("--cfg=u8s8f32 --stag=axb g8mb1ic8ih9oc8oh9kh3ph1", "fwd_u8s8f32_nhwc_g8mb1ic8ih9iw9oc8kh3kw3ph1pw1"),
        ("--dt=u8:s8:u8 --attr-scales=src:common --attr-post-ops=relu mb1ic8ih9oc16oh9kh3ph1",
         "fwd_u8s8u8_mb1ic8ih9iw9oc16kh3kw3ph1pw1"),
    ],
)  # fmt: skip
def test_benchdnns_words(line, text):
    from convdispatch.measurement.grammar import benchdnn

    (entry,), _ = benchdnn.read_line(line)
    assert str(entry.problem) == text
