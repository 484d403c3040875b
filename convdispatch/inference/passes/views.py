"""The same elements as a view of other memory: of a picture in the other layout, or of what a copy was made from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ...calls.arrays.operands import contiguous_strides, is_contiguous
from ..graph import Ref, Value

Axis = tuple[int, int, int]
"""An axis of a value: its length, its stride, and the stride of the same elements in the other memory, in bytes."""


def permuted(ref: Ref, order: Sequence[int]) -> Ref:
    """A view with its axes in another order."""
    strides = strides_of(ref)
    return view(ref.value, [ref.shape[a] for a in order], [strides[a] for a in order], ref.offset)


def view(value: Value, shape: Iterable[int], strides: Iterable[int], offset: int) -> Ref:
    """A view whose strides are None where it is contiguous."""
    shape, strides = tuple(shape), tuple(strides)
    return Ref(value, shape, None if is_contiguous(shape, strides, value.dtype.itemsize) else strides, offset)


def strides_of(ref: Ref) -> tuple[int, ...]:
    """The strides of a view in bytes."""
    return contiguous_strides(ref.shape, ref.value.dtype.itemsize) if ref.strides is None else ref.strides


def in_layout(ref: Ref, picture: Value, layout: str) -> Ref | None:
    """A view of a picture as a view of the same picture in ``layout``, which lay in the other layout before; None where
    one stride passes both channels and pixels."""
    shape, itemsize = ref.value.shape, ref.value.dtype.itemsize
    rows = (shape[1], math.prod(shape[2:])) if layout == "nhwc" else (math.prod(shape[1:3]), shape[3])
    image = math.prod(rows) * itemsize
    axes = [(shape[0], image, image), (rows[0], rows[1] * itemsize, itemsize), (rows[1], itemsize, rows[0] * itemsize)]
    return _in_memory(ref, axes, picture, 0)


def of_original(ref: Ref, original: Ref) -> Ref | None:
    """A view of a contiguous copy as a view of what was copied; None where one stride passes several of its axes."""
    axes: list[Axis] = []
    own = contiguous_strides(original.shape, original.value.dtype.itemsize)
    for size, stride, source in zip(original.shape, own, strides_of(original), strict=True):
        if size == 1:
            continue
        if axes and axes[-1][2] == source * size:
            axes[-1] = axes[-1][0] * size, stride, source
        else:
            axes.append((size, stride, source))
    return _in_memory(ref, axes, original.value, original.offset)


def _in_memory(ref: Ref, axes: Sequence[Axis], value: Value, start: int) -> Ref | None:
    """A view whose value has ``axes``, as a view of ``value``, in whose memory those begin at byte ``start``."""
    rest, offset = ref.offset, start
    last = []
    """The greatest index that the view has along each axis."""
    for _, stride, target in axes:
        index, rest = divmod(rest, stride)
        offset += index * target
        last.append(index)
    strides = []
    if rest or any(stride < 0 for stride in strides_of(ref)):
        return None
    for size, stride in zip(ref.shape, strides_of(ref), strict=True):
        steps = 0 if size == 1 else stride
        for number, (length, own, target) in enumerate(axes):
            if steps % own == 0 and last[number] + (size - 1) * (steps // own) < length:
                last[number] += (size - 1) * (steps // own)
                strides.append(steps // own * target)
                break
        else:
            return None
    return view(value, ref.shape, strides, offset)
