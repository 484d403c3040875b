"""Values of a tensor put together by tables: padding, repeating, gathering and interpolating along any axes.

Along a sampled axis a table says for each place of the result which places of x it comes from, and with which weights:
``y[..., o, ...] = sum over t of weight[o, t] * x[..., index[o, t], ...]``. Several axes are sampled in one kernel, and
an index of -1 stands for the fill value. The tables are made on the host, once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.programs.kernels import Launch, build
from ..device.tracing import operation
from .codegen.elements import element, kind_of, prelude
from .tensor import Tensor, current_tape, paused

Table = tuple[np.ndarray, np.ndarray | None]
"""Indices ``[out, taps]`` into an axis and their weights; without weights there is one tap, ``[out]``."""
_GROUP = 256
CPU_GROUP_ITEMS = 1024
"""The most work items of a work group on a CPU."""
CPU_MIN_GROUPS = 64
"""The least number of work groups on a CPU if each has several rows."""


def sample(x: Tensor, tables: Mapping[int, Table], fill: float = 0.0) -> Tensor:
    """The tensor with each axis that ``tables`` names made anew by its table; the others stay.

    Elements are moved as they are where no table has weights; weighted sums are taken in float32 or wider. Where any
    axis' index is -1 the result is ``fill``. Raises InvalidArgument for an index outside x, or a tape that watches x.
    """
    axes = tuple(sorted(axis % x.ndim for axis in tables))
    operands: list[Tensor | None] = []
    # In a recording, the tables are uploaded on the recording's own queue, so that they exist before the net runs.
    queue = getattr(x.queue, "queue", x.queue)
    given = {axis % x.ndim: table for axis, table in tables.items()}
    for axis in axes:
        index, weight = given[axis]
        index = np.ascontiguousarray(index, np.int32)
        index = index.reshape(len(index), -1 if index.size else 1)
        if index.size and (index.min() < -1 or index.max() >= x.shape[axis]):
            raise InvalidArgument(
                f"an index along axis {axis} of {x.shape[axis]} elements is -1 to {x.shape[axis] - 1}, "
                f"got {index.min()} to {index.max()}"
            )
        operands.append(Tensor.from_numpy(index, queue))
        operands.append(None if weight is None else Tensor.from_numpy(_weights(weight, index, x.dtype), queue))
    return sampled(x, axes, operands, fill)


def _weights(weight: np.ndarray, index: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(weight, index.shape), np.float64 if dtype == np.float64 else np.float32)


@operation
def sampled(x: Tensor, axes: Sequence[int], operands: Sequence[Tensor | None], fill: float) -> Tensor:
    """``sample`` with its tables on the device: indices and weights of each of ``axes`` in turn."""
    tape = current_tape()
    if tape is not None and tape.tracks(x):
        raise InvalidArgument("sample has no gradient here; use it outside the tape's block")
    with paused():
        given = x if x.contiguous else x.copy()
    shape, taps = list(x.shape), []
    for axis, index in zip(axes, operands[::2], strict=True):
        shape[axis] = index.shape[0]  # type: ignore[union-attr]
        taps.append(index.shape[1])  # type: ignore[union-attr]
    y = Tensor.empty(shape, x.dtype, x.queue)
    if not y.size:
        return y
    weighted = tuple(operand is not None for operand in operands[1::2])
    form = _Form(x.dtype, x.shape, tuple(shape), tuple(axes), tuple(taps), weighted, float(fill))
    memory = [operand.base_data for operand in operands if operand is not None]
    first = np.int64(given.offset // x.dtype.itemsize)
    _launch(x.context, form)(x.queue, (given.base_data, first, *memory, y.base_data))
    return y


class _Form(NamedTuple):
    """What the kernel's text follows from; ``shape`` is x's, ``result`` y's."""

    dtype: np.dtype
    shape: tuple[int, ...]
    result: tuple[int, ...]
    axes: tuple[int, ...]
    taps: tuple[int, ...]
    weighted: tuple[bool, ...]
    fill: float


@functools.lru_cache(maxsize=1024)
def _launch(context: cl.Context, form: _Form) -> Launch:
    total, inner = math.prod(form.result), form.result[-1]
    gpu = runtime.device_info(context.devices[0]).type != "cpu"
    tables = [name for n, has in enumerate(form.weighted) for name in (f"i{n}", *([f"w{n}"] if has else []))]
    names = ["x", "offset", *tables, "y"]
    size: tuple[int, ...] = (-(-total // _GROUP) * _GROUP,) if gpu else (inner, total // inner)
    group = (_GROUP,) if gpu else _rows(inner, total // inner)
    comment = f"// {'weighted ' * any(form.weighted)}sample along {form.axes}\n"
    program = build(context, comment + _source(form, by_rows=not gpu))
    return Launch(program, "sample_axes", size, group, " ".join(names), names=names)


def _rows(inner: int, rows: int) -> tuple[int, ...] | None:
    """A work group of several short rows on a CPU, which takes a while to begin one; None: as the runtime likes."""
    most = min(CPU_GROUP_ITEMS // inner, rows // CPU_MIN_GROUPS)
    count = next((count for count in range(most, 1, -1) if rows % count == 0), 1)
    return (inner, count) if count > 1 else None


def _source(form: _Form, by_rows: bool) -> str:
    """The kernel, with an item for each element of the result; ``by_rows``, dimension 0 is its last axis."""
    dtype, shape, result, axes, taps, weighted, fill = form
    store, kind, summing = element(dtype), kind_of([dtype], False), any(weighted)
    arguments = [f"global const {store.storage} *restrict x", "const long offset"]
    for n, has in enumerate(weighted):
        arguments += [f"global const int *restrict i{n}"] + [f"global const {kind} *restrict w{n}"] * has
    arguments.append(f"global {store.storage} *restrict y")
    total = math.prod(result)
    index = "uint" if total < 2**31 else "ulong"
    last, place_type = len(shape) - 1, "int" if by_rows and math.prod(shape) < 2**31 else "long"
    if by_rows:
        # A CPU's compiler makes vectors of work items along dimension 0, which share the index of every other axis. A
        # vector holds twice as many 32-bit indices as 64-bit ones.
        lines = [
            f"{index} rest = get_global_id(1);",
            f"const {index} a{last} = get_global_id(0), item = rest * ({index}){result[-1]} + a{last};",
            "x += offset;",
        ]
    else:
        lines = [
            f"const {index} item = get_global_id(1) * (ulong){result[-1]} + get_global_id(0);"
            f" if (item >= {total}{'u' if index == 'uint' else 'ul'}) return;",
            f"{index} rest = item;",
        ]
    step, steps = 1, [0] * len(shape)
    for axis in range(len(shape) - 1, -1, -1):
        steps[axis], step = step, step * shape[axis]
    place = ["0" if by_rows else "offset"]
    for axis in range(last, -1, -1):
        if not by_rows or axis != last:
            lines.append(f"const {index} a{axis} = rest{f' % {result[axis]}' if axis else ''};")
            lines += [f"rest /= {result[axis]};"] if axis else []
        if axis not in axes and shape[axis] > 1:
            place.append(f"({place_type})a{axis} * {steps[axis]}")
    lines.append(f"const {place_type} at = {' + '.join(place)};")
    empty = f"({store.storage if not summing else kind})({_number(fill, dtype)})"
    lines.append(f"{kind} sum = 0; int missing = 0;" if summing else f"int missing = 0; {place_type} from = at;")
    if not summing:
        for n, axis in enumerate(axes):
            lines.append(f"const int j{n} = i{n}[a{axis}]; missing |= j{n} < 0;")
            lines.append(f"from += ({place_type})max(j{n}, 0) * {steps[axis]};")
        raw = dtype.itemsize == 2 and dtype.name in ("float16", "bfloat16")
        # A 16-bit float is only moved, as a value of its storage type, because kernels do not compute in half.
        if raw:
            value = f"missing ? ({kind})({_number(fill, dtype)}) : {store.load.format(p='x', i='from')}"
            lines.append(store.store.format(p="y", i="item", v=f"({value})") + ";")
        else:
            lines.append(f"y[item] = missing ? {empty} : x[from];")
    else:
        close = ""
        for n, axis in enumerate(axes):
            before, factor = (f"f{n - 1}", f"p{n - 1}") if n else ("at", "")
            lines.append(f"for (int t{n} = 0; t{n} < {taps[n]}; ++t{n}) {{")
            lines.append(f"const int j{n} = i{n}[a{axis} * {taps[n]} + t{n}]; missing |= j{n} < 0;")
            lines.append(f"const {place_type} f{n} = {before} + ({place_type})max(j{n}, 0) * {steps[axis]};")
            weight = f"w{n}[a{axis} * {taps[n]} + t{n}]" if weighted[n] else f"({kind})1"
            lines.append(f"const {kind} p{n} = {f'{factor} * ' if factor else ''}{weight};")
            close += "}"
        inmost = len(axes) - 1
        lines.append(f"sum += p{inmost} * {store.load.format(p='x', i=f'f{inmost}')};")
        lines.append(close)
        lines.append(store.store.format(p="y", i="item", v=f"(missing ? {empty} : sum)") + ";")
    body = "\n  ".join(lines)
    return f"{prelude([dtype], kind)}kernel void sample_axes({', '.join(arguments)}) {{\n  {body}\n}}\n"


def _number(value: float, dtype: np.dtype) -> str:
    if dtype.kind in "iub":
        return f"{int(value)}"
    if math.isnan(value) or math.isinf(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return repr(float(value)) + ("" if dtype == np.float64 else "f")
