"""Concatenation as views into one buffer."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.programs.kernels import Launch, build, keeps_programs
from ..device.tracing import operation
from .apply import compute
from .taping import current_tape, paused
from .tensor import Tensor

if TYPE_CHECKING:
    import pyopencl as cl

_PARTS = 8
"""Tensors that one kernel takes."""
_GROUP, _LEAST = 256, 64
"""Work items of a group, and the longest row's least length in them; shorter ones leave groups empty."""
_ROWS, _EACH, _LANES = 16, 64, 16
"""Rows from which a CPU's kernel is worth it, most rows of its work items, and elements of its vectors."""
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
        # The gradients are views too; what needs them contiguous copies them.
        tape.record(result, tensors, lambda dy: _parts(dy, axis, sizes))
    return result


def _copy(tensors: list[Tensor], views: list[Tensor], result: Tensor, axis: int) -> None:
    """The tensors to where they belong, in one launch, unless they are too many, too small or not contiguous."""
    filled = [(tensor, view) for tensor, view in zip(tensors, views, strict=True) if tensor.size]
    size = result.dtype.itemsize

    def one_by_one() -> None:
        for tensor, view in filled:
            compute("x", {"x": tensor}, out=view)

    rows = math.prod(result.shape[:axis])
    if not 2 <= len(filled) <= _PARTS or size not in _BITS or not all(t.contiguous for t, _ in filled):
        one_by_one()
        return
    if runtime.device_info(result.queue.device).type == "cpu":
        lengths = [tensor.size // rows for tensor, _ in filled]
        if size != 4 or rows < _ROWS or min(lengths) < _LANES:
            one_by_one()
            return
        _join_rows(result.context, len(filled))(result, filled, rows, lengths)
        return
    # In bytes; in pieces of 16 where all allow that.
    starts, offsets = [view.offset for _, view in filled], [tensor.offset for tensor, _ in filled]
    lengths = [tensor.nbytes // rows for tensor, _ in filled]
    unit = 16 if not any(number % 16 for number in (*starts, *lengths, *offsets)) else size
    if max(lengths) < _LEAST * unit:
        one_by_one()
        return
    launch = _launch(result.context, unit, rows, *(tuple(n // unit for n in numbers) for numbers in (lengths, starts)))
    operands: list[Any] = []
    for tensor, _ in filled:
        operands += (tensor.base_data, np.int64(tensor.offset // unit))
    launch(result.queue, (*operands, result.base_data))


@keeps_programs
def _launch(context: cl.Context, unit: int, rows: int, lengths: tuple[int, ...], starts: tuple[int, ...]) -> Launch:
    """A kernel for so many tensors of any length; a work item is a place in a row of a tensor.

    Row and tensor are the same for a whole group, so that neighbours run together.
    """
    bits, parts = _BITS[unit], range(len(lengths))
    arguments = [
        f"global const {bits} *restrict p{k}, const long o{k}, const long n{k}, const long s{k}" for k in parts
    ]
    choose = [f"if (part == {k}) x = p{k} + o{k}, length = n{k}, start = s{k};" for k in parts[1:]]
    lines = [
        "const uint row = (uint)get_group_id(0) / blocks;",
        "const long i = ((uint)get_group_id(0) % blocks) * (long)get_local_size(0) + get_local_id(0);",
        "const int part = get_global_id(1);",
        f"global const {bits} *x = p0 + o0;",
        "long length = n0, start = s0;",
        *choose,
        "if (i < length) y[row * whole + start + i] = x[row * length + i];",
    ]
    inner = "\n  ".join(lines)
    arguments += ["const uint blocks", "const long whole", f"global {bits} *restrict y"]
    text = f"kernel void join({', '.join(arguments)}) {{\n  {inner}\n}}\n"
    group = min(_GROUP, 1 << (max(lengths) - 1).bit_length())
    blocks = -(-max(lengths) // group)
    work = (blocks * rows * group, len(lengths))
    given = [value for k in parts for value in (f"p{k}", f"o{k}", np.int64(lengths[k]), np.int64(starts[k]))]
    names = [f"{name}{k}" for k in parts for name in "po"] + ["y"]
    given += [np.uint32(blocks), np.int64(sum(lengths)), "y"]
    return Launch(build(context, text), "join", work, (group, 1), given, names=names)


@keeps_programs
def _join_rows(context: cl.Context, count: int) -> Callable[..., None]:
    """``join(result, (tensor, view) pairs, rows, lengths)`` on a CPU: a work item copies rows, by vectors of sixteen;
    the last one of a part ends with it, so what two write is the same."""
    parts = range(count)
    lines = [
        "const long first = get_global_id(0) * each, end = min(first + each, rows);",
        "for (long row = first; row < end; ++row) {",
        "  global uint *to = y + row * whole;",
        *(f"  copy_row(p{k} + o{k} + row * n{k}, to, n{k});\n    to += n{k};" for k in parts),
        "}",
    ]
    inner = "\n  ".join(lines)
    arguments = [f"global const uint *restrict p{k}, const long o{k}, const long n{k}" for k in parts]
    arguments += ["global uint *restrict y, const long whole, const long rows, const long each"]
    text = (
        "inline void copy_row(global const uint *restrict x, global uint *restrict y, const long n) {\n"
        "  for (long i = 0; i + 16 <= n; i += 16) vstore16(vload16(0, x + i), 0, y + i);\n"
        "  if (n % 16) vstore16(vload16(0, x + n - 16), 0, y + n - 16);\n}\n"
        f"kernel __attribute__((reqd_work_group_size(1, 1, 1))) void join({', '.join(arguments)}) {{\n  {inner}\n}}\n"
    )
    program = build(context, text)
    names = [f"{name}{k}" for k in parts for name in "pon"] + ["y", "whole", "rows", "each"]
    dtypes = [None, np.int64, np.int64] * count + [None, np.int64, np.int64, np.int64]

    @functools.cache
    def launch(items: int) -> Launch:
        return Launch(program, "join", (items, 1, 1), (1, 1, 1), names, names=names, dtypes=dtypes)

    def join(result: Tensor, filled: Any, rows: int, lengths: list[int]) -> None:
        each, operands = max(1, min(_EACH, rows // _ROWS)), []
        for (tensor, _), length in zip(filled, lengths, strict=True):
            operands += [tensor.base_data, np.int64(tensor.offset // 4), np.int64(length)]
        operands += [result.base_data, np.int64(sum(lengths)), np.int64(rows), np.int64(each)]
        launch(-(-rows // each))(result.queue, operands)

    return join


def _parts(buffer: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    starts = itertools.accumulate(sizes, initial=0)
    before = (slice(None),) * axis
    return [buffer[(*before, slice(start, start + size))] for start, size in zip(starts, sizes, strict=False)]


def _already(tensors: list[Tensor], axis: int) -> Tensor | None:
    """The whole of which the tensors are neighbouring views, where they are that."""
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
