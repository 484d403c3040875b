"""Sampling by tables, gathering by indices, products, places of the largest: against NumPy."""

import numpy as np
import pytest
from small_net import normal

from convdispatch.api.errors import InvalidArgument
from convdispatch.elementwise import argmax, reduce, sample, selecting, take, take_along_axis, topk
from convdispatch.tensor import Tensor


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("view", [False, True])
def test_indices_move_elements_as_they_are(dtype, view):
    x = (normal(3, 5, 4, 7) * 50).astype(dtype)
    rows, columns = np.array([4, 0, 0, -1, 2]), np.array([6, 6, 3])
    given = Tensor.from_numpy(x)
    given, x = (given.transpose(2, 1, 0, 3), x.transpose(2, 1, 0, 3)) if view else (given, x)
    got = sample(given, {1: (rows, None), -1: (columns, None)}, 1).numpy()
    wanted = x[:, np.maximum(rows, 0)][..., columns].copy()
    wanted[:, rows < 0] = 1
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_weights_sum_in_float32_or_wider(dtype):
    x = normal(2, 3, 6).astype(dtype)
    index = np.random.default_rng(1).integers(0, 6, (9, 3))
    weight = np.random.default_rng(2).standard_normal((9, 3))
    got = sample(Tensor.from_numpy(x), {2: (index, weight), 1: (np.array([2, -1]), None)}, np.nan).numpy()
    wanted = (x.astype(np.float64)[:, [2, 2]][..., index] * weight).sum(-1)
    wanted[:, 1] = np.nan
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=1e-3 if dtype == "float16" else 1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 40, 5, 7), (2, 31, 5, 7), (130, 7), (3, 64, 1, 2)])
def test_short_rows_are_sampled_together(shape):
    x, random = normal(*shape), np.random.default_rng(3)
    wanted, tables = x.astype(np.float64), {}
    for axis, size in ((-1, 9), (-2, 6)):
        index, weight = random.integers(0, shape[axis], (size, 2)), random.standard_normal((size, 2))
        tables[axis] = index, weight
        moved = np.moveaxis(wanted, axis, -1)
        wanted = np.moveaxis((moved[..., index] * weight).sum(-1), -1, axis)
    given = Tensor.from_numpy(np.concatenate([x[:1], x]))[1:]  # memory that begins elsewhere
    np.testing.assert_allclose(sample(given, tables).numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_take(axis, index):
    x, places = normal(4, 5, 6), np.array([[3, -1], [0, -4]], index)
    given = Tensor.from_numpy(x)
    np.testing.assert_array_equal(take(given, Tensor.from_numpy(places), axis).numpy(), np.take(x, places, axis))
    along = np.random.default_rng(0).integers(-4, 4, (4, 5, 6)).astype(index)
    got = take_along_axis(given, Tensor.from_numpy(along), axis).numpy()
    np.testing.assert_array_equal(got, np.take_along_axis(x, along, axis))
    assert take(given, Tensor.from_numpy(np.array([99, -99], index)), axis).numpy().shape[axis] == 2  # and no crash


def test_a_place_without_a_number_is_an_extreme():
    x = normal(4, 9)
    x[[0, 1, 1, 2], [0, 3, 5, 8]] = np.nan
    given = Tensor.from_numpy(x)
    for largest, theirs in ((True, np.argmax), (False, np.argmin)):
        np.testing.assert_array_equal(argmax(given, 1, largest=largest).numpy(), theirs(x, 1))
        got = argmax(given, 1, largest=largest, last=True).numpy()
        np.testing.assert_array_equal(got, 8 - theirs(x[:, ::-1], 1))


@pytest.mark.parametrize("shape", [(1, 7), (5, 3, 9), (40, 2)])
@pytest.mark.parametrize("axis", [0, -1])
def test_places_of_the_largest_and_smallest(shape, axis):
    x = np.round(normal(*shape))  # with equal ones
    given = Tensor.from_numpy(x)
    np.testing.assert_array_equal(argmax(given, axis).numpy(), x.argmax(axis))
    np.testing.assert_array_equal(
        argmax(given, axis, largest=False, keepdims=True).numpy(), x.argmin(axis, keepdims=True)
    )
    backward = x.shape[axis] - 1 - np.flip(x, axis).argmax(axis)
    np.testing.assert_array_equal(argmax(given, axis, last=True).numpy(), backward)
    k = min(4, x.shape[axis])
    for sign, largest in ((-1, True), (1, False)):
        values, places = topk(given, k, axis, largest=largest)
        wanted = np.take(np.argsort(sign * x, axis, kind="stable"), range(k), axis)
        np.testing.assert_array_equal(places.numpy(), wanted)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, wanted, axis))


def test_topk_of_long_rows_goes_piece_by_piece(monkeypatch):
    monkeypatch.setattr(selecting, "_MOST", 64)
    x = np.round(normal(3, 1001) * 20)
    values, places = topk(Tensor.from_numpy(x), 30)
    wanted = np.argsort(-x, -1, kind="stable")[:, :30]
    np.testing.assert_array_equal(places.numpy(), wanted)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, wanted, -1))


def test_nan_is_largest_and_every_place_is_written():
    x = np.float32([[1, np.nan, 3, np.nan, 2]])
    _, places = topk(Tensor.from_numpy(x), 5)
    np.testing.assert_array_equal(places.numpy(), [[1, 3, 2, 4, 0]])


def test_products():
    x = normal(3, 4, 5)
    np.testing.assert_allclose(reduce("prod", "x", (0, 2), x=Tensor.from_numpy(x)).numpy(), x.prod((0, 2)), rtol=1e-5)
    whole = np.arange(1, 9, dtype=np.int32).reshape(2, 4)
    np.testing.assert_array_equal(reduce("prod", "x", 1, x=Tensor.from_numpy(whole)).numpy(), whole.prod(1))
    np.testing.assert_array_equal(reduce("prod", "x", 1, x=Tensor.from_numpy(normal(2, 0))).numpy(), [1, 1])


def test_what_does_not_fit_is_said():
    x = Tensor.from_numpy(normal(3, 4))
    with pytest.raises(InvalidArgument, match="index along axis 1 of 4 elements is -1 to 3, got 0 to 4"):
        sample(x, {1: (np.array([0, 4]), None)})
    with pytest.raises(InvalidArgument, match="indices must be integers, got float32"):
        take(x, x, 0)
    with pytest.raises(InvalidArgument, match="k is 0 to 4"):
        topk(x, 5)
    with pytest.raises(InvalidArgument, match="at least one element along axis 1"):
        argmax(Tensor.from_numpy(normal(3, 0)), 1)
