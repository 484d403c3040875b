"""ATen's views, slices, joins, pads and upsampling by convdispatch: views share memory, the others are a kernel that
reads index tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...elementwise import sample
from ...elementwise.tensor import Tensor
from ...nn import functional
from .operator_table import OPERATORS, operator
from .quantized import Missing


def _part(x: Any, axis: int, key: Any) -> Any:
    return x[(*(slice(None),) * (axis % x.ndim), key)]


def _unsqueezed(x: Any, axis: int) -> Any:
    return x[(*(slice(None),) * (axis % (x.ndim + 1)), None)]


def _parts(x: Any, axis: int, sizes: Sequence[int]) -> list[Any]:
    starts = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return [_part(x, axis, slice(start, end)) for start, end in starts]


OPERATORS |= {
    "aten.unsqueeze.default": lambda net, x, axis: _unsqueezed(x, axis),
    "aten.select.int": lambda net, x, axis, index: _part(x, axis, index),
    "aten.slice.Tensor": lambda net, x, axis=0, start=None, end=None, step=1: _part(x, axis, slice(start, end, step)),
    "aten.unbind.int": lambda net, x, axis=0: [_part(x, axis, index) for index in range(x.shape[axis])],
    "aten.split.Tensor": lambda net, x, size, axis=0: _parts(x, axis, [size] * -(-x.shape[axis] // size)),
    "aten.split_with_sizes.default": lambda net, x, sizes, axis=0: _parts(x, axis, sizes),
    "aten.permute.default": lambda net, x, axes: x.transpose(*(axis % x.ndim for axis in axes)),
    "aten.copy.default": lambda net, x, other, non_blocking=False: _expand(net, net.put(other), tuple(x.shape)),
}


@operator("aten.clone.default", "aten.detach.default", "aten.alias.default", "aten.contiguous.default")
def _same(net: Any, x: Any, memory_format: Any = None) -> Tensor:
    return x  # type: ignore[no-any-return]


@operator("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
def _view(net: Any, x: Any, shape: Any) -> Tensor:
    known = math.prod(size for size in shape if size != -1)
    return functional.view(x, tuple(math.prod(x.shape) // known if size == -1 else size for size in shape))


@operator("aten.transpose.int")
def _transpose(net: Any, x: Any, one: int, other: int) -> Tensor:
    axes = list(range(x.ndim))
    axes[one], axes[other] = axes[other], axes[one]
    return x.transpose(*axes)  # type: ignore[no-any-return]


@operator("aten.as_strided.default", "aten.as_strided_.default")
def _same_places(net: Any, x: Any, shape: Sequence[int], strides: Sequence[int], offset: Any = None) -> Tensor:
    """A view with the same addresses, as in means of channels-last images: only strides of axes of size one may
    change."""
    steps = list(itertools.accumulate(x.shape[:0:-1], lambda step, size: step * size, initial=1))[::-1]
    alike = all(size == 1 or expected_stride == step for size, expected_stride, step in zip(x.shape, strides, steps))
    if tuple(shape) != x.shape or not alike or offset:
        raise Missing("a tensor seen with other strides")
    return x  # type: ignore[no-any-return]


@operator("aten.squeeze.dim", "aten.squeeze.dims")
def _squeeze(net: Any, x: Any, axes: Any) -> Tensor:
    gone = {axis % x.ndim for axis in (axes if isinstance(axes, list | tuple) else (axes,))}
    key = tuple(0 if axis in gone and size == 1 else slice(None) for axis, size in enumerate(x.shape))
    return x[key]  # type: ignore[no-any-return]


@operator("aten.expand.default")
def _expand(net: Any, x: Any, shape: Sequence[int], implicit: bool = False) -> Tensor:
    padded_shape = (1,) * (len(shape) - x.ndim) + x.shape
    sizes = (old if new == -1 else new for new, old in zip(shape, padded_shape, strict=True))
    return x.expand(*sizes)  # type: ignore[no-any-return]


@operator("aten.cat.default")
def _cat(net: Any, tensors: Any, axis: int = 0) -> Tensor:
    some = [each for each in tensors if tuple(each.shape) != (0,)]  # PyTorch's cat skips tensors of shape (0,)
    return functional.concatenate([net.put(each) for each in some], axis % some[0].ndim)


@operator("aten.stack.default")
def _stack(net: Any, tensors: Any, axis: int = 0) -> Tensor:
    axis %= tensors[0].ndim + 1
    return functional.concatenate([_unsqueezed(net.put(each), axis) for each in tensors], axis)


@operator("aten.repeat.default")
def _repeat(net: Any, x: Any, times: Sequence[int]) -> Tensor:
    for _ in range(len(times) - x.ndim):
        x = _unsqueezed(x, 0)
    for axis, count in enumerate(times):
        if not count:
            raise Missing("no repetition")
        x = functional.concatenate([x] * count, axis) if count > 1 else x
    return x  # type: ignore[no-any-return]


@operator("aten.roll.default")
def _rolled(net: Any, x: Any, shifts: Sequence[int], axes: Sequence[int] = ()) -> Tensor:
    if not axes:
        return _rolled(net, x.reshape(-1), shifts, (0,)).reshape(x.shape)
    sums = dict.fromkeys((axis % x.ndim for axis in axes), 0)
    for shift, axis in zip(shifts, axes, strict=True):  # an axis may occur twice
        sums[axis % x.ndim] += shift
    return sample(x, {axis: ((np.arange(x.shape[axis]) - shift) % x.shape[axis], None) for axis, shift in sums.items()})


def _padding(inside: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., Tensor]:
    """A pad; ``inside(indices, size)`` maps indices outside of an axis to indices inside, or to -1, the fill value."""

    def operation(net: Any, x: Any, pads: Sequence[int], value: float = 0.0) -> Tensor:
        tables = {}
        for dimension, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
            axis = x.ndim - 1 - dimension
            if before or after:
                tables[axis] = inside(np.arange(-before, x.shape[axis] + after), x.shape[axis]), None
        return sample(x, tables, float(value)) if tables else x

    return operation


_NDIMS = (1, 2, 3)
OPERATORS["aten.constant_pad_nd.default"] = _padding(lambda at, size: np.where((at >= 0) & (at < size), at, -1))
_replicated = _padding(lambda at, size: np.clip(at, 0, size - 1))
_reflected = _padding(lambda at, size: size - 1 - np.abs(size - 1 - np.abs(at)))
OPERATORS |= {f"aten.replication_pad{ndim}d.default": _replicated for ndim in _NDIMS}
OPERATORS |= {f"aten.reflection_pad{ndim}d.default": _reflected for ndim in _NDIMS}


@operator("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def _nearest(net: Any, x: Any, sizes: Sequence[int], *scales: Any) -> Tensor:
    """PyTorch's "nearest" upsampling: the index is rounded down, by the scale if it was passed, else by the sizes."""

    def table(old: int, new: int, scale: Any) -> tuple[np.ndarray, None]:
        step = np.float32(old / new) if scale is None else np.float32(1 / scale)
        indices = np.floor(np.arange(new, dtype=np.float32) * step).astype(np.int64)
        return np.minimum(indices, old - 1), None

    return _upsampled(x, sizes, scales, table)


@operator("aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default")
def _linear(net: Any, x: Any, sizes: Sequence[int], corners: bool, *scales: Any) -> Tensor:
    def table(old: int, new: int, scale: Any) -> tuple[np.ndarray, np.ndarray]:
        positions = np.arange(new, dtype=np.float64)
        if corners:
            positions = positions * (old - 1) / (new - 1) if new > 1 else positions * 0
        else:
            positions = np.maximum((positions + 0.5) * (old / new if scale is None else 1 / scale) - 0.5, 0)
        low = np.minimum(np.floor(positions).astype(np.int64), old - 1)
        share = positions - low
        return np.stack([low, np.minimum(low + 1, old - 1)], 1), np.stack([1 - share, share], 1)

    if not x.size:
        raise Missing("an enlargement of nothing")
    return _upsampled(x, sizes, scales, table)


def _upsampled(x: Any, sizes: Sequence[int], scales: Any, table: Callable[[int, int, Any], tuple[Any, Any]]) -> Tensor:
    """Upsample each axis by its index table and weights. Some may change nothing: decoders bring all levels to the size
    of the first."""
    changing = {}
    for axis, (new, scale) in enumerate(zip(sizes, scales or [None] * len(sizes), strict=True), 2):
        indices, weights = table(x.shape[axis], new, scale)
        first_indices = indices.reshape(len(indices), -1)[:, 0]
        unweighted = weights is None or bool((weights[:, 0] == 1).all())
        if not (unweighted and np.array_equal(first_indices, np.arange(x.shape[axis]))):
            changing[axis] = indices, weights
    return sample(x, changing) if changing else x
