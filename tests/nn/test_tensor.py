"""Tensors against NumPy: views are the same memory seen the same way, copies are the same values."""

import sys

import numpy as np
import pytest

from convdispatch.api.errors import InvalidArgument
from convdispatch.calls.arrays import interchange
from convdispatch.device import runtime
from convdispatch.device.programs.strided_copy import copy_strided
from convdispatch.tensor import Tensor


def both(queue, shape: tuple[int, ...] = (2, 3, 4, 5), dtype: str = "float32") -> tuple[np.ndarray, Tensor]:
    """An array of distinct values, and its tensor."""
    array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(dtype)
    return array, Tensor.from_numpy(array, queue)


def same(tensor: Tensor, array: np.ndarray) -> None:
    """Values, shape and dtype agree; strides too wherever an axis has more than one element."""
    assert tensor.shape == array.shape
    assert tensor.dtype == array.dtype
    assert tensor.ndim == array.ndim
    assert tensor.size == array.size
    assert tensor.nbytes == array.nbytes
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "int8", "complex64", "?"])
def test_values_survive_the_device(queue, dtype):
    array, tensor = both(queue, dtype=dtype)
    same(tensor, array)
    assert tensor.contiguous
    assert tensor.strides == array.strides


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1, 1, 1)])
def test_small_shapes(queue, shape):
    array, tensor = both(queue, shape)
    same(tensor, array)
    same(tensor.copy(), array)


def test_from_numpy_takes_what_numpy_reads_and_copies_it(queue):
    same(Tensor.from_numpy([[1.0, 2.0], [3.0, 4.0]], queue), np.array([[1.0, 2.0], [3.0, 4.0]]))
    array, _ = both(queue)
    same(Tensor.from_numpy(array.transpose(3, 1, 0, 2), queue), array.transpose(3, 1, 0, 2))
    tensor = Tensor.from_numpy(array, queue)
    kept = array.copy()
    array[...] = -1
    same(tensor, kept)


def test_numpy_gets_values_where_it_cannot_view_the_memory(queue, monkeypatch):
    """As on a GPU, whose memory has no array interface of the host's."""

    def none(tensor):
        raise AttributeError("the memory is not the host's")

    monkeypatch.setattr(interchange, "array_interface", none)
    array, tensor = both(queue)
    for view, expected in ((tensor, array), (tensor[1, ..., ::-2], array[1, ..., ::-2]), (tensor[0, 0, 0, 0], 0)):
        got = np.asarray(view)
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, expected)
    assert np.asarray(tensor, np.float64).dtype == np.float64
    assert np.mean(tensor) == array.mean()
    same(Tensor.from_numpy(tensor, queue), array)
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.exp(tensor)  # rather than one element at a time
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.add(array, tensor)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="is a copy"):
            np.asarray(tensor, copy=False)


VIEWS = {
    "one": lambda a: a[1],
    "negative": lambda a: a[-1, -2],
    "all": lambda a: a[1, 2, 3, 4],
    "slice": lambda a: a[:, 1:3, ::2, -2:],
    "backwards": lambda a: a[::-1, :, 3:0:-2],
    "empty": lambda a: a[2:, 3:1],
    "beyond": lambda a: a[:100, -100:2],
    "dots": lambda a: a[..., 2],
    "dots between": lambda a: a[0, ..., ::-1],
    "new axes": lambda a: a[None, :, 1, ..., None],
    "index of an index": lambda a: a[1:][0][::2][:, 1][1],
    "numpy integer": lambda a: a[np.int64(1)],
    "transposed": lambda a: a.transpose(),
    "permuted": lambda a: a.transpose(0, 2, 3, 1),
    "permuted by a tuple": lambda a: a.transpose((0, -1, 1, 2))[:, 1:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(queue, name):
    array, tensor = both(queue)
    view, expected = VIEWS[name](tensor), VIEWS[name](array)
    assert view.base_data is tensor.base_data
    same(view, expected)
    copied = view.copy()
    same(copied, expected)
    assert copied.contiguous
    assert copied.offset == 0
    assert copied.base_data is not tensor.base_data
    assert view.contiguous == expected.flags.c_contiguous or not view.size


@pytest.mark.parametrize("shape", [(120,), (6, 20), (2, -1), (-1,), (2, 3, 4, 5, 1)])
def test_reshape(queue, shape):
    array, tensor = both(queue)
    same(tensor.reshape(*shape), array.reshape(shape))
    same(tensor.reshape(shape), array.reshape(shape))
    same(tensor[1].reshape(3, 20), array[1].reshape(3, 20))


def test_expand(queue):
    array, tensor = both(queue, (3, 1, 2))
    same(tensor.expand(3, 4, 2), np.broadcast_to(array, (3, 4, 2)))
    same(tensor.expand(5, 3, 4, 2), np.broadcast_to(array, (5, 3, 4, 2)))
    same(tensor.expand(5, 3, 4, 2).copy(), np.broadcast_to(array, (5, 3, 4, 2)))
    assert not tensor.expand(3, 4, 2).contiguous


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((4097, 2), lambda a: a.transpose(1, 0)),  # a work item's run ends within a row
        ((2, 4096), lambda a: a.transpose(1, 0)),
        ((3, 1365), lambda a: a.transpose(1, 0)),  # one element less than a run
        ((3, 5, 41, 43), lambda a: a.transpose(0, 2, 3, 1)),
        ((2, 31, 31, 5), lambda a: a.transpose(0, 3, 1, 2)),
        ((3, 20, 9, 25), lambda a: a[:, 3:15]),  # axes that continue each other
        ((3, 20, 9, 25), lambda a: a[:, ::-1, ::2, 1:]),
        ((9000,), lambda a: a[::-1]),
        ((9000,), lambda a: a[8999:100:-3]),
        ((1, 70, 1, 70, 1), lambda a: a.transpose(3, 4, 2, 0, 1)),
        ((1, 1, 3), lambda a: a[..., :1].transpose(2, 0, 1)),
    ],
)
def test_strided_copies_leave_what_lies_beyond(queue, shape, view):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    given, wanted = view(Tensor.from_numpy(array, queue)), view(array)
    target = Tensor.from_numpy(np.full(wanted.size + 64, np.nan, np.float32), queue)
    copy_strided(queue, given.base_data, given.offset, given.shape, given.strides, 4, target.base_data)
    got = target.numpy()
    np.testing.assert_array_equal(got[: wanted.size].reshape(wanted.shape), wanted)
    assert np.isnan(got[wanted.size :]).all()


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "complex128"])
def test_strided_copies_of_eight_axes(queue, dtype):
    array, tensor = both(queue, (2, 3, 1, 2, 3, 2, 1, 2), dtype)
    order = (5, 1, 7, 0, 4, 2, 6, 3)
    same(tensor.transpose(order).copy(), array.transpose(order))
    same(tensor[..., ::-1].copy(), array[..., ::-1])
    with pytest.raises(InvalidArgument, match="up to 8 axes"):
        tensor[None].transpose().copy()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda t: t.reshape(7, 17), "number of elements"),
        (lambda t: t.reshape(-1, -1), "number of elements"),
        (lambda t: t.reshape(-1, 7), "number of elements"),
        (lambda t: t.reshape("ab"), "expected integers"),
        (lambda t: t.transpose().reshape(120), "contiguous"),
        (lambda t: t.transpose(0, 1, 2), "each of 4 axes"),
        (lambda t: t.transpose(0, 1, 2, 2), "each of 4 axes"),
        (lambda t: t.expand(2, 3, 4, 6), "cannot expand"),
        (lambda t: t.expand(5), "cannot expand"),
        (lambda t: t[0, 0, 0, 0, 0], "too many indices"),
        (lambda t: t[..., ...], "too many indices"),
        (lambda t: t[1.5], "an index is"),
        (lambda t: t[True], "an index is"),
        (lambda t: t["x"], "an index is"),
        (lambda t: Tensor.empty((2, -1), queue=t.queue), "0 or more"),
        (lambda t: Tensor.from_numpy(np.array([object()]), t.queue), "numbers"),
    ],
)
def test_errors_say_what_was_expected(queue, wrong, words):
    _, tensor = both(queue)
    with pytest.raises(InvalidArgument, match=words):
        wrong(tensor)


def test_an_index_out_of_range_ends_iteration(queue):
    array, tensor = both(queue, (3, 2))
    with pytest.raises(IndexError):
        tensor[3]
    with pytest.raises(IndexError):
        tensor[-4]
    assert len(tensor) == 3
    for row, expected in zip(tensor, array, strict=True):
        same(row, expected)
    with pytest.raises(TypeError):
        len(tensor[0, 0])


def test_same_names_as_pyopencl_arrays(queue):
    import pyopencl.array

    array, tensor = both(queue)
    theirs = pyopencl.array.to_device(tensor.queue, array)
    for name in ("shape", "strides", "dtype", "offset", "ndim", "size", "nbytes", "context", "queue"):
        assert getattr(tensor, name) == getattr(theirs, name), name
    assert type(tensor.base_data).__name__ == "PooledBuffer"


def test_a_tensor_costs_about_a_microsecond(queue):
    """One function, which calls none, whatever a busy machine takes for it."""
    _, tensor = both(queue)
    memory, shape, dtype = tensor.base_data, tensor.shape, tensor.dtype
    called = []
    sys.setprofile(lambda frame, event, given: called.append(event) if event in ("call", "c_call") else None)
    try:
        Tensor(memory, shape, dtype, queue)
    finally:
        sys.setprofile(None)
    assert len(called) == 2, "its __init__, and the end of counting"
    with pytest.raises(AttributeError):
        tensor.anything = 1


def test_the_default_queue_is_this_threads(device):
    tensor = Tensor.empty((2, 3))
    assert tensor.queue == runtime.queue()
    assert "Tensor((2, 3), float32" in repr(tensor)
