"""Concatenation as views into one buffer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.programs.kernels import Launch, build, keeps_programs
from ..device.tracing import operation
from .apply import compute
from .tensor import Tensor, current_tape, paused

MAX_PARTS = 8
"""The most tensors that one kernel joins."""
GPU_GROUP = 256
"""The most work items of a work group on a GPU."""
GPU_MIN_LENGTH = 64
"""The least length of the longest row in work items; shorter rows leave work groups empty."""
CPU_MIN_ROWS = 16
"""The number of rows from which the CPU's kernel is faster than separate copies."""
CPU_MAX_ROWS = 64
"""The most rows that a work item on a CPU copies."""
CPU_LANES = 16
"""The number of elements of the CPU kernel's vectors."""
_BITS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "ulong2"}


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
            _copy(tensors, views, result, axis)
    tape = current_tape()
    if tape is not None and any(tape.tracks(tensor) for tensor in tensors):
        # The gradients of joined tensors are views of dy; what needs them contiguous copies them.
        tape.record(result, tensors, lambda dy: _parts(dy, axis, sizes))
    return result


def _copy(tensors: list[Tensor], views: list[Tensor], result: Tensor, axis: int) -> None:
    """The tensors to where they belong, in one launch for ``MAX_PARTS``, unless they are small or not contiguous."""
    filled = [(tensor, view) for tensor, view in zip(tensors, views, strict=True) if tensor.size]
    if len(filled) > MAX_PARTS:
        for start in range(0, len(tensors), MAX_PARTS):
            chunk = slice(start, start + MAX_PARTS)
            _copy(tensors[chunk], views[chunk], result, axis)
        return
    size, rows, unit, lengths = result.dtype.itemsize, math.prod(result.shape[:axis]), 0, [0]
    if len(filled) >= 2 and size in _BITS and all(tensor.contiguous for tensor, _ in filled):
        cpu = runtime.device_info(result.queue.device).type == "cpu"
        numbers = [n for tensor, view in filled for n in (view.offset, tensor.offset, tensor.nbytes // rows)]
        numbers.append(result.nbytes // rows)
        unit = size if cpu or any(number % 16 for number in numbers) else 16
        lengths = [tensor.nbytes // rows // unit for tensor, _ in filled]
        worthwhile = size == 4 and rows >= CPU_MIN_ROWS and min(lengths) >= CPU_LANES
        if not (worthwhile if cpu else max(lengths) >= GPU_MIN_LENGTH):
            unit = 0
    if not unit:
        for tensor, view in filled:
            compute("x", {"x": tensor}, out=view)
        return
    starts = tuple(view.offset // unit for _, view in filled)
    launch = _launch(result.context, unit, (rows, result.nbytes // rows // unit), tuple(lengths), starts)
    operands = [part for tensor, _ in filled for part in (tensor.base_data, np.int64(tensor.offset // unit))]
    launch(result.queue, (*operands, result.base_data))


_CPU_ROW = """\
inline void copy_row(global const uint *restrict x, global uint *restrict y, const long n) {
  for (long i = 0; i + 16 <= n; i += 16) vstore16(vload16(0, x + i), 0, y + i);
  if (n % 16) vstore16(vload16(0, x + n - 16), 0, y + n - 16);
}
"""
"""Copies a row by vectors of sixteen; the last vector ends with the row, and overlaps the vector before it with equal
values."""


@keeps_programs
def _launch(
    context: cl.Context, unit: int, shape: tuple[int, int], lengths: tuple[int, ...], starts: tuple[int, ...]
) -> Launch:
    """A kernel for so many tensors of any length, and a result of ``shape``, rows by elements.

    A GPU's work item is a place in a row of a tensor (row and tensor are the same for a whole group, so that neighbours
    run together), a CPU's some rows of all tensors.
    """
    bits, parts, head, (rows, whole) = _BITS[unit], range(len(lengths)), "", shape
    if runtime.device_info(context.devices[0]).type == "cpu":
        head, share = "__attribute__((reqd_work_group_size(1, 1, 1))) ", max(1, min(CPU_MAX_ROWS, rows // CPU_MIN_ROWS))
        work, group = (-(-rows // share), 1, 1), (1, 1, 1)
        lines = [
            "const long first = get_global_id(0) * share, end = min(first + share, rows);",
            "for (long row = first; row < end; ++row) {",
            *(f"  copy_row(p{k} + o{k} + row * n{k}, y + row * whole + s{k}, n{k});" for k in parts),
            "}",
        ]
    else:
        items = min(GPU_GROUP, 1 << (max(lengths) - 1).bit_length())
        share = -(-max(lengths) // items)
        work, group = (share * rows * items, len(lengths)), (items, 1)
        lines = [
            "const uint row = (uint)get_group_id(0) / (uint)share;",
            "const long i = ((uint)get_group_id(0) % (uint)share) * (long)get_local_size(0) + get_local_id(0);",
            "const int part = get_global_id(1);",
            f"global const {bits} *x = p0 + o0;",
            "long length = n0, start = s0;",
            *(f"if (part == {k}) x = p{k} + o{k}, length = n{k}, start = s{k};" for k in parts[1:]),
            "if (i < length) y[row * whole + start + i] = x[row * length + i];",
        ]
    arguments = [
        f"global const {bits} *restrict p{k}, const long o{k}, const long n{k}, const long s{k}" for k in parts
    ]
    arguments += ["const long share", "const long rows", "const long whole", f"global {bits} *restrict y"]
    inner = "\n  ".join(lines)
    text = f"{_CPU_ROW if head else ''}kernel {head}void join({', '.join(arguments)}) {{\n  {inner}\n}}\n"
    given = [value for k in parts for value in (f"p{k}", f"o{k}", np.int64(lengths[k]), np.int64(starts[k]))]
    given += [np.int64(share), np.int64(rows), np.int64(whole), "y"]
    names = [f"{name}{k}" for k in parts for name in "po"] + ["y"]
    dtypes = [each for _ in parts for each in (None, np.int64, np.int64, np.int64)] + [np.int64] * 3 + [None]
    return Launch(build(context, text), "join", work, group, given, names=names, dtypes=dtypes)


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
