"""What an ONNX file's shapes say: constants of more axes than a result has, initialisers that are fed, results without
elements, scales and biases that do not fit; and arrays of any byte order, and lists, for inputs."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx_models import expected, model, node, normal, value

from convdispatch.api import InvalidArgument
from convdispatch.onnx import InferenceSession, load

X, W = normal(2, 3, 8, 8), normal(4, 3, 3, 3)
VECTORS = {name: np.abs(normal(4, seed=seed)) + 1 for seed, name in enumerate(("s", "b", "m", "v"))}
BEFORE = {
    "Conv": [node("Conv", "x w", "c")],
    "BatchNormalization": [node("Conv", "x w", "a"), node("BatchNormalization", "a s b m v", "c")],
    "Mul": [node("Conv", "x w", "a"), node("Mul", "a f", "c")],
    "Relu": [node("Conv", "x w", "a"), node("Relu", "a", "c")],
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Max", "PRelu"])
def test_a_constant_of_more_axes_adds_axes(before, kind):
    """And one of as many or fewer does not; on either side."""
    onnxruntime = pytest.importorskip("onnxruntime")
    for shape in ((4, 1, 1), (1, 4, 1, 1), (1, 1, 4, 1, 1), (1, 1, 1, 4, 1, 1), (2, 1, 4, 1, 1), (1, 1, 1, 1, 1)):
        for operands in ("c k", "k c")[: 1 if kind == "PRelu" else 2]:
            weights = {"w": W, "f": np.abs(normal(4, 1, 1)) + 1, "k": np.abs(normal(*shape)) + 1, **VECTORS}
            proto = model([*BEFORE[before], node(kind, operands, "y")], {"x": [2, 3, 8, 8]}, ["y"], weights, opset=17)
            session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
            want = session.run(None, {"x": X})[0]
            got = load(proto)(X)
            assert got.shape == want.shape, (shape, operands)
            if kind != "Div" or operands == "c k":  # a quotient by a result near 0 magnifies its rounding
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{shape} {operands}")


def test_an_initialiser_that_is_an_input_keeps_its_value():
    nodes, weights = [node("Conv", "x w k", "y")], {"w": W, "k": normal(4)}
    proto = model(nodes, {"x": list(X.shape)}, ["y"], weights, opset=17)
    wanted = expected(proto, X)[0]
    proto.graph.input.extend(value(name, list(weights[name].shape), weights[name].dtype) for name in weights)
    session = InferenceSession(proto.SerializeToString())
    assert [each.name for each in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], wanted, 1e-3, 1e-4)
    with pytest.raises(InvalidArgument, match="no input k"):
        session.run(None, {"x": X, "k": normal(4)})


CROP = node("Pad", "x p", "t")
NOTHING = [
    [node("Relu", "t", "y")],
    [node("Concat", "t x", "y", axis=2)],
    [node("ReduceSum", "t", "y")],
    [node("Flatten", "t", "y")],
    [node("Transpose", "t", "y", perm=[0, 2, 1, 3])],
    [node("Pad", "t q", "y")],
    [node("MatMul", "t k", "y")],
    [node("Identity", "t", "y")],
]


@pytest.mark.parametrize("after", NOTHING, ids=[nodes[0].op_type for nodes in NOTHING])
@pytest.mark.parametrize("pads", [(-4, -4), (-8, 0), (-10, 2)])
def test_a_pad_may_leave_nothing(after, pads):
    weights = {
        "p": np.array([0, 0, pads[0], 1, 0, 0, pads[1], 1]),
        "q": np.array([0, 0, 2, 0, 0, 0, 1, 0]),
        "k": normal(10, 5),
    }
    used = {name for each in after for name in each.input} | {"p"}
    x = np.zeros((2, 3, 8, 10), np.float32) if after[0].op_type == "Concat" else X
    if after[0].op_type == "Concat":
        weights["p"][[3, 7]] = 0
    held = {name: array for name, array in weights.items() if name in used}
    proto = model([CROP, *after], {"x": list(x.shape)}, ["y"], held, opset=17)
    got, want = load(proto)(x), _ort(proto, x)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def test_a_gather_of_nothing_leaves_nothing():
    for shape in ((0,), (0, 2), (2, 0)):
        proto = model([node("Gather", "x k", "y", axis=1)], {"x": list(X.shape)}, ["y"], {"k": np.zeros(shape, int)})
        assert load(proto)(X).shape == (2, *shape, 8, 8)


def _ort(proto, x):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"]).run(
        None, {"x": x}
    )[0]


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_a_scale_that_does_not_broadcast_to_x_is_refused(kind):
    x = normal(1, 3, 1, 1)
    for shape, fits in (((1,), 1), ((), 1), ((3, 1, 1), 1), ((3,), 0), ((2,), 0), ((2, 1, 1, 1), 0), ((1,) * 5, 0)):
        proto = model([node(kind, "x s", "y")], {"x": [1, 3, 1, 1]}, ["y"], {"s": normal(*shape)}, opset=23)
        if fits:
            np.testing.assert_allclose(load(proto)(x), _ort(proto, x), rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(InvalidArgument, match=r"'s' that broadcasts to \(1, 3, 1, 1\), got shape"):
                load(proto)(x)
    if kind == "LayerNormalization":
        proto = model([node(kind, "x s b", "y")], {"x": [1, 3, 1, 1]}, ["y"], {"s": normal(1), "b": normal(3)})
        with pytest.raises(InvalidArgument, match="'b' that broadcasts"):
            load(proto)(x)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_a_bias_of_other_channels_is_refused(kind, channels):
    """Before a kernel reads beyond it."""
    w = W if kind == "Conv" else np.ascontiguousarray(W.transpose(1, 0, 2, 3))
    proto = model([node(kind, "x w b", "y")], {"x": [2, 3, 8, 8]}, ["y"], {"w": w, "b": normal(channels)})
    with pytest.raises(InvalidArgument, match=rf"bias must have shape \(4,\), got \({channels},\)"):
        load(proto)(X)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i4", "u2"])
def test_arrays_of_the_other_byte_order(dtype):
    given = np.arange(5).astype(np.dtype(dtype).newbyteorder(">"))
    session = InferenceSession(
        model([node("Add", "x x", "y")], {"x": ([5], dtype)}, ["y"], opset=17).SerializeToString()
    )
    native = given.astype(dtype)
    (got,) = session.run(None, {"x": given})
    assert got.dtype == native.dtype
    np.testing.assert_array_equal(got, native + native)


def test_lists_and_what_is_no_array():
    def session(dtype):
        return InferenceSession(model([node("Identity", "x", "y")], {"x": ([2], dtype)}, ["y"]).SerializeToString())

    for dtype, given in (("f4", [1.5, 2]), ("f4", [3, 4]), ("f4", (True, False)), ("i4", [3, -4]), ("u1", [255, 0])):
        (got,) = session(dtype).run(None, {"x": given})
        assert got.dtype == np.dtype(dtype)
        assert got.tolist() == [float(each) for each in given]
    for dtype, given, words in (
        ("f4", None, "the input 'x' must be an array, got NoneType"),
        ("f4", [None, 1.0], "the input 'x' takes float32, got object"),
        ("f4", [[1.0], [2.0, 3.0]], "the input 'x' must be an array, got a list that is none"),
        ("i4", [1.5, 2.0], "the input 'x' takes int32, got float64"),
        ("u1", [256, 0], "the input 'x' takes uint8, got int64"),
        ("f4", np.ones(2), "the input 'x' takes float32, got float64"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            session(dtype).run(None, {"x": given})
    for feeds in (None, [np.ones(2, np.float32)]):
        with pytest.raises(InvalidArgument, match="run takes a dict of arrays by name, got"):
            session("f4").run(None, feeds)
