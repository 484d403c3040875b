"""Writes the kernel of one formula over operands of given shapes, strides and types, and makes it ready to launch.

Axes are collapsed first. What is contiguous becomes one axis, and its length an argument of the kernel, so that one
program serves every size; shapes that need several axes are literals, so that the compiler divides by constants. A
GPU's work item takes four neighbouring elements where they can be loaded at once; a CPU's takes one, and the runtime
makes vectors of neighbouring items.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.dtypes import numpy_dtype
from ...device import runtime
from ...device.programs.kernels import Launch, build
from .elements import element, kind_of, prelude
from .expression import Formula
from .strides import collapse

VECTOR = 4
_GPU_GROUP = 256
"""The most work items of a work group on a GPU."""
_CPU_GROUP = 1024
"""The most work items of a work group on a CPU."""
_LONG_ROW = 512
"""The length of the last axis from which each work group on a CPU stays within one row."""
SCALARS = {"float": np.float32, "double": np.float64, "long": np.int64}
"""The NumPy type of each OpenCL C type that kernels compute in."""


@dataclass(frozen=True)
class Operand:
    """A tensor operand of a kernel: its strides (elements) in the common shape; how it is used."""

    name: str
    dtype: np.dtype
    strides: tuple[int, ...]
    read: bool = True
    written: bool = False
    aligned: bool = True
    """Whether the first element's address is a multiple of 16 bytes."""


class Prepared:
    """A compiled kernel; ``call(queue, arguments)`` with buffer and first element of each operand, then scalars."""

    def __init__(self, launch: Launch, size: int, flat: bool) -> None:
        self._launch, self._tail = launch, (np.uint32(size),) if flat else ()

    def __call__(self, queue: cl.CommandQueue, arguments: list[Any]) -> cl.Event:
        """Enqueue on ``queue``."""
        return self._launch(queue, (*arguments, *self._tail))


def prepare(
    context: cl.Context,
    formula: Formula,
    shape: tuple[int, ...],
    operands: tuple[Operand, ...],
    scalars: tuple[str, ...],
    integral_scalars: bool,
) -> Prepared:
    """The kernel that computes ``formula`` for every index of ``shape``.

    The operand named ``""`` receives the formula's result. ``scalars`` are names of numbers passed as arguments.
    """
    gpu = runtime.device_info(context.devices[0]).type != "cpu"
    sizes, steps, _ = collapse(shape, [operand.strides for operand in operands])
    flat = len(sizes) <= 1 and math.prod(shape) < 2**32
    kind = kind_of([operand.dtype for operand in operands if operand.read], formula.integral and integral_scalars)
    wide = gpu and _can_load_four(sizes, steps, operands, flat)
    # A kernel over contiguous elements takes their number as an argument, so one program serves all lengths.
    text = _source(
        formula,
        tuple(sizes) if not flat else (),
        tuple(tuple(step) if not flat else (step[0] if step else 0,) for step in steps),
        tuple((o.name, o.dtype.name, o.read, o.written) for o in operands),
        scalars,
        kind,
        VECTOR if wide else 1,
        gpu,
    )
    size = math.prod(shape)
    work, group = _sizes(size, sizes, flat, gpu, VECTOR if wide else 1)
    names = [f"{part}{i}" for i in range(len(operands)) for part in "po"] + [f"v_{name}" for name in scalars]
    names += ["n"] if flat else []
    dtypes = [dtype for _ in operands for dtype in (None, np.int64)] + [SCALARS[kind]] * len(scalars)
    dtypes += [np.uint32] if flat else []
    launch = Launch(build(context, text), "apply", work, group, names, names=names, dtypes=dtypes)
    return Prepared(launch, size, flat)


def _can_load_four(sizes: list[int], steps: list[list[int]], operands: tuple[Operand, ...], flat: bool) -> bool:
    """Elements are 4 bytes, and four neighbours of the last axis lie together at a multiple of 16 bytes, or repeat."""
    if not sizes or any(operand.dtype.itemsize != 4 for operand in operands):
        return False
    if not flat and sizes[-1] % VECTOR:
        return False
    return all(
        step[-1] == 0 or (step[-1] == 1 and operand.aligned and all(s % VECTOR == 0 for s in step[:-1]))
        for step, operand in zip(steps, operands, strict=True)
    )


def _sizes(size: int, sizes: list[int], flat: bool, gpu: bool, wide: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the global and the local size; surplus work items return immediately."""
    if flat or gpu:
        items = -(-size // wide)
        group = min(_GPU_GROUP if gpu else _CPU_GROUP, 1 << max(0, (items - 1).bit_length()))
        return (-(-items // group) * group,), (group,)
    row_length = sizes[-1]
    if row_length >= _LONG_ROW:
        parts, share = _shares(row_length)
        return (parts * share * math.prod(sizes[:-1]),), (share,)
    middle = sizes[-2]
    group_x, group_y = _cpu_groups(row_length, middle)
    row_groups = math.prod(sizes[:-2])
    return (-(-row_length // group_x) * group_x, -(-middle // group_y) * group_y, row_groups), (group_x, group_y, 1)


def _shares(row_length: int) -> tuple[int, int]:
    """Into how many groups a CPU cuts a long row, and their size: even shares, whole vectors of sixteen."""
    parts = -(-row_length // _CPU_GROUP)
    return parts, min(_CPU_GROUP, -(-row_length // (parts * 16)) * 16)


def _cpu_groups(row_length: int, middle: int) -> tuple[int, int]:
    """Return the size of a CPU's work group over the last two axes."""
    group_x = min(_CPU_GROUP, row_length)
    return group_x, min(middle, max(1, _CPU_GROUP // group_x))


@functools.lru_cache(maxsize=4096)
def _source(
    formula: Formula,
    sizes: tuple[int, ...],
    steps: tuple[tuple[int, ...], ...],
    operands: tuple[tuple[str, str, bool, bool], ...],
    scalars: tuple[str, ...],
    kind: str,
    wide: int,
    gpu: bool,
) -> str:
    dtypes = [numpy_dtype(dtype) for _, dtype, _, _ in operands]
    stored = [element(dtype) for dtype in dtypes]
    arguments = [
        f"global {'' if written else 'const '}{store.storage} *p{i}, const long o{i}"
        for i, ((_, _, _, written), store) in enumerate(zip(operands, stored, strict=True))
    ]
    arguments += [f"const {kind} v_{name}" for name in scalars]
    flat = not sizes
    arguments += ["const uint n"] if flat else []
    statements, result = formula.opencl(kind)
    known = {name for name, *_ in operands} | set(scalars)
    local = [name for name in formula.assigned if name not in known]

    def body(lane: str) -> list[str]:
        """Return the OpenCL lines for one element; ``lane`` is "" or the component of a vector of four."""
        lines = []
        for i, (name, _, read, written) in enumerate(operands):
            if name and (read or written):
                value = "" if not read else f" = {_load(i, stored[i].load, steps[i][-1], lane, kind)}"
                lines.append(f"{kind} v_{name}{value};")
        lines += [f"{kind} v_{name};" for name in local]
        lines += [f"v_{target} = {value};" for target, value in statements]
        for i, (name, _, _, written) in enumerate(operands):
            if written:
                value = f"v_{name}" if name else str(result)
                store = f"w{i}{lane} = {value}" if lane else stored[i].store.format(p=f"p{i}", i=f"i{i}", v=value)
                lines.append(store + ";")
        return lines

    lines = _places(sizes, steps, wide, gpu)
    if wide == 1:
        lines += body("")
    else:
        lines += _vectors(operands, stored, steps, body, flat)
    text = "\n  ".join(lines)
    return (
        f"// {_line(formula.text)}\n{prelude(dtypes, kind)}kernel void apply({', '.join(arguments)}) {{\n  {text}\n}}\n"
    )


def _load(i: int, load: str, inner: int, lane: str, kind: str) -> str:
    if lane and inner:
        return f"({kind})w{i}{lane}" if kind != "float" else f"w{i}{lane}"
    return f"({kind})({load.format(p=f'p{i}', i=f'i{i}')})"


def _places(sizes: tuple[int, ...], steps: tuple[tuple[int, ...], ...], wide: int, gpu: bool) -> list[str]:
    """Return the OpenCL lines that compute the index of the work item's first element in each operand: ``i0``, ``i1``,
    ..."""
    if not sizes:
        lines = [f"const ulong i = (ulong)get_global_id(0){f' * {wide}' if wide > 1 else ''};", "if (i >= n) return;"]
        return lines + [
            f"const long i{k} = o{k}{f' + (long)i * {step[0]}' if step[0] not in (0, 1) else ' + (long)i' * step[0]};"
            for k, step in enumerate(steps)
        ]
    axes = len(sizes)
    if gpu:
        total = math.prod(sizes) // wide
        index = "uint" if total < 2**32 else "ulong"
        lines = [f"{index} rest = get_global_id(0);", f"if (rest >= {total}{'u' if index == 'uint' else 'ul'}) return;"]
        for axis in range(axes - 1, 0, -1):
            size = sizes[axis] // (wide if axis == axes - 1 else 1)
            scale = f" * {wide}" if axis == axes - 1 and wide > 1 else ""
            lines += [f"const {index} a{axis} = rest % {size}{scale};", f"rest /= {size};"]
        lines.append(f"const {index} a0 = rest;")
    elif sizes[-1] >= _LONG_ROW:
        # Work groups form one row, each within a row of the last axis: neighbours in memory run one after the other.
        parts, share = _shares(sizes[-1])
        lines = [
            f"const long a{axes - 1} = get_group_id(0) % {parts} * {share} + get_local_id(0);",
            f"long rest = get_group_id(0) / {parts};",
        ]
        if sizes[-1] % share:
            lines.append(f"if (a{axes - 1} >= {sizes[-1]}) return;")
        lines += _split(sizes[:-1])
    else:
        lines = [
            f"const long a{axes - 1} = get_global_id(0);",
            f"const long a{axes - 2} = get_global_id(1);",
        ]
        # A bounds check is written only where work groups exceed an axis: a ``return`` makes compilers mask vectors.
        groups = _cpu_groups(sizes[-1], sizes[-2])
        left = [
            f"a{axes - 1 - n} >= {size}" for n, (size, group) in enumerate(zip(sizes[:-3:-1], groups)) if size % group
        ]
        if left:
            lines.append(f"if ({' || '.join(left)}) return;")
        if axes > 2:
            lines += ["long rest = get_global_id(2);", *_split(sizes[:-2])]
    for k, step in enumerate(steps):
        terms = [f"(long)a{axis} * {s}" if s != 1 else f"a{axis}" for axis, s in enumerate(step) if s]
        lines.append(f"const long i{k} = {' + '.join([f'o{k}', *terms])};")
    return lines


def _split(sizes: tuple[int, ...]) -> list[str]:
    """Return the OpenCL lines that take ``rest`` apart into an index of each axis."""
    lines = []
    for axis in range(len(sizes) - 1, 0, -1):
        lines += [f"const long a{axis} = rest % {sizes[axis]};", f"rest /= {sizes[axis]};"]
    return [*lines, "const long a0 = rest;"]


def _vectors(operands: Any, stored: Any, steps: Any, body: Any, flat: bool) -> list[str]:
    """Four elements at once, and one at a time at the end of a flat range."""
    lines = []
    for i, (_, _, read, written) in enumerate(operands):
        if steps[i][-1]:
            kind = f"{stored[i].storage}4"
            qualifier = "const " if not written else ""
            value = f" = *(global {qualifier}{kind} *)(p{i} + i{i})" if read else ""
            lines.append(f"{kind} w{i}{value};")
    for lane in range(VECTOR):
        lines += ["{", *("  " + line for line in body(f".s{lane}")), "}"]
    for i, (_, _, _, written) in enumerate(operands):
        if written:
            lines.append(f"*(global {stored[i].storage}4 *)(p{i} + i{i}) = w{i};")
    if not flat:
        return lines
    tail = [f"const ulong j{k} = i{k};" for k in range(len(operands))]
    loop = [f"const long i{k} = j{k}{' + j' * bool(steps[k][-1])};" for k in range(len(operands))] + body("")
    return [
        f"if (i + {VECTOR} <= n) {{",
        *("  " + line for line in lines),
        "} else {",
        *("  " + line for line in tail),
        "  for (ulong j = 0; i + j < n; ++j) {",
        *("    " + line for line in loop),
        "  }",
        "}",
    ]


def _line(text: str) -> str:
    """Return a formula as one line of comment in the kernel."""
    return " ".join(text.split()).replace("\\", "")
