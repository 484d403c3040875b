"""Concatenation as views into one buffer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device.tracing import operation
from .apply import compute
from .tensor import Tensor, current_tape, paused


def concatenation_buffer(
    shapes: Sequence[Sequence[int]], axis: int = 1, dtype: Any = np.float32, queue: cl.CommandQueue | None = None
) -> tuple[Tensor, list[Tensor]]:
    """One new tensor, and a view into it for each of ``shapes`` in turn along ``axis``: what is written to the views
    is concatenated without a copy.

    Raises InvalidArgument unless the shapes agree along every other axis.
    """
    sizes = [tuple(shape) for shape in shapes]
    if not sizes:
        raise InvalidArgument("there is nothing to concatenate")
    axis = _checked(sizes, axis)
    whole = list(sizes[0])
    whole[axis] = sum(shape[axis] for shape in sizes)
    buffer = Tensor.empty(whole, dtype, queue)
    return buffer, _parts(buffer, axis, [shape[axis] for shape in sizes])


@operation
def concatenate(tensors: Sequence[Tensor], axis: int = 1) -> Tensor:
    """The tensors behind each other along ``axis``, in new memory; those that already are neighbouring views of one
    buffer, as ``concatenation_buffer`` makes them, are not copied. Recorded on the tape in force.

    Raises InvalidArgument unless shapes agree along every other axis, and dtypes agree.
    """
    tensors = list(tensors)
    if not tensors:
        raise InvalidArgument("there is nothing to concatenate")
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise InvalidArgument(f"concatenate needs one dtype, got {', '.join(sorted(d.name for d in dtypes))}")
    axis = _checked([tensor.shape for tensor in tensors], axis)
    result = _already(tensors, axis)
    sizes = [tensor.shape[axis] for tensor in tensors]
    if result is None:
        result, views = concatenation_buffer(
            [tensor.shape for tensor in tensors], axis, tensors[0].dtype, tensors[0].queue
        )
        with paused():
            for tensor, view in zip(tensors, views, strict=True):
                if tensor.size:
                    compute("x", {"x": tensor}, out=view)
    tape = current_tape()
    if tape is not None and any(tape.tracks(tensor) for tensor in tensors):
        # The gradients of joined tensors are views of dy; what needs them contiguous copies them.
        tape.record(result, tensors, lambda dy: _parts(dy, axis, sizes))
    return result


def _parts(buffer: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    starts = itertools.accumulate(sizes, initial=0)
    before = (slice(None),) * axis
    return [buffer[(*before, slice(start, start + size))] for start, size in zip(starts, sizes, strict=False)]


def _already(tensors: list[Tensor], axis: int) -> Tensor | None:
    """Return the tensor of which the given ones are adjacent views, or None."""
    first = tensors[0]
    whole = list(first.shape)
    whole[axis] = sum(tensor.shape[axis] for tensor in tensors)
    step = first.strides[axis]
    place = first.offset
    if len(tensors) > 1 and (0 in whole or step == 0):
        return None
    for tensor in tensors:
        if tensor.base_data is not first.base_data or tensor.offset != place or tensor.strides != first.strides:
            return None
        place += tensor.shape[axis] * step
    found = Tensor(first.base_data, tuple(whole), first.dtype, first.queue, first.strides, first.offset)
    return found if found.contiguous else None


def _checked(shapes: list[tuple[int, ...]], axis: int) -> int:
    ndim = len(shapes[0])
    if not -ndim <= axis < ndim:
        raise InvalidArgument(f"axis must be one of {ndim}, got {axis}")
    axis %= ndim
    rest = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
    if len(rest) > 1 or any(len(shape) != ndim for shape in shapes):
        raise InvalidArgument(f"shapes must agree but along axis {axis}, got {', '.join(map(str, shapes))}")
    return axis
