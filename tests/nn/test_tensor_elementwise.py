"""apply and reductions against NumPy: formulas, strides, broadcasts, types, errors."""

import sys

import numpy as np
import pytest
from small_net import normal

from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.elementwise import apply, concatenate, full, mean, reduce
from convdispatch.elementwise.codegen.expression import parse
from convdispatch.tensor import Tensor

RNG = np.random.default_rng


def on(queue, *arrays):
    return [Tensor.from_numpy(array, queue) for array in arrays]


# --- formulas --------------------------------------------------------------------------------------------------------

FORMULAS = {
    "x + y * 2 - 1": lambda x, y: x + y * 2 - 1,
    "-x / (abs(y) + 1)": lambda x, y: -x / (np.abs(y) + 1),
    "x // 0.3 + y % 0.7 + -x % -0.4": lambda x, y: x // 0.3 + y % 0.7 + -x % -0.4,
    "x ** 2 + x ** 3 + abs(x) ** 1.5 + abs(x) ** y + (x + 9) ** -2": lambda x, y: (
        x**2 + x**3 + abs(x) ** 1.5 + abs(x) ** y + (x + 9) ** -2.0
    ),
    "max(x, y, 0) + min(x, y)": lambda x, y: np.maximum(np.maximum(x, y), 0) + np.minimum(x, y),
    "where(x > 0 and not y > 0 or x == y, x, y)": lambda x, y: np.where(((x > 0) & ~(y > 0)) | (x == y), x, y),
    "x if -0.5 < x <= 1 != y else 3": lambda x, y: np.where((x > -0.5) & (x <= 1) & (y != 1), x, 3),
    "clip(x, -0.5, y + 1) + sign(y) + square(x)": lambda x, y: (
        np.where(x < -0.5, -0.5, np.where(x > y + 1, y + 1, x)) + np.sign(y) + x * x
    ),
    "exp(x) + expm1(y) + log(abs(x) + 1) + log1p(abs(y))": lambda x, y: (
        np.exp(x) + np.expm1(y) + np.log(abs(x) + 1) + np.log1p(abs(y))
    ),
    "sqrt(abs(x)) + rsqrt(abs(y) + 1) + sin(x) + cos(y) + tanh(x)": lambda x, y: (
        np.sqrt(abs(x)) + 1 / np.sqrt(abs(y) + 1) + np.sin(x) + np.cos(y) + np.tanh(x)
    ),
    "sigmoid(x) + floor(y) + ceil(x) + round(y * 3) + pi": lambda x, y: (
        1 / (1 + np.exp(-x)) + np.floor(y) + np.ceil(x) + np.rint(y * 3) + np.pi
    ),
    "t = x * x; u = t + y; t = u * t; t - u": lambda x, y: (x * x + y) * (x * x) - (x * x + y),
}


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas(queue, text):
    x, y = normal(7, 9), normal(7, 9, seed=1)
    got = apply(text, **dict(zip("xy", on(queue, x, y), strict=True))).numpy()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, FORMULAS[text](x.astype(np.float64), y.astype(np.float64)), rtol=2e-5, atol=2e-5)


def test_nan_goes_where_numpy_sends_it(queue):
    x, y = np.float32([np.nan, 1, np.nan, 2]), np.float32([1, np.nan, np.nan, 3])
    a, b = on(queue, x, y)
    np.testing.assert_array_equal(apply("max(x, y)", x=a, y=b).numpy(), np.maximum(x, y))
    np.testing.assert_array_equal(apply("min(x, y)", x=a, y=b).numpy(), np.minimum(x, y))
    np.testing.assert_array_equal(apply("isnan(x) or x < y", x=a, y=b).numpy(), np.isnan(x) | (x < y))


# Near misses of the flat and the vector path among them: odd lengths, unaligned starts, steps, repeats, transposes.
VIEWS = {
    "odd lengths": (lambda a: a[:1023], (1024,)),
    "one": (lambda a: a[:1], (5,)),
    "unaligned": (lambda a: a[1:], (1025,)),
    "unaligned by three": (lambda a: a[3:-2], (133,)),
    "steps": (lambda a: a[::3], (100,)),
    "backwards": (lambda a: a[::-1], (101,)),
    "rows": (lambda a: a[:, :64], (9, 68)),
    "rows, unaligned": (lambda a: a[:, 1:65], (9, 68)),
    "odd rows": (lambda a: a[1:, :7], (9, 20)),
    "transposed": (lambda a: a.transpose(), (33, 20)),
    "permuted": (lambda a: a.transpose(2, 0, 3, 1), (3, 4, 5, 8)),
    "of five axes": (lambda a: a[:, ::2, :, 1:, ::-1], (3, 4, 2, 5, 4)),
    "scalar": (lambda a: a[2, 3, ...], (4, 5)),
    "empty": (lambda a: a[2:2], (5, 4)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(queue, name):
    view, shape = VIEWS[name]
    x = normal(*shape)
    (a,) = on(queue, x)
    np.testing.assert_array_equal(apply("x * 2 + 1", x=view(a)).numpy(), view(x) * 2 + 1)
    # into a view, between other values
    target, into = full(shape, 7, queue=queue), np.full(shape, np.float32(7))
    apply("x * 2", x=view(a), out=view(target))
    view(into)[...] = view(x) * 2
    np.testing.assert_array_equal(target.numpy(), into)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 4), (3, 1, 1)),
        ((2, 3, 5, 7), (3, 1, 1)),
        ((2, 3, 8), (2, 1, 8)),
        ((4, 1, 3), (1, 5, 1)),
        ((6, 4), (4,)),
        ((6, 4), ()),
        ((2, 3, 2, 3, 4), (3, 1, 3, 1)),
        ((2, 3, 513), (3, 1)),
        ((2, 3, 1030), (3, 1)),
        ((3, 2, 2, 784), (2, 1, 1)),
        ((3, 4096), (3, 1)),
        ((1,), (7, 1)),
    ],
    ids=str,
)
def test_broadcasts(queue, shapes):
    x, y = (normal(*shape, seed=i) for i, shape in enumerate(shapes))
    a, b = on(queue, x, y)
    np.testing.assert_allclose(apply("x * y + y", x=a, y=b).numpy(), x * y + y, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose((b - a / 2).numpy(), y - x / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool"])
def test_dtypes(queue, dtype):
    if dtype == "float64" and not queue.device.double_fp_config:
        pytest.skip("the device has no float64")
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    x = (RNG(0).integers(0, 100, 65) - (0 if dtype in ("uint8", "bool") else 50)).astype(dtype)
    (a,) = on(queue, x)
    assert apply("x", x=a).numpy().tobytes() == x.tobytes()
    np.testing.assert_array_equal(apply("x", x=a, dtype="float32").numpy(), x.astype("float32"))
    np.testing.assert_array_equal(a.astype("float32").astype(dtype).numpy(), x)
    np.testing.assert_array_equal(apply("x > 3", x=a).numpy(), x > np.array(3, dtype))
    if np.dtype(dtype).kind in "iu":
        got = apply("x // 7 * 7 + x % -5", x=a, dtype="int64").numpy()
        wide = x.astype(np.int64)
        np.testing.assert_array_equal(got, wide // 7 * 7 + wide % -5)
        np.testing.assert_allclose(apply("x / 4", x=a).numpy(), x / np.float32(4))
        assert reduce("sum", "x", x=a).numpy() == wide.sum()


def test_float16_is_computed_in_float32(queue):
    x = np.float16([60000.0, 1e-4])
    (a,) = on(queue, x)
    np.testing.assert_array_equal(apply("x * 4 / 4", x=a).numpy(), x)


def test_large_integers_are_exact(queue):
    x = np.int64([2**62, -(2**60) - 1])
    (a,) = on(queue, x)
    np.testing.assert_array_equal(apply("x + 1", x=a).numpy(), x + 1)


def test_statements_write_in_place(queue):
    p, v, g = normal(300), normal(300, seed=1), normal(300, seed=2)
    a, b, c = on(queue, p, v, g)
    assert apply("v = m * v + g; p -= r * v", p=a, v=b, g=c, m=0.9, r=0.1) is None
    v = np.float32(0.9) * v + g
    np.testing.assert_allclose(b.numpy(), v, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a.numpy(), p - np.float32(0.1) * v, rtol=1e-5, atol=1e-6)
    low, high = (Tensor.empty((300,), queue=queue) for _ in range(2))
    total = apply("low = min(x, 0); high = max(x, 0); low + high", x=c, low=low, high=high)
    np.testing.assert_array_equal(low.numpy(), np.minimum(g, 0))
    np.testing.assert_array_equal(high.numpy(), np.maximum(g, 0))
    np.testing.assert_array_equal(total.numpy(), g)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a: apply("x +", x=a), "cannot read the formula"),
        (lambda a: apply("", x=a), "needs an expression"),
        (lambda a: apply("x.y", x=a), "a formula holds"),
        (lambda a: apply("x[0]", x=a), "a formula holds"),
        (lambda a: apply("__import__('os')", x=a), "no function '__import__'"),
        (lambda a: apply("exp(x, x)", x=a), "exp takes 1 arguments"),
        (lambda a: apply("max(x)", x=a), "two or more"),
        (lambda a: apply("x; x", x=a), "is neither"),
        (lambda a: apply("import os", x=a), "is neither"),
        (lambda a: apply("'x'", x=a), "a formula holds"),
        (lambda a: apply("x & 1", x=a), "a formula has"),
        (lambda a: apply("x + y", x=a), "reads y, but the operands are x"),
        (lambda a: apply("x", x=a, y=a), "does not use y"),
        (lambda a: apply("y", y=1), "needs a tensor"),
        (lambda a: apply("x", x="a"), "needs a tensor"),
        (lambda a: apply("x + y", x=a, y=None), "must be a tensor or a number"),
        (lambda a: apply("y = x", x=a, y=1), "cannot be assigned"),
        (lambda a: apply("x + y", x=a, y=a[:3, :2]), r"do not fit each other: x \(4, 5\), y \(3, 2\)"),
        (lambda a: apply("x", x=a, out=a[:2]), "out must have shape"),
        (lambda a: apply("x", x=a[0], out=a[0].expand(4, 5)), "out must have shape"),
        (lambda a: apply("x", x=a, out=a[0].expand(4, 5)), "elements overlap"),
        (lambda a: apply("x = x + y", x=a[:1], y=a), "assigned and needs the shape"),
        (lambda a: apply("y = x; y = y", x=a, out=a), "ends with an assignment"),
        (lambda a: apply("x", x=a.astype("float32").astype("float32"), dtype="complex64"), "take bool"),
        (lambda a: reduce("sum", "x", 2, x=a), "different ones among 2"),
        (lambda a: reduce("sum", "x", (0, 0), x=a), "different ones"),
        (lambda a: reduce("sum", "x", 0.5, x=a), "axes must be integers"),
        (lambda a: reduce("median", "x", x=a), "reduce knows"),
        (lambda a: reduce("sum", "x + y", x=a), "reads y"),
        (lambda a: reduce("max", "x", x=a[:0]), "at least one element"),
        (lambda a: concatenate([a, a[:, :3]], 0), "agree but along axis 0"),
        (lambda a: concatenate([a], 2), "axis must be one of 2"),
        (lambda a: concatenate([]), "nothing to concatenate"),
        (lambda a: concatenate([a, a.astype("float16")]), "one dtype"),
        (lambda a: a.write(np.zeros(3)), r"needs an array of shape \(4, 5\)"),
    ],
)
def test_errors_say_what_was_expected(queue, call, words):
    (a,) = on(queue, normal(4, 5))
    with pytest.raises(InvalidArgument, match=words):
        call(a)


def test_other_objects_are_not_operands(queue):
    (a,) = on(queue, normal(3))
    with pytest.raises(TypeError):
        a + "x"
    assert isinstance(np.float32(2) * a, Tensor)


def test_a_warm_apply_is_quick(queue):
    """By the functions that it calls, 11, whatever a busy machine takes for them: about 15 µs."""
    (a,) = on(queue, normal(16))
    out, called = Tensor.empty((16,), queue=queue), []
    for _ in range(3):
        called.clear()
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            apply("x + 1", x=a, out=out)
        finally:
            sys.setprofile(None)
    queue.finish()
    assert len(called) <= 15, called


# --- reductions ------------------------------------------------------------------------------------------------------


AXES = [None, 0, 1, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2), ()]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 33, 64), (2, 1, 300), (1, 3, 1)], ids=str)
def test_reductions(queue, thinned, shape, axes):
    thinned((AXES.index(axes) + shape[0]) % 2)
    x, y = normal(*shape), normal(shape[1], 1, seed=1)
    a, b = on(queue, x, y)
    wide = x.astype(np.float64)
    got = reduce("sum", "x * y", axes, keepdims=True, x=a, y=b).numpy()
    np.testing.assert_allclose(got, (wide * y).sum(axes, keepdims=True), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(reduce("max", "x", axes, x=a).numpy(), x.max(axes))
    np.testing.assert_array_equal(reduce("min", "-x", axes, x=a).numpy(), (-x).min(axes))
    np.testing.assert_allclose(mean(a, axes).numpy(), wide.mean(axes), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reduce("sum", "x", axes, x=a).numpy(), wide.sum(axes), rtol=1e-5, atol=1e-4)
    squares = reduce("sum", "t = x * s; t * x", axes, x=a, s=2.0)
    np.testing.assert_allclose(squares.numpy(), (2 * wide * wide).sum(axes), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "axes"), [((700001,), None), ((70001, 3), 0), ((3, 70001), 1), ((5, 3, 9001), (0, 2))]
)
def test_long_reductions_are_split_and_accurate(queue, shape, axes):
    x = normal(*shape) + 1
    (a,) = on(queue, x)
    np.testing.assert_allclose(reduce("sum", "x", axes, x=a).numpy(), x.astype(np.float64).sum(axes), rtol=2e-6)
    np.testing.assert_array_equal(reduce("max", "x", axes, x=a).numpy(), x.max(axes))
    ones = full(shape, 1, "uint8", queue)
    np.testing.assert_array_equal(reduce("sum", "x", axes, x=ones).numpy(), np.ones(shape, np.int64).sum(axes))


@pytest.mark.parametrize("columns", [7, 18, 50, 100, 250, 1000])
def test_equal_columns_have_equal_sums(queue, columns):
    """Whatever is left of a work group beyond its vectors adds in the same order."""
    x = np.repeat(normal(1, 169, 1) * np.float32(1e10), columns, 2)
    (a,) = on(queue, x)
    (sums,) = reduce("mean", "x", 1, x=a).numpy()
    assert len(np.unique(sums)) == 1


def test_reductions_of_views_and_of_nothing(queue):
    x = normal(6, 9, 8)
    (a,) = on(queue, x)
    np.testing.assert_allclose(
        reduce("sum", "x", (0, 2), x=a[::2, 1:, ::-1].transpose(2, 1, 0)).numpy(),
        x[::2, 1:, ::-1].T.astype(np.float64).sum((0, 2)),
        rtol=1e-5,
    )
    np.testing.assert_array_equal(reduce("sum", "x", 0, x=a[:0]).numpy(), np.zeros((9, 8)))
    x[2, 3, 4] = np.nan
    assert np.isnan(reduce("max", "x", x=on(queue, x)[0]).numpy())


def test_one_program_serves_every_length(queue):
    (a,) = on(queue, normal(5000))
    from convdispatch.device.programs import kernels

    apply("x * 17 + 4", x=a)
    before = len(kernels._programs)
    for n in (2, 7, 100, 4999):
        apply("x * 17 + 4", x=a[:n])
    assert len(kernels._programs) == before


def test_derivatives_are_formulas():
    assert parse("x * y").derivative("x") == "(y)"
    assert parse("x + 1").derivative("x") == "1"
    assert parse("floor(x)").derivative("x") is None
    assert parse("y").derivative("x") is None


def test_the_gpu_form_under_the_simulator():
    """The kernels that a GPU gets, on Oclgrind: vectors of four, tails, divisions by sizes, trees, splits."""
    from convdispatch.api.errors import NoDevice

    try:
        queue = runtime.queue(runtime.find_device("oclgrind"))
    except NoDevice:
        pytest.skip("Oclgrind is not installed")
    for n in (1, 3, 4, 7, 1025):
        x = normal(n)
        (a,) = on(queue, x)
        np.testing.assert_array_equal(apply("max(x, 0) + 1", x=a).numpy(), np.maximum(x, 0) + 1)
    x, y = normal(3, 4, 8), normal(4, 1, seed=1)
    a, b = on(queue, x, y)
    np.testing.assert_array_equal(apply("x * y", x=a, y=b).numpy(), x * y)
    np.testing.assert_array_equal(apply("x * y", x=a[:, :, :7], y=b).numpy(), x[:, :, :7] * y)
    for axes in (None, 0, 1, 2, (0, 2)):
        np.testing.assert_allclose(reduce("sum", "x", axes, x=a).numpy(), x.sum(axes), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(reduce("max", "x", x=on(queue, normal(9001))[0]).numpy(), normal(9001).max())
