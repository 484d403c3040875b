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
    """As little as DLPack's protocol asks; older producers know no keywords."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, stream=None):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


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


@pytest.mark.parametrize("bare", ["x", "w", "bias", "residual", "out", "all"])
def test_objects_that_have_dlpack_alone(bare):
    given = {"x": X, "w": W, "bias": B, "residual": Y, "out": np.empty_like(Y)}
    expected = cd.conv(X, W, B, residual=Y)
    given = {name: Bare(array) if bare in (name, "all") else array for name, array in given.items()}
    out = given["out"]
    assert cd.conv(**given) is out
    assert np.array_equal(getattr(out, "values", out), expected)
    del given["out"]
    for _ in range(2):
        got = cd.conv(**given)
        assert type(got) is np.ndarray
        assert np.array_equal(got, expected)


def test_bare_objects_in_every_direction_and_of_any_strides():
    assert np.array_equal(cd.conv_backward_data(Bare(Y), Bare(W), X.shape), cd.conv_backward_data(Y, W, X.shape))
    assert np.array_equal(cd.conv_backward_weights(X, Bare(Y), W.shape), cd.conv_backward_weights(X, Y, W.shape))
    turned = np.ascontiguousarray(W.swapaxes(0, 1))
    assert np.array_equal(cd.conv_transpose(Bare(X), Bare(turned)), cd.conv_transpose(X, turned))
    assert np.array_equal(cd.conv(Bare(X[:, ::2]), Bare(W[:, 1:3])), cd.conv(X[:, ::2], W[:, 1:3]))
    with pytest.raises(InvalidArgument, match="which has __dlpack__ alone: import it first"):
        cd.conv(X, cd.constant(Bare(W)))


def test_a_bare_objects_memory_is_used_and_let_go():
    memory = np.zeros_like(Y)
    cd.conv(X, W, out=Bare(memory))
    assert np.array_equal(memory, Y)


def test_bare_objects_beside_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    got = cd.conv(torch.from_numpy(X), Bare(torch.from_numpy(W)))
    assert type(got) is torch.Tensor
    assert np.array_equal(got.numpy(), Y)


def test_a_bare_object_on_a_device_is_named():
    class Away(Bare):
        def __dlpack_device__(self):
            return 2, 1

    with pytest.raises(InvalidArgument, match=r"lies on DLPack's device \(2, 1\): import it by its device's library"):
        cd.conv(Away(X), W)


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
