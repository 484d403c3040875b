"""Filled tensors and concatenation, against NumPy."""

import numpy as np
import pytest
from small_net import normal

from convdispatch.elementwise import apply, concatenate, concatenation_buffer, fill, full
from convdispatch.tensor import Tensor


def test_filling(queue):
    tensor = full((4, 6), 2.5, queue=queue)
    fill(tensor[1:3, ::2], -1)
    expected = np.full((4, 6), np.float32(2.5))
    expected[1:3, ::2] = -1
    np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenation(queue, axis):
    parts = [normal(*[n if a == axis % 3 else 4 for a in range(3)], seed=n) for n in (2, 1, 3)]
    tensors = [Tensor.from_numpy(part, queue) for part in parts]
    np.testing.assert_array_equal(concatenate(tensors, axis).numpy(), np.concatenate(parts, axis))
    whole, views = concatenation_buffer([part.shape for part in parts], axis, queue=queue)
    for view, tensor in zip(views, tensors, strict=True):
        apply("x", x=tensor, out=view)
    np.testing.assert_array_equal(whole.numpy(), np.concatenate(parts, axis))
    again = concatenate(views, axis)
    assert again.base_data is whole.base_data  # no copy: the views are neighbours already
    np.testing.assert_array_equal(again.numpy(), whole.numpy())
    swapped = concatenate(views[::-1], axis)
    assert swapped.base_data is not whole.base_data
    np.testing.assert_array_equal(swapped.numpy(), np.concatenate(parts[::-1], axis))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis", "sizes", "starts"),
    [
        ((3, 0, 7, 64), 1, (2, 5, 1, 3), (0, 0, 0, 0)),
        ((3, 0, 5, 67), 1, (2, 5, 1, 3), (0, 0, 0, 0)),
        ((3, 0, 8, 64), 1, (2, 5), (64, 1)),  # one begins elsewhere
        ((0, 400), 0, (1, 2, 0, 3), (0, 16, 0, 5)),  # one row; a tensor without elements
        ((500, 0), 1, (300, 2, 1200), (0, 0, 0)),
        ((4, 0, 90), 1, (1,) * 8, (0,) * 8),
        ((9, 0), 1, (3, 4), (0, 0)),
    ],
)
def test_concatenation_of_every_size(queue, shape, axis, sizes, starts, dtype):
    tensors, arrays = [], []
    for i, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        sizes_of = (*shape[:axis], size, *shape[axis + 1 :])
        array = (normal(start + int(np.prod(sizes_of)), seed=i) * 30).astype(dtype)
        arrays.append(array[start:].reshape(sizes_of))
        tensors.append(Tensor.from_numpy(array, queue)[start:].reshape(sizes_of))
    got = concatenate(tensors, axis).numpy()
    assert got.tobytes() == np.concatenate(arrays, axis).tobytes()
