"""The reference convolution in NumPy float64, in every direction, for tests and ``find``.

The convolution is a sum over kernel taps. For one tap the outputs ``o`` that read inside the input form a range, and
the inputs that they read, ``i = o s - p + k d``, form a strided slice of the same length. So each tap is one matrix
product of two slices, the same slices in all three directions. No code is shared with kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ..api.activations import apply_activation, apply_gradient
from ..api.dtypes import HEADER
from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from . import quantized

_MAX_GATHERED = 1 << 22
"""The most elements that ``sample`` gathers in one step (32 MB in float64)."""


def compute(problem: ConvProblem, **operands: np.ndarray | None) -> np.ndarray:
    """The tensor that ``problem.direction`` writes, in float64 and the problem's layout.

    ``operands`` are ``x``, ``w`` and ``y`` except the written one, those of EXTRAS that the problem
    reads, and if it accumulates ``initial``, the previous content of the output. Each has the problem's shape for it.
    Raises InvalidArgument for a missing operand or a wrong shape.
    """
    operands = _centred(problem, operands)
    read = {name: _operand(problem, name, operands.get(name)) for name in "xwy" if name != problem.written}
    directions = {"fwd": _forward, "bwd_data": _backward_data, "bwd_weights": _backward_weights}
    sums = _external(problem, directions[problem.direction](problem, **read), problem.out_shape)
    return _finished(problem, sums, operands)


def _centred(problem: ConvProblem, operands: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
    """The operands; in a quantized convolution x minus its zero point, where a norm precedes it what that returns."""
    if problem.norm and not problem.masked:
        x = _shaped(problem, "x", operands.get("x"), problem.x_shape)
        return operands | {"x": apply_activation(problem.norm_activation, _affine(problem, x, operands.get("norm")))}
    if not problem.quantized:
        return operands
    table = _table(problem, operands.get("bias"))
    return operands | {"x": quantized.centred(_shaped(problem, "x", operands.get("x"), problem.x_shape), table)}


def _finished(
    problem: ConvProblem, sums: np.ndarray, operands: dict[str, np.ndarray | None], at: np.ndarray | None = None
) -> np.ndarray:
    """Apply the epilogue to the sums of all elements, or to those of the flat indices ``at``."""
    indices = None if at is None else np.unravel_index(at, problem.out_shape)
    channel = None if indices is None else indices[1 if problem.layout == "nchw" else -1]

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
        result = result + along(_required(problem, "bias", operands.get("bias"), (problem.channels_out,)))
    if problem.residual:
        result = result + added("residual").astype(np.float64)
    result = apply_activation(problem.activation, result)
    if problem.masked:
        saved = _shaped(problem, "saved", operands.get("saved"), problem.x_shape)
        affine = _affine(problem, saved, operands.get("norm"))
        result = apply_gradient(problem.norm_activation, result, affine if at is None else affine.reshape(-1)[at])
    return result + added("initial").astype(np.float64) if problem.accumulate else result


def _affine(problem: ConvProblem, x: np.ndarray, norm: np.ndarray | None) -> np.ndarray:
    """``(x - mean) scale + shift``, the norm of x before its activation."""
    table = _required(problem, "norm", norm, problem.form("norm")[0])
    mean, scale, shift = (_bias(problem, row) for row in table)
    return (x.astype(np.float64) - mean) * scale + shift


def channel_sums(problem: ConvProblem, output: np.ndarray, **operands: np.ndarray | None) -> np.ndarray:
    """The operand ``sums`` for an output as it is stored, in float64."""
    axes = tuple(axis for axis in range(output.ndim) if axis != (1 if problem.layout == "nchw" else output.ndim - 1))
    values = np.asarray(output).astype(np.float64)
    if problem.masked:
        saved = _shaped(problem, "saved", operands.get("saved"), problem.x_shape).astype(np.float64)
        mean = _bias(problem, _required(problem, "norm", operands.get("norm"), problem.form("norm")[0])[0])
        return np.stack([values.sum(axes), (values * (saved - mean)).sum(axes)])
    mean = values.mean(axes)
    counts = np.full(mean.shape, values.size / max(1, mean.size))
    return np.stack([counts, mean, ((values - _bias(problem, mean)) ** 2).sum(axes)])


def sums_fault(
    problem: ConvProblem, output: np.ndarray, sums: np.ndarray, operands: Mapping[str, np.ndarray]
) -> str | None:
    """Why ``sums`` are not those of the stored output within the rounding of a merge of short sums; None if they are.

    Means may be off by their own rounding, and squared distances by what that does to a distance, as in Welford's
    algorithm (1962); a variance from sums of squares, whose error grows with the square of the mean, is a fault.
    """
    expected, epsilon = channel_sums(problem, output, **operands), float(np.finfo(sums.dtype).eps)
    if problem.masked:
        terms = channel_sums(problem.replace(norm="identity"), np.abs(output), **_sizes(problem, operands))
        limits, names = 64 * epsilon * terms, ("sum", "sum of products with the distances")
    else:
        count, mean, squares = expected
        deviation = np.sqrt(squares / np.maximum(count, 1))
        rounding = epsilon * np.abs(mean)
        squares_limit = 1000 * epsilon * squares + count * rounding * (deviation + 16 * rounding)
        limits = np.stack([0 * count, 16 * (rounding + epsilon * deviation), squares_limit])
        names = ("count", "mean", "sum of squared distances")
    differences = np.abs(sums.astype(np.float64) - expected)
    wrong = np.argwhere(~(differences <= limits))
    if not wrong.size:
        return None
    row, channel = wrong[0]
    return (
        f"the {names[row]} of channel {channel} is {sums[row, channel]:.7g}, expected {expected[row, channel]:.7g} "
        f"within {limits[row, channel]:.2g}; {len(wrong)} of {sums.size} sums are wrong"
    )


def _sizes(problem: ConvProblem, operands: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Operands for which the products of a norm's gradient are the sizes of the terms of its sums."""
    distance = operands["saved"].astype(np.float64) - _bias(problem, operands["norm"][0].astype(np.float64))
    return {"saved": np.abs(distance), "norm": np.zeros_like(operands["norm"])}


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
    """One kernel tap: its index in w, and the slices (d, h, w) of x and y whose elements it connects."""

    kernel: tuple[int, int, int]
    x: tuple[slice, slice, slice]
    y: tuple[slice, slice, slice]


def _taps(problem: ConvProblem) -> Iterator[_Tap]:
    kernel = (problem.kd, problem.kh, problem.kw)
    for indices in itertools.product(*map(range, kernel)):
        spans = [_span(problem, axis, k) for axis, k in zip("dhw", indices, strict=True)]
        if all(span is not None for span in spans):
            yield _Tap(indices, tuple(span[0] for span in spans), tuple(span[1] for span in spans))


def _span(problem: ConvProblem, axis: str, k: int) -> tuple[slice, slice] | None:
    """The slices of inputs and outputs that tap ``k`` connects along an axis: i = o s + first, inside the input."""
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
        inputs = x[(..., *tap.x)]
        product = w[(..., *tap.kernel)] @ _matrix(inputs)
        y[(..., *tap.y)] += product.reshape(*product.shape[:3], *inputs.shape[3:])
    return y


def _backward_data(problem: ConvProblem, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = np.zeros((problem.mb, problem.g, problem.ic // problem.g, problem.id, problem.ih, problem.iw))
    for tap in _taps(problem):
        outputs = y[(..., *tap.y)]
        product = w[(..., *tap.kernel)].swapaxes(-1, -2) @ _matrix(outputs)
        x[(..., *tap.x)] += product.reshape(*product.shape[:3], *outputs.shape[3:])
    return x


def _backward_weights(problem: ConvProblem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    w = np.zeros((problem.g, problem.oc // problem.g, problem.ic // problem.g, problem.kd, problem.kh, problem.kw))
    for tap in _taps(problem):
        dy, inputs = _matrix(y[(..., *tap.y)]), _matrix(x[(..., *tap.x)])
        w[(..., *tap.kernel)] = (dy @ inputs.swapaxes(-1, -2)).sum(axis=0)
    return w


def _matrix(array: np.ndarray) -> np.ndarray:
    return array.reshape(*array.shape[:3], math.prod(array.shape[3:]))


def _table(problem: ConvProblem, bias: np.ndarray | None) -> np.ndarray:
    return _shaped(problem, "bias", bias, (HEADER + 2 * problem.oc,))


def _shaped(problem: ConvProblem, name: str, array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    if array is None or np.shape(array) != shape:
        raise InvalidArgument(f"{name} must have shape {shape} for {problem}, got {np.shape(array)}")
    return np.asarray(array)


def _required(problem: ConvProblem, name: str, array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    if array is None:
        raise InvalidArgument(f"the reference needs {name} for {problem}")
    if np.shape(array) != shape:
        raise InvalidArgument(f"{name} must have shape {shape} for {problem}, got {np.shape(array)}")
    return np.asarray(array).astype(np.float64)


def _bias(problem: ConvProblem, bias: np.ndarray) -> np.ndarray:
    return bias if problem.layout == "nhwc" else bias.reshape(-1, *[1] * problem.ndim)


def _operand(problem: ConvProblem, name: str, array: np.ndarray | None) -> np.ndarray:
    """An operand in float64 with an axis of groups: w as [g, oc/g, ic/g, d, h, w], x and y as [mb, g, c/g, d, h, w]."""
    array = _channels_first(problem, _required(problem, name, array, getattr(problem, name + "_shape")))
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
    """Flat indices of sampled elements of the written tensor: every corner, then points on faces, then anywhere.

    At most ``count``, distinct, sorted, int64; the same for the same seed. Empty for an empty tensor.
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
    """``compute(...).ravel()[at]``, one float64 value for each flat index, without computing the other elements.

    The time is proportional to ``len(at)`` times the length of one element's sum.
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
    """A view of the operand in its own dtype as [outer, channels, d, h, w]."""
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
    """Elements of y (from x) or of x (from y): sums over the other tensor's channels of one group, and over taps."""
    is_forward, w = "x" in views, views["w"]
    source = views["x" if is_forward else "y"]
    icg, ocg = problem.ic // problem.g, problem.oc // problem.g
    summed = np.arange(icg if is_forward else ocg)
    taps = np.array(list(itertools.product(range(problem.kd), range(problem.kh), range(problem.kw))), np.int64)
    result = np.empty(len(batch))
    step = max(1, _MAX_GATHERED // max(1, len(summed) * len(taps)))
    for start in range(0, len(batch), step):
        part = slice(start, start + step)
        inside = np.ones((len(batch[part]), len(taps)), bool)
        coordinates = []
        for number, axis in enumerate("dhw"):
            outputs = spatial[number][part, None]
            coordinate, is_inside = _partner(problem, axis, outputs, taps[None, :, number], is_forward)
            inside &= is_inside
            coordinates.append(coordinate)
        group = channel[part] // (ocg if is_forward else icg)
        inner = [np.where(inside, coordinate, 0)[:, None, :] for coordinate in coordinates]
        others = (group * len(summed))[:, None] + summed
        values = source[(batch[part][:, None, None], others[:, :, None], *inner)].astype(np.float64)
        values *= inside[:, None, :]
        rows = np.broadcast_to(channel[part][:, None], others.shape) if is_forward else others
        columns = np.broadcast_to(summed, others.shape) if is_forward else (channel[part] % icg)[:, None]
        weights = w[(rows[:, :, None], columns[:, :, None], *taps.T)].astype(np.float64)
        result[part] = np.einsum("sct,sct->s", values, weights)
    return result


def _partner(
    problem: ConvProblem, axis: str, coordinate: np.ndarray, k: np.ndarray, forwards: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The input that tap k connects with an output along an axis, or the reverse; and whether it exists."""
    stride, size, outputs = (getattr(problem, letter + axis) for letter in "sio")
    first = k * getattr(problem, "d" + axis) - getattr(problem, "p" + axis)
    if forwards:
        partner = coordinate * stride + first
        return partner, (partner >= 0) & (partner < size)
    partner, remainder = np.divmod(coordinate - first, stride)
    return partner, (remainder == 0) & (partner >= 0) & (partner < outputs)


def _sample_weights(
    problem: ConvProblem, oc: np.ndarray, icg: np.ndarray, kernel: list[np.ndarray], x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Elements of w, each a sum over images and output pixels, computed as a product of two slices."""
    result = np.zeros(len(oc))
    for number, (row, column, *kernel_at) in enumerate(zip(oc, icg, *kernel, strict=True)):
        spans = [_span(problem, axis, int(k)) for axis, k in zip("dhw", kernel_at, strict=True)]
        if all(span is not None for span in spans):
            ic = row // (problem.oc // problem.g) * (problem.ic // problem.g) + column
            x_part = x[(slice(None), ic, *[span[0] for span in spans])].astype(np.float64)
            y_part = y[(slice(None), row, *[span[1] for span in spans])].astype(np.float64)
            result[number] = np.vdot(x_part, y_part)
    return result
