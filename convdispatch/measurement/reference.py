"""Turns arrays into a convolution in NumPy float64, in every direction: the oracle of tests and of ``find``, no solver.

The convolution is a sum over kernel taps. For one tap the outputs ``o`` that read inside the input form a range, and
the inputs they read, ``i = o s - p + k d``, a strided slice of the same length; so each tap is one matrix product of
two slices, the same two in all three directions. Nothing here is shared with any kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..api.activations import apply_activation
from ..api.dtypes import HEADER
from ..api.errors import InvalidArgument
from . import quantized

if TYPE_CHECKING:
    from ..api.problem import ConvProblem

_GATHER = 1 << 22
"""The most elements that ``sample`` gathers in one step (32 MB in float64)."""


def compute(problem: ConvProblem, **operands: np.ndarray | None) -> np.ndarray:
    """The tensor that ``problem.direction`` writes, float64, in the problem's layout.

    ``operands`` are ``x``, ``w`` and ``y``, of which the written one is not read, ``bias``, ``residual``, and
    ``initial``: what the output holds before, for a problem that accumulates. Each has the problem's shape for it.
    Raises InvalidArgument for a missing operand or a wrong shape.
    """
    operands = _centred(problem, operands)
    read = {name: _operand(problem, name, operands.get(name)) for name in "xwy" if name != problem.written}
    directions = {"fwd": _forward, "bwd_data": _backward_data, "bwd_weights": _backward_weights}
    sums = _external(problem, directions[problem.direction](problem, **read), problem.out_shape)
    return _finished(problem, sums, operands)


def _centred(problem: ConvProblem, operands: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
    """The operands; a quantized convolution's x less its zero point."""
    if not problem.quantized:
        return operands
    table = _table(problem, operands.get("bias"))
    return operands | {"x": quantized.centred(_shaped(problem, "x", operands.get("x"), problem.x_shape), table)}


def _finished(
    problem: ConvProblem, sums: np.ndarray, operands: dict[str, np.ndarray | None], at: np.ndarray | None = None
) -> np.ndarray:
    """The sums through the epilogue: all of them, or those of the flat indices ``at``."""
    where = None if at is None else np.unravel_index(at, problem.out_shape)
    channel = None if where is None else where[1 if problem.layout == "nchw" else -1]

    # ``along`` shapes per-channel numbers to broadcast along the written tensor, or returns the sampled elements'.
    def along(numbers: np.ndarray) -> np.ndarray:
        return _bias(problem, numbers) if channel is None else numbers[channel]

    def added(name: str) -> np.ndarray:
        array = _shaped(problem, name, operands.get(name), problem.out_shape)
        return array if at is None else array.reshape(-1)[at]

    if problem.quantized:
        residual = added("residual") if problem.residual else None
        return quantized.finished(problem, sums, _table(problem, operands.get("bias")), along, residual)
    result = sums
    if problem.bias:
        result = result + along(_given(problem, "bias", operands.get("bias"), (problem.channels_out,)))
    if problem.residual:
        result = result + added("residual").astype(np.float64)
    result = apply_activation(problem.activation, result)
    return result + added("initial").astype(np.float64) if problem.accumulate else result


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """``||got - expected|| / ||expected||`` in float64; infinite where ``got`` holds a NaN or infinity."""
    got, expected = np.asarray(got).astype(np.float64), np.asarray(expected).astype(np.float64)
    if not np.isfinite(got).all():
        return float("inf")
    difference, size = np.linalg.norm((got - expected).ravel()), np.linalg.norm(expected.ravel())
    if size == 0:
        return 0.0 if difference == 0 else float("inf")
    return float(difference / size)


# --- the whole tensor: internally x is [mb, ic, id, ih, iw], and w and y likewise ------------------------------------


class _Tap(NamedTuple):
    """One kernel tap: its place in w, and the slices of x and y that it joins, each of shape (d, h, w)."""

    kernel: tuple[int, int, int]
    x: tuple[slice, slice, slice]
    y: tuple[slice, slice, slice]


def _taps(problem: ConvProblem) -> Iterator[_Tap]:
    """Every tap that joins at least one pair of elements."""
    kernel = (problem.kd, problem.kh, problem.kw)
    for place in itertools.product(*map(range, kernel)):
        spans = [_span(problem, axis, k) for axis, k in zip("dhw", place, strict=True)]
        if all(span is not None for span in spans):
            yield _Tap(place, tuple(span[0] for span in spans), tuple(span[1] for span in spans))


def _span(problem: ConvProblem, axis: str, k: int) -> tuple[slice, slice] | None:
    """The inputs and outputs along one axis that tap ``k`` joins: i = o s + first, 0 <= i < size, 0 <= o < outputs."""
    stride, size, outputs = (getattr(problem, letter + axis) for letter in "sio")
    first = k * getattr(problem, "d" + axis) - getattr(problem, "p" + axis)
    low = max(0, -(first // stride))
    high = min(outputs - 1, (size - 1 - first) // stride)
    if high < low:
        return None
    return slice(low * stride + first, high * stride + first + 1, stride), slice(low, high + 1)


def _forward(problem: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = np.zeros((problem.mb, problem.g, problem.oc // problem.g, problem.od, problem.oh, problem.ow))
    for tap in _taps(problem):
        piece = x[(..., *tap.x)]
        product = w[(..., *tap.kernel)] @ _matrix(piece)
        y[(..., *tap.y)] += product.reshape(*product.shape[:3], *piece.shape[3:])
    return y


def _backward_data(problem: ConvProblem, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = np.zeros((problem.mb, problem.g, problem.ic // problem.g, problem.id, problem.ih, problem.iw))
    for tap in _taps(problem):
        piece = y[(..., *tap.y)]
        product = w[(..., *tap.kernel)].swapaxes(-1, -2) @ _matrix(piece)
        x[(..., *tap.x)] += product.reshape(*product.shape[:3], *piece.shape[3:])
    return x


def _backward_weights(problem: ConvProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    w = np.zeros((problem.g, problem.oc // problem.g, problem.ic // problem.g, problem.kd, problem.kh, problem.kw))
    for tap in _taps(problem):
        left, right = _matrix(y[(..., *tap.y)]), _matrix(x[(..., *tap.x)])
        w[(..., *tap.kernel)] = (left @ right.swapaxes(-1, -2)).sum(axis=0)
    return w


def _matrix(piece: np.ndarray) -> np.ndarray:
    return piece.reshape(*piece.shape[:3], math.prod(piece.shape[3:]))


def _table(problem: ConvProblem, bias: np.ndarray | None) -> np.ndarray:
    return _shaped(problem, "bias", bias, (HEADER + 2 * problem.oc,))


def _shaped(problem: ConvProblem, name: str, array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    if array is None or np.shape(array) != shape:
        raise InvalidArgument(f"{name} must have shape {shape} for {problem}, got {np.shape(array)}")
    return np.asarray(array)


def _given(problem: ConvProblem, name: str, array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    if array is None:
        raise InvalidArgument(f"the reference needs {name} for {problem}")
    if np.shape(array) != shape:
        raise InvalidArgument(f"{name} must have shape {shape} for {problem}, got {np.shape(array)}")
    return np.asarray(array).astype(np.float64)


def _bias(problem: ConvProblem, bias: np.ndarray) -> np.ndarray:
    return bias if problem.layout == "nhwc" else bias.reshape(-1, *[1] * problem.ndim)


def _operand(problem: ConvProblem, name: str, array: np.ndarray | None) -> np.ndarray:
    """An operand in float64 as [outer, channels, d, h, w], its groups apart: w [g, oc/g, ...], x [mb, g, ...]."""
    array = _channels_first(problem, _given(problem, name, array, getattr(problem, name + "_shape")))
    outer, channels, *spatial = array.shape
    spatial = [1] * (3 - problem.ndim) + spatial
    if name == "w":
        return array.reshape(problem.g, outer // problem.g, channels, *spatial)
    return array.reshape(outer, problem.g, channels // problem.g, *spatial)


def _channels_first(problem: ConvProblem, array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, -1, 1) if problem.layout == "nhwc" else array


def _external(problem: ConvProblem, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if problem.layout == "nchw":
        return array.reshape(shape)
    return np.ascontiguousarray(np.moveaxis(array.reshape(shape[0], shape[-1], *shape[1:-1]), 1, -1))


# --- sampled elements of the tensor ----------------------------------------------------------------------------------


def positions(problem: ConvProblem, count: int = 256, seed: int = 0) -> np.ndarray:
    """Flat indices into the written tensor to verify by: every corner, then points on faces, then anywhere.

    At most ``count`` of them, distinct, sorted, int64; the same for the same seed. Empty for an empty tensor.
    """
    shape = problem.out_shape
    size = int(np.prod(shape, dtype=np.int64))
    if size <= count:
        return np.arange(size, dtype=np.int64)
    random = np.random.default_rng(seed)
    corners = np.array(list(itertools.product(*[sorted({0, extent - 1}) for extent in shape])), np.int64)
    anywhere = np.stack([random.integers(0, extent, count) for extent in shape], axis=1)
    # One coordinate of each of these samples is moved to an end of its axis: kernels most often fail at borders.
    faces = anywhere[: count // 3].copy()
    axis = random.integers(0, len(shape), len(faces))
    faces[np.arange(len(faces)), axis] = random.integers(0, 2, len(faces)) * (np.array(shape)[axis] - 1)
    points = np.concatenate([corners[:count], faces, anywhere])[:count]
    return np.unique(np.ravel_multi_index(tuple(points.T), shape).astype(np.int64))


def sample(problem: ConvProblem, at: np.ndarray, **operands: np.ndarray | None) -> np.ndarray:
    """``compute(...).ravel()[at]`` without computing the rest: float64, one value a flat index of ``at``.

    Takes time in proportion to ``len(at)`` times the length of one element's sum.
    """
    operands = _centred(problem, operands)
    views = {name: _view(problem, name, operands.get(name)) for name in "xwy" if name != problem.written}
    at = np.asarray(at, np.int64).ravel()
    outer, *spatial = np.unravel_index(at, problem.out_shape)
    channel = spatial.pop(0 if problem.layout == "nchw" else -1)
    spatial = [np.zeros_like(at)] * (3 - problem.ndim) + spatial
    sums_at = _sample_weights if problem.direction == "bwd_weights" else _sample_data
    return _finished(problem, sums_at(problem, outer, channel, spatial, **views), operands, at)


def _view(problem: ConvProblem, name: str, array: np.ndarray | None) -> np.ndarray:
    """The operand as it is, in its own dtype, seen as [outer, channels, d, h, w]."""
    shape = getattr(problem, name + "_shape")
    if array is None or np.shape(array) != shape:
        raise InvalidArgument(f"{name} must have shape {shape} for {problem}, got {np.shape(array)}")
    array = _channels_first(problem, np.asarray(array))
    for _ in range(3 - problem.ndim):
        array = np.expand_dims(array, 2)
    return array


def _sample_data(
    problem: ConvProblem, batch: np.ndarray, channel: np.ndarray, spatial: list[np.ndarray], **views: np.ndarray
) -> np.ndarray:
    """Elements of y (given x) or of x (given y): a sum over the other's channels of one group, and taps."""
    forwards, w = "x" in views, views["w"]
    source = views["x" if forwards else "y"]
    icg, ocg = problem.ic // problem.g, problem.oc // problem.g
    summed = np.arange(icg if forwards else ocg)
    taps = np.array(list(itertools.product(range(problem.kd), range(problem.kh), range(problem.kw))), np.int64)
    result = np.empty(len(batch))
    step = max(1, _GATHER // max(1, len(summed) * len(taps)))
    for start in range(0, len(batch), step):
        piece = slice(start, start + step)
        inside = np.ones((len(batch[piece]), len(taps)), bool)
        places = []
        for number, axis in enumerate("dhw"):
            here, ok = _partner(problem, axis, spatial[number][piece, None], taps[None, :, number], forwards)
            inside &= ok
            places.append(here)
        group = channel[piece] // (ocg if forwards else icg)
        place = [np.where(inside, here, 0)[:, None, :] for here in places]
        other = (group * len(summed))[:, None] + summed
        values = source[(batch[piece][:, None, None], other[:, :, None], *place)].astype(np.float64)
        values *= inside[:, None, :]
        rows = np.broadcast_to(channel[piece][:, None], other.shape) if forwards else other
        columns = np.broadcast_to(summed, other.shape) if forwards else (channel[piece] % icg)[:, None]
        weights = w[(rows[:, :, None], columns[:, :, None], *taps.T)].astype(np.float64)
        result[piece] = np.einsum("sct,sct->s", values, weights)
    return result


def _partner(
    problem: ConvProblem, axis: str, here: np.ndarray, k: np.ndarray, forwards: bool
) -> tuple[np.ndarray, np.ndarray]:
    """What tap k joins ``here`` with along an axis, an input for an output or the reverse; and whether it exists."""
    stride, size, outputs = (getattr(problem, letter + axis) for letter in "sio")
    first = k * getattr(problem, "d" + axis) - getattr(problem, "p" + axis)
    if forwards:
        there = here * stride + first
        return there, (there >= 0) & (there < size)
    there, rest = np.divmod(here - first, stride)
    return there, (rest == 0) & (there >= 0) & (there < outputs)


def _sample_weights(
    problem: ConvProblem, oc: np.ndarray, icg: np.ndarray, kernel: list[np.ndarray], x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Elements of w: each a sum over images and output pixels, so one slice product an element."""
    result = np.zeros(len(oc))
    for number, (row, column, *place) in enumerate(zip(oc, icg, *kernel, strict=True)):
        spans = [_span(problem, axis, int(k)) for axis, k in zip("dhw", place, strict=True)]
        if all(span is not None for span in spans):
            ic = row // (problem.oc // problem.g) * (problem.ic // problem.g) + column
            left = x[(slice(None), ic, *[span[0] for span in spans])].astype(np.float64)
            right = y[(slice(None), row, *[span[1] for span in spans])].astype(np.float64)
            result[number] = np.vdot(left, right)
    return result
