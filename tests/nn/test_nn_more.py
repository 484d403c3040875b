"""Matrix products, normalisation by own statistics, pooling of one to three axes: against float64 in NumPy."""

import numpy as np
import pytest
from pooling import windows
from small_net import normal

from convdispatch.api.errors import InvalidArgument
from convdispatch.nn import functional
from convdispatch.tensor import Tensor


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 7), (7, 3)),
        ((1, 1), (1, 1)),
        ((4, 5, 7), (7, 3)),
        ((5, 7), (4, 7, 3)),
        ((2, 3, 5, 7), (2, 3, 7, 4)),
        ((2, 1, 5, 7), (3, 7, 4)),
        ((7,), (7, 3)),
        ((2, 5, 7), (7,)),
        ((7,), (7,)),
        ((2, 0, 7), (7, 3)),
        ((2, 3, 0), (0, 4)),
    ],
    ids=str,
)
def test_matmul(left, right):
    x, y = normal(*left), normal(*right, seed=1)
    got = functional.matmul(Tensor.from_numpy(x), Tensor.from_numpy(y)).numpy()
    wanted = np.matmul(x.astype(np.float64), y)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_matmul_of_turned_matrices():
    x, y = normal(3, 6, 4), normal(3, 5, 6, seed=1)
    got = functional.matmul(Tensor.from_numpy(x).transpose(0, 2, 1), Tensor.from_numpy(y).transpose(0, 2, 1)).numpy()
    np.testing.assert_allclose(got, x.transpose(0, 2, 1) @ y.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidArgument, match=r"x \[..., m, k\] and y \[..., k, n\]"):
        functional.matmul(Tensor.from_numpy(x), Tensor.from_numpy(y))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("space", [(4, 5), (7,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_group_norm(groups, space, offset):
    """A large mean costs no digits of the variance."""
    x = normal(3, 6, *space) + np.float32(offset)
    scale, shift = normal(6, seed=1), normal(6, seed=2)
    got = functional.group_norm(
        *(Tensor.from_numpy(t) if isinstance(t, np.ndarray) else t for t in (x, groups, scale, shift))
    )
    wide = x.astype(np.float64).reshape(3, groups, -1)
    normed = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    along = (1, 6, *[1] * len(space))
    wanted = normed.reshape(x.shape) * scale.reshape(along) + shift.reshape(along)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=6e-4 if offset else 1e-5)


@pytest.mark.parametrize("kind", ["max", "average", "average, padding counts", "lp"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "dilation"),
    [
        ((11,), (3,), (2,), [(1, 0)], (1,)),
        ((12,), (4,), (1,), [(3, 2)], (2,)),
        ((9, 19), (3, 2), (2, 1), [(0, 1), (1, 0)], (1, 1)),
        ((23, 17), (3, 3), (1, 2), [(2, 1), (0, 2)], (2, 1)),
        ((6, 7, 8), (2, 3, 3), (2, 1, 2), [(0, 1), (1, 1), (0, 2)], (1, 1, 2)),
    ],
    ids=str,
)
def test_pooling_of_one_to_three_axes(kind, size, kernel, stride, pads, dilation):
    x = normal(2, 3, *size)
    options = {"dilation": dilation}
    seen, inside = windows(x, kernel, stride, pads, dilation, -np.inf if kind == "max" else 0)
    if kind == "max":
        wanted = seen.max(-1)
    elif kind == "lp":
        wanted, options = np.sqrt((seen**2).sum(-1)), options | {"p": 2}
    else:
        taps = inside.shape[-1] if "counts" in kind else inside.sum(-1)
        wanted, options = seen.sum(-1) / taps, options | {"count_include_pad": "counts" in kind}
    name = kind.partition(",")[0]
    got = functional.pool(name, Tensor.from_numpy(x), kernel, stride, pads, **options).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "kernel", "pads"), [((9, 19), (3, 3), 1), ((40, 33), (16, 9), 0)])
@pytest.mark.parametrize("column_major", [False, True])
def test_places_of_the_largest(size, kernel, pads, column_major):
    x = normal(2, 3, *size)
    y, places = functional.max_pool_with_places(Tensor.from_numpy(x), kernel, 2, pads, column_major=column_major)
    flat = (x.transpose(0, 1, 3, 2) if column_major else x).reshape(-1)
    np.testing.assert_array_equal(flat[places.numpy()], y.numpy())
    np.testing.assert_array_equal(y.numpy(), functional.max_pool(Tensor.from_numpy(x), kernel, 2, pads).numpy())


def test_pads_as_large_as_a_window_are_refused():
    with pytest.raises(InvalidArgument, match="smaller than the window of 2"):
        functional.max_pool(Tensor.from_numpy(normal(1, 1, 4, 4)), 2, 1, ((2, 0), (0, 0)))
