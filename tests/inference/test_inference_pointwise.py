"""Element-wise chains in the inference form: what is put together, what must not be, and the same numbers."""

import numpy as np
import pytest
from small_net import normal

from convdispatch import inference
from convdispatch.elementwise import apply, reduce, sample
from convdispatch.inference.passes.fusion import fuse
from convdispatch.inference.trace import trace
from convdispatch.nn import functional
from convdispatch.runtime import queue
from convdispatch.tensor import Tensor


def constant(array):
    return Tensor.from_numpy(np.asarray(array, np.float32))


def names(net, *shapes, dtype=np.float32):
    return [node.name for node in fuse(trace(net, shapes, dtype, queue())).nodes]


def hard_swish(x):
    gate = apply("clip(v, low, high)", v=apply("x + three", x=x, three=3.0), low=0, high=6)
    return apply("p / six", p=apply("x * g", x=x, g=gate), six=6.0)


def before_activation(x):
    c = x.shape[1]
    vectors = [constant(normal(c, seed=s)) for s in (1, 2, 3)] + [constant(np.linspace(0.5, 2, c))]
    y = functional.batch_norm(x, *vectors, training=False)
    y = functional.apply("x * s", x=y, s=constant(normal(1, c, 1, 1, seed=5)))
    return functional.relu(functional.apply("x + b", x=y, b=constant(normal(1, c, 1, 1, seed=6))))


def two_that_meet(x):
    left, right = apply("v = x * x; v + 1", x=x), functional.activate(x, "tanh")
    return left + right


@pytest.mark.parametrize("net", [hard_swish, before_activation, two_that_meet])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_chain_is_one_kernel(net, layout, dtype):
    if net is before_activation and dtype is np.float64:
        pytest.skip("its constants are float32")
    x = normal(2, 5, 7, 6).astype(dtype)
    assert names(net, x.shape, dtype=dtype) == ["apply"]
    built = inference.build(net, x.shape, dtype=dtype, layout=layout)
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)


def read_twice(x):
    y = apply("x * 2.0", x=x)
    return reduce("sum", "y", 1, y=y), apply("y + 1.0", y=y)


def another_shape(x):
    row = apply("exp(r)", r=x[:, :1])
    return apply("x + r", x=x, r=row)


def response_norm(x):
    """A global response norm's factors: few numbers, of which some broadcast to others."""
    norms = reduce("sum", "square(x)", (1, 2), keepdims=True, x=x)
    mean = apply("m + 1e-6", m=reduce("mean", "sqrt(n)", 3, keepdims=True, n=norms))
    return apply("sqrt(n) / m * b", n=norms, m=mean, b=apply("exp(b)", b=x[0, 0, :1, :1]))


def test_few_numbers_are_computed_again():
    x = normal(2, 5, 4, 8)
    assert names(response_norm, x.shape) == ["reduce", "reduce", "apply"]
    built = inference.build(response_norm, x.shape)
    np.testing.assert_allclose(built(x), response_norm(Tensor.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)


def another_type(x):
    whole = apply("round(x)", x=x, dtype=np.int32)
    return apply("x * 2", x=whole, dtype=np.float32)


def a_test(x):
    return apply("where(t, x, 0.5)", t=apply("x > 0.1", x=x), x=x)


@pytest.mark.parametrize(
    ("net", "left"),
    [
        (read_twice, ["apply", "reduce", "apply"]),
        (another_shape, ["apply", "apply"]),
        (another_type, ["apply", "apply"]),
        (a_test, ["apply", "apply"]),
    ],
)
def test_what_stays_apart(net, left):
    x = normal(65, 64)
    assert names(net, x.shape) == left
    built, wanted = inference.build(net, x.shape)(x), net(Tensor.from_numpy(x))
    pairs = zip(built, wanted, strict=True) if isinstance(wanted, tuple) else [(built, wanted)]
    for got, want in pairs:
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-6)


def test_a_convolution_takes_its_activation_first():
    w = constant(normal(4, 3, 1, 1))

    def net(x):
        return apply("y * 2.0", y=functional.relu(functional.convolution(x, w)))

    assert names(net, (1, 3, 5, 5)) == ["convolution", "apply"]


def test_pictures_stay_turned_through_sampling_and_broadcast_factors():
    """Squeezed factors, constants of a channel and resizing need no reorder in the other layout."""
    w = constant(normal(6, 6, 3, 3))

    def net(x):
        y = functional.convolution(x, w, padding=1)
        gate = functional.activate(functional.adaptive_avg_pool(y, 1), "sigmoid")
        y = apply("y * g + c", y=y, g=gate, c=constant(normal(1, 6, 1, 1)))
        y = sample(y, {2: (np.arange(14) // 2, None), 3: (np.arange(10) // 2, None)})
        return functional.convolution(y, w, padding=1)

    x = normal(2, 6, 7, 5)
    turned = inference.build(net, x.shape, layout="nhwc")
    assert [layer.name for layer in turned.layers].count("reorder") == 2
    np.testing.assert_allclose(turned(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mb", [1, 2])
def test_parts_of_a_value_may_begin_anywhere(mb):
    """Where a device lets no buffer begin, a part is copied."""
    w, t = constant(normal(4, 3, 3, 3)), constant(normal(3, 2, 2, 2))

    def net(x):
        part = apply("x * 2.0", x=x)[:, 2:5]
        return functional.convolution(part, w), functional.transposed_convolution(part, t), functional.max_pool(part, 2)

    x = normal(mb, 6, 7, 7)
    built = inference.build(net, x.shape)
    for got, want in zip(built(x), net(Tensor.from_numpy(x)), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


PER_CHANNEL = np.linspace(-2.5, 2.5, 6)


@pytest.mark.parametrize("text", ["y * s", "s * y", "y + s", "y - s", "s - y", "y / s"])
@pytest.mark.parametrize("scale", ["channels", "number", "one"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_constant_of_each_channel_is_folded(text, scale, layout):
    """Also behind a batch norm, and before a sum and an activation: layer scale is no launch."""
    w, b = constant(normal(6, 3, 3, 3)), constant(normal(6, seed=1))
    vectors = [constant(normal(6, seed=seed)) for seed in (2, 3, 4)] + [constant(np.linspace(0.5, 2, 6))]
    s = {"channels": constant(PER_CHANNEL.reshape(1, 6, 1, 1)), "number": 1.5, "one": constant([[-0.5]])}[scale]

    def net(x, r):
        y = functional.convolution(x, w, b, padding=1)
        y = functional.batch_norm(y, *vectors, training=False)
        return functional.relu(r + apply(text, y=y, s=s))

    x, r = normal(2, 3, 7, 5), normal(2, 6, 7, 5, seed=7)
    assert names(net, x.shape, r.shape) == ["convolution"]
    built = inference.build(net, x.shape, r.shape, layout=layout)
    np.testing.assert_allclose(built(x, r), net(*map(Tensor.from_numpy, (x, r))).numpy(), rtol=1e-4, atol=1e-4)


def test_a_linear_maps_views_take_in_scale_and_residual():
    """A transformer's branch: rows of a matrix product, seen with their images, times a layer scale, plus the input."""
    w, s = constant(normal(6, 6)), constant(PER_CHANNEL)

    def net(x):
        y = functional.linear(x.reshape(-1, 6), w).reshape(*x.shape)
        return apply("x + y", x=x, y=apply("y * s", y=y, s=s))

    x = normal(2, 5, 6)
    assert names(net, x.shape) == ["convolution"]
    built = inference.build(net, x.shape)
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_a_transposed_convolutions_scale_meets_its_groups_channels():
    w, s = constant(normal(4, 3, 2, 2)), constant(PER_CHANNEL.reshape(6, 1, 1))

    def net(x):
        return apply("y * s", y=functional.transposed_convolution(x, w, stride=2, groups=2), s=s)

    x = normal(1, 4, 5, 3)
    assert names(net, x.shape) == ["transposed_convolution"]
    built = inference.build(net, x.shape)
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("y * s", (1, 1, 6, 1), np.float32),  # of each row: there are as many as channels
        ("y * s", (6,), np.float32),  # of each column
        ("y * s", (1, 6, 6, 1), np.float32),
        ("y * s", (2, 1, 1, 1), np.float32),
        ("s / y", (1, 6, 1, 1), np.float32),
        ("y * s + y", (1, 6, 1, 1), np.float32),
        ("y * s", (1, 6, 1, 1), np.float16),  # a small factor would cost digits
    ],
)
def test_what_is_no_constant_of_each_channel_stays(text, shape, dtype):
    w = Tensor.from_numpy(normal(6, 3, 1, 1).astype(dtype))
    s = Tensor.from_numpy(normal(*shape, seed=5).astype(dtype))

    def net(x):
        return apply(text, y=functional.convolution(x, w), s=s)

    x = normal(2, 3, 6, 6).astype(dtype)
    assert names(net, x.shape, dtype=dtype) == ["convolution", "apply"]
    built = inference.build(net, x.shape, dtype=dtype)
    limit = 1e-2 if dtype == np.float16 else 1e-4
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=limit, atol=limit)


def test_constants_are_not_folded_into_weights_that_are_rounded():
    """A float32 net in float16: weights times 1e-6 would keep four bits of eleven."""
    w = constant(normal(6, 3, 1, 1))

    def net(x):
        return apply("y * s", y=functional.convolution(x, w), s=1e-6)

    net.parameters = lambda: [w]
    found = {
        dtype: [layer.name for layer in inference.build(net, (1, 3, 4, 4), dtype=dtype, layout="nchw").layers]
        for dtype in (np.float32, np.float16)
    }
    assert found == {np.float32: ["convolution"], np.float16: ["convolution", "apply"]}


def test_a_factor_without_a_bound_stays():
    """Its product with weights would be no number, where its product with a result is infinite."""
    w, s = constant(np.ones((2, 2, 1, 1))), constant(np.array([np.inf, 1]).reshape(1, 2, 1, 1))

    def net(x):
        return apply("y * s", y=functional.convolution(x, w), s=s)

    assert names(net, (1, 2, 3, 3)) == ["convolution", "apply"]


@pytest.mark.parametrize("channels", [32, 2])
def test_a_norm_takes_its_activation_in(channels):
    """In one kernel, and in several where there are fewer rows than a device has cores."""
    scale, shift = constant(normal(channels, seed=1)), constant(normal(channels, seed=2))

    def net(x):
        y = functional.relu(functional.group_norm(x, 1 if channels == 2 else 4, scale, shift))
        return functional.activate(functional.layer_norm(y, -1), "silu")

    x = normal(1, channels, 72, 72)
    assert names(net, x.shape) == ["grouped", "standardize"]
    built = inference.build(net, x.shape)
    np.testing.assert_allclose(built(x), net(Tensor.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-4)
