"""Group, instance and layer norms by one kernel: any widths, views, types, hostile numbers; and by more where it is."""

import numpy as np
import pytest

from convdispatch.api.errors import InvalidArgument
from convdispatch.nn import Tape, functional
from convdispatch.nn.normalization import row_norm as module
from convdispatch.nn.normalization.row_norm import row_norm
from convdispatch.tensor import Tensor


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def exact(x, width, each, scale, shift, epsilon=1e-5):
    rows = x.astype(np.float64).reshape(-1, width)
    y = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + epsilon)
    spread = [np.resize(np.repeat(v.astype(np.float64), each), x.size).reshape(rows.shape) for v in (scale, shift)]
    return (y * spread[0] + spread[1]).reshape(x.shape)


@pytest.mark.parametrize("width", [1, 2, 15, 16, 31, 32, 33, 100, 257])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_any_width(width, dtype):
    x, scale, shift = (normal(*s, seed=n).astype(dtype) for n, s in enumerate([(7, width), (width,), (width,)]))
    limit = 2e-6 if dtype == "float32" else 1e-14
    wanted = exact(x, width, 1, scale, shift)
    for activation, y in ((None, wanted), ("silu", wanted / (1 + np.exp(-wanted)))):
        affine = Tensor.from_numpy(scale), Tensor.from_numpy(shift)
        got = row_norm(Tensor.from_numpy(x), width, 1, affine, 1e-5, activation)
        np.testing.assert_allclose(got.numpy(), y, rtol=limit, atol=4 * limit)


@pytest.mark.parametrize(("channels", "groups", "space"), [(6, 6, 5), (6, 2, 40), (8, 4, 33), (32, 8, 1), (4, 1, 16)])
@pytest.mark.parametrize("affine", ["both", "scale", "shift", "none"])
def test_groups_of_channels(channels, groups, space, affine):
    x, scale, shift = (
        normal(*s, seed=n).astype("f4") for n, s in enumerate([(3, channels, space), *[(channels,)] * 2])
    )
    has = affine in ("both", "scale"), affine in ("both", "shift")
    given = [Tensor.from_numpy(v) if there else None for v, there in zip((scale, shift), has, strict=True)]
    width = channels // groups * space
    got = row_norm(Tensor.from_numpy(x), width, space, tuple(given), 1e-5, None)
    told = [v if there else np.full_like(v, one) for v, there, one in zip((scale, shift), has, (1, 0), strict=True)]
    wanted = exact(x, width, space, *told)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-6, atol=8e-6)
    activated = row_norm(Tensor.from_numpy(x), width, space, tuple(given), 1e-5, "leaky_relu(0.1)")
    np.testing.assert_allclose(activated.numpy(), np.where(wanted < 0, 0.1 * wanted, wanted), rtol=2e-6, atol=8e-6)
    if groups == channels and affine == "both":
        whole = functional.group_norm(Tensor.from_numpy(x), groups, *given)
        np.testing.assert_array_equal(whole.numpy(), got.numpy())


def test_views_are_read_and_nothing_else_is_written():
    held = normal(12, 40).astype("f4")
    x = Tensor.from_numpy(held)[2:9]
    scale = Tensor.from_numpy(normal(80, seed=1).astype("f4"))[17:57]
    got = functional.layer_norm(x, -1, scale)
    wanted = exact(held[2:9], 40, 1, scale.numpy(), np.zeros(40))
    np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-6, atol=8e-6)
    crossed = Tensor.from_numpy(held).transpose(1, 0)
    wanted = exact(held.T.copy(), 12, 1, np.ones(12), np.zeros(12))
    np.testing.assert_allclose(functional.layer_norm(crossed).numpy(), wanted, rtol=2e-6, atol=8e-6)


@pytest.mark.parametrize(("offset", "factor"), [(1e4, 1.0), (0.0, 1e-15), (0.0, 1e15), (-3e6, 1e3)])
def test_hostile_numbers(offset, factor):
    """A mean that is large beside the spread costs the digits that x itself lacks, and no more."""
    x = (normal(5, 300) * factor + offset).astype("f4")
    got = functional.layer_norm(Tensor.from_numpy(x), epsilon=0.0 if factor == 1e-15 else 1e-5).numpy()
    wanted = exact(x, 300, 1, np.ones(300), np.zeros(300), 0.0 if factor == 1e-15 else 1e-5)
    spread = float(x.astype(np.float64).std())
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 + 4 * 2.0**-24 * abs(offset) / spread)


def test_what_is_not_one_kernel_is_more_of_them(monkeypatch):
    x, scale = normal(4, 6, 5), normal(6, seed=1)
    one = functional.group_norm(Tensor.from_numpy(x), 3, Tensor.from_numpy(scale)).numpy()
    given = Tensor.from_numpy(x)
    with Tape() as tape:
        tape.watch(given)
        recorded = functional.group_norm(given, 3, Tensor.from_numpy(scale))
    np.testing.assert_allclose(recorded.numpy(), one, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(module, "_FEW", 0)
    few = functional.layer_norm(Tensor.from_numpy(x.reshape(1, -1)), -1)
    np.testing.assert_allclose(few.numpy(), exact(x.reshape(1, -1), 120, 1, np.ones(1), np.zeros(1)), atol=1e-12)
    with pytest.raises(InvalidArgument, match="6 elements, one a channel"):
        functional.group_norm(Tensor.from_numpy(x), 3, Tensor.from_numpy(scale[:4]))
