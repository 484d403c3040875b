"""What a call takes for an array, and what it refuses: masks, objects that have DLPack alone, NumPy's beside JAX's."""

from __future__ import annotations

import numpy as np
import pytest

import convdispatch as cd
from convdispatch import InvalidArgument

X = np.random.default_rng(0).standard_normal((2, 4, 6, 6), np.float32)
W = np.random.default_rng(1).standard_normal((8, 4, 3, 3), np.float32)
B = np.arange(8, dtype=np.float32)
Y = cd.conv(X, W)


class Bare:
    """As little as DLPack's protocol asks."""

    def __dlpack__(self, stream=None):
        return X.__dlpack__()

    def __dlpack_device__(self):
        return X.__dlpack_device__()


def masked(values):
    return np.ma.masked_array(values, mask=values > 0)


@pytest.mark.parametrize("name", ["x", "w", "bias", "residual", "out", "constant"])
def test_masks_are_refused(name):
    given = {"x": X, "w": W, "bias": B, "residual": Y, "out": np.empty_like(Y)}
    cd.conv(**given)  # calls of plain arrays are known by now
    if name == "constant":
        given["w"] = cd.constant(masked(W))
    else:
        given[name] = masked(given[name])
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="an array without a mask, got a masked array"):
            cd.conv(**given)


def test_masked_gradients_and_bytes_are_refused():
    with pytest.raises(InvalidArgument, match="dy must be an array without a mask"):
        cd.conv_backward_data(masked(Y), W, X.shape)
    with pytest.raises(InvalidArgument, match="x must be an array without a mask"):
        cd.conv(masked(np.ones((1, 4, 5, 5), np.uint8)), np.ones((4, 4, 1, 1), np.int8), quantization=cd.Quantization())


@pytest.mark.parametrize("bare", ["x", "w", "bias", "residual", "out", "constant"])
def test_objects_that_have_dlpack_alone_are_refused(bare):
    given = {"x": X, "w": W, "bias": B, "residual": Y, "out": np.empty_like(Y)}
    cd.conv(**given)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="got Bare"):
            cd.constant(Bare()) if bare == "constant" else cd.conv(**given | {bare: Bare()})
    if bare in ("x", "w"):
        with pytest.raises(InvalidArgument, match=rf"^{bare} must be .*numpy.from_dlpack makes an array"):
            cd.conv_transpose(**{"x": X, "w": W, bare: Bare()})


def test_numpys_arrays_beside_jaxs():
    jax = pytest.importorskip("jax", reason="jax is not installed (extra: jax)")
    x, w = jax.numpy.asarray(X), jax.numpy.asarray(W)
    expected = cd.conv(X, W, B)
    for _ in range(2):
        for got in (cd.conv(x, W, B), cd.conv(x, w, B), cd.conv(x, cd.constant(W), B)):
            assert isinstance(got, jax.Array)
            assert np.allclose(got, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidArgument, match="w must be a jaxlib array as x is"):
        cd.conv(x, W.astype(np.float64))
