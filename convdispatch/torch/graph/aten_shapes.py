"""ATen's slices, pads and upsampling by convdispatch: slices are views, the others a kernel that reads index tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...elementwise import sample
from ...elementwise.tensor import Tensor
from ...nn import functional
from .operator_table import operator
from .quantized import Missing


def _part(x: Any, axis: int, key: Any) -> Tensor:
    return x[(*(slice(None),) * (axis % x.ndim), key)]  # type: ignore[no-any-return]


@operator("aten.split.Tensor")
def _split(net: Any, x: Any, size: int, axis: int = 0) -> list[Tensor]:
    return [_part(x, axis, slice(start, start + size)) for start in range(0, x.shape[axis], size)]


@operator("aten.split_with_sizes.default")
def _split_with_sizes(net: Any, x: Any, sizes: Sequence[int], axis: int = 0) -> list[Tensor]:
    starts = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return [_part(x, axis, slice(start, end)) for start, end in starts]


@operator("aten.unbind.int")
def _unbind(net: Any, x: Any, axis: int = 0) -> list[Tensor]:
    return [_part(x, axis, index) for index in range(x.shape[axis])]


@operator("aten.slice.Tensor")
def _slice(net: Any, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    return _part(x, axis, slice(start, end, step))


@operator("aten.select.int")
def _select(net: Any, x: Any, axis: int, place: int) -> Tensor:
    return _part(x, axis, place)


@operator("aten.as_strided.default", "aten.as_strided_.default")
def _same_places(net: Any, x: Any, shape: Sequence[int], strides: Sequence[int], offset: Any = None) -> Tensor:
    """A view with the same addresses, as in means of channels-last images: only strides of axes of size one may
    change."""
    steps = list(itertools.accumulate(x.shape[:0:-1], lambda step, size: step * size, initial=1))[::-1]
    alike = all(size == 1 or expected_stride == step for size, expected_stride, step in zip(x.shape, strides, steps))
    if tuple(shape) != x.shape or not alike or offset:
        raise Missing("a tensor seen with other strides")
    return x  # type: ignore[no-any-return]


@operator("aten.unsqueeze.default")
def _unsqueeze(net: Any, x: Any, axis: int) -> Tensor:
    return x[(*(slice(None),) * (axis % (x.ndim + 1)), None)]  # type: ignore[no-any-return]


@operator("aten.stack.default")
def _stack(net: Any, tensors: Any, axis: int = 0) -> Tensor:
    axis %= tensors[0].ndim + 1
    return functional.concatenate([_unsqueeze(net, net.put(each), axis) for each in tensors], axis)


@operator("aten.squeeze.dim", "aten.squeeze.dims")
def _squeeze(net: Any, x: Any, axes: Any) -> Tensor:
    gone = {axis % x.ndim for axis in (axes if isinstance(axes, list | tuple) else (axes,))}
    return x[  # type: ignore[no-any-return]
        tuple(0 if axis in gone and size == 1 else slice(None) for axis, size in enumerate(x.shape))
    ]


@operator("aten.expand.default")
def _expand(net: Any, x: Any, shape: Sequence[int], implicit: bool = False) -> Tensor:
    padded_shape = (1,) * (len(shape) - x.ndim) + x.shape
    return x.expand(  # type: ignore[no-any-return]
        *(old if new == -1 else new for new, old in zip(shape, padded_shape, strict=True))
    )


@operator("aten.copy.default")
def _copy(net: Any, x: Any, other: Any, non_blocking: bool = False) -> Tensor:
    """``other``, broadcast to the shape of ``x``, which it overwrites."""
    return _expand(net, net.put(other), tuple(x.shape))


@operator("aten.constant_pad_nd.default")
def _pad(net: Any, x: Any, pads: Sequence[int], value: float = 0.0) -> Tensor:
    tables = {}
    for dimension, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = x.ndim - 1 - dimension
        indices = np.arange(-before, x.shape[axis] + after)
        if before or after:
            tables[axis] = np.where((indices >= 0) & (indices < x.shape[axis]), indices, -1), None
    return sample(x, tables, float(value)) if tables else x


@operator("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def _replicated(net: Any, x: Any, pads: Sequence[int]) -> Tensor:
    return _extended(x, pads, lambda at, size: np.clip(at, 0, size - 1))


@operator("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def _reflected(net: Any, x: Any, pads: Sequence[int]) -> Tensor:
    return _extended(x, pads, lambda at, size: size - 1 - np.abs(size - 1 - np.abs(at)))


def _extended(x: Any, pads: Sequence[int], inside: Callable[[np.ndarray, int], np.ndarray]) -> Tensor:
    """Pad with elements of ``x``; ``inside(indices, size)`` maps indices outside of an axis to indices inside."""
    tables = {}
    for dimension, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = x.ndim - 1 - dimension
        if before or after:
            tables[axis] = inside(np.arange(-before, x.shape[axis] + after), x.shape[axis]), None
    return sample(x, tables) if tables else x


@operator("aten.roll.default")
def _rolled(net: Any, x: Any, shifts: Sequence[int], axes: Sequence[int] = ()) -> Tensor:
    if not axes:
        flat = x.reshape(-1)
        return _rolled(net, flat, shifts, (0,)).reshape(x.shape)
    tables = {axis % x.ndim: 0 for axis in axes}
    for shift, axis in zip(shifts, axes, strict=True):  # an axis may occur twice
        tables[axis % x.ndim] += shift
    index_tables = {axis: (np.arange(x.shape[axis]) - shift) % x.shape[axis] for axis, shift in tables.items()}
    return sample(x, {axis: (indices, None) for axis, indices in index_tables.items()})


@operator("aten.repeat.default")
def _repeat(net: Any, x: Any, times: Sequence[int]) -> Tensor:
    for _ in range(len(times) - x.ndim):
        x = _unsqueeze(net, x, 0)
    for axis, count in enumerate(times):
        if not count:
            raise Missing("no repetition")
        x = functional.concatenate([x] * count, axis) if count > 1 else x
    return x  # type: ignore[no-any-return]


@operator("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def _nearest(net: Any, x: Any, sizes: Sequence[int], *scales: Any) -> Tensor:
    """PyTorch's "nearest" upsampling: the index is rounded down, by the scale if it was passed, else by the sizes."""
    tables = {}
    for axis, (new, scale) in enumerate(zip(sizes, scales or [None] * len(sizes), strict=True), 2):
        step = np.float32(x.shape[axis] / new) if scale is None else np.float32(1 / scale)
        indices = np.floor(np.arange(new, dtype=np.float32) * step).astype(np.int64)
        tables[axis] = np.minimum(indices, x.shape[axis] - 1), None
    return _made_anew(x, tables)


@operator("aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default")
def _linear(net: Any, x: Any, sizes: Sequence[int], corners: bool, *scales: Any) -> Tensor:
    tables = {}
    for axis, (new, scale) in enumerate(zip(sizes, scales or [None] * len(sizes), strict=True), 2):
        old, positions = x.shape[axis], np.arange(new, dtype=np.float64)
        if corners:
            positions = positions * (old - 1) / (new - 1) if new > 1 else positions * 0
        else:
            positions = np.maximum((positions + 0.5) * (old / new if scale is None else 1 / scale) - 0.5, 0)
        low = np.minimum(np.floor(positions).astype(np.int64), old - 1)
        share = positions - low
        index_pairs = np.stack([low, np.minimum(low + 1, old - 1)], 1)
        tables[axis] = index_pairs, np.stack([1 - share, share], 1)
    if not x.size:
        raise Missing("an enlargement of nothing")
    return _made_anew(x, tables)


def _made_anew(x: Any, tables: dict[int, Any]) -> Tensor:
    """Upsample by index tables, of which some may change nothing: decoders bring all levels to the size of the
    first."""
    changing = {}
    for axis, (index_table, weights) in tables.items():
        first_indices = index_table.reshape(len(index_table), -1)[:, 0]
        unweighted = weights is None or bool((weights[:, 0] == 1).all())
        if not (unweighted and np.array_equal(first_indices, np.arange(x.shape[axis]))):
            changing[axis] = index_table, weights
    return sample(x, changing) if changing else x
