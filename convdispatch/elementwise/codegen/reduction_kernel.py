"""Writes the kernels of a reduction: a formula's values combined over some axes of the operands' common shape.

Axes collapse into free ones (index k) and reduced ones (index r). On a GPU a work group takes some k and shares their
r among its items, neighbouring items taking what lies together in memory; a tree through local memory combines them.
On a CPU a work item takes one k and runs over r with sixteen partial results, so that the additions overlap and
rounding stays small; where neighbours in memory are free, a work item takes one k and the compiler makes vectors of
neighbouring items. Long reductions are split among more groups, whose partial results a second kernel combines.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import pyopencl as cl

from ...api.dtypes import numpy_dtype
from ...api.policy import current_policy
from ...device import runtime
from ...device.programs.kernels import Launch, build
from .elements import element, kind_of, prelude
from .expression import Formula, parse
from .kernel import SCALARS, VECTOR, Operand, _can_load_four, _line, _load
from .strides import collapse

OPERATIONS = {
    # Each value is (combination of a and b, neutral element for floats, neutral element for integers).
    "sum": ("({a}) + ({b})", "0", "0"),
    "prod": ("({a}) * ({b})", "1", "1"),
    "max": ("(({a}) != ({a}) || ({a}) > ({b}) ? ({a}) : ({b}))", "-INFINITY", "LONG_MIN"),
    "min": ("(({a}) != ({a}) || ({a}) < ({b}) ? ({a}) : ({b}))", "INFINITY", "LONG_MAX"),
}
_COMBINE = "s0 = COMBINE(s0, x0);"
_GROUP = 256
_LANES = 16
_SHARED_SUMS = 32
"""The sums that a GPU's work group takes under ``batch_invariant``, where neighbours in memory belong to other sums."""
_COLUMNS = 64
"""The most columns of a work group on a CPU."""
# The number of work groups for each compute unit of the device.
_GROUPS_WANTED = {"gpu": 16, "cpu": 8}


@dataclass(frozen=True)
class _Form:
    """Everything that shapes a kernel's text."""

    operation: str
    formula: Formula
    free: tuple[int, ...]
    reduced: tuple[int, ...]
    free_steps: tuple[tuple[int, ...], ...]
    reduced_steps: tuple[tuple[int, ...], ...]
    operands: tuple[tuple[str, str], ...]
    """The operands' names and types."""
    scalars: tuple[str, ...]
    kind: str
    result: str
    scale: float
    lanes_k: int
    lanes_r: int
    splits: int
    rows: bool
    """Whether the reduced elements are neighbours in memory."""
    gpu: bool
    wide: int
    """The number of neighbouring elements that a GPU's work item reads by one load."""


class Reduction:
    """A compiled reduction: one launch, or two launches with partial results between them."""

    def __init__(self, first: Launch, second: Launch | None = None, partial: int = 0) -> None:
        self._first, self._second, self._partial = first, second, partial

    def __call__(self, queue: cl.CommandQueue, arguments: list, target: tuple) -> None:
        """``arguments``: buffer and first element of each operand, then scalars; ``target``: the same of the result."""
        if self._second is None:
            self._first(queue, (*arguments, *target))
            return
        between = (runtime.allocate(queue, self._partial), 0)
        self._first(queue, (*arguments, *between))
        self._second(queue, (*between, *target))


def plan(
    context: cl.Context,
    operation: str,
    formula: Formula,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    operands: tuple[Operand, ...],
    scalars: tuple[str, ...],
    result: np.dtype,
    scale: float,
    integral: bool,
) -> Reduction:
    """Kernels that combine a formula's values over ``axes`` of ``shape`` and multiply the result by ``scale``."""
    info = runtime.device_info(context.devices[0])
    gpu = info.type != "cpu"
    groups = [axis in axes for axis in range(len(shape))]
    sizes, steps, kinds = collapse(shape, [operand.strides for operand in operands], groups)
    free = [axis for axis, kind in enumerate(kinds) if not kind]
    reduced = [axis for axis, kind in enumerate(kinds) if kind]
    dtypes = [operand.dtype for operand in operands if operand.read]
    kind = kind_of(dtypes, integral and formula.integral)
    k, r = math.prod(sizes[a] for a in free), math.prod(sizes[a] for a in reduced)
    rows = bool(kinds) and bool(kinds[-1])
    lanes_k, lanes_r = _lanes(k, r, rows) if gpu else (1, 1)
    wanted_groups = _GROUPS_WANTED["gpu" if gpu else "cpu"] * info.compute_units
    units = -(-k // lanes_k) if gpu or rows else -(-k // _COLUMNS)
    # A work item reads four neighbours by one load of 16 bytes, with one division for their index instead of four.
    wide = VECTOR if gpu and rows and _can_load_four(sizes, steps, operands, False) else 1
    least_elements = lanes_r * 16 if gpu else 4096
    splits = max(1, min(wanted_groups // units, r // least_elements, 1024))
    if (
        current_policy().is_invariant
    ):  # The order of a sum follows from its own length, not from how many sums there are.
        splits, (lanes_k, lanes_r) = 1, _lanes(_SHARED_SUMS, r, rows) if gpu else (1, 1)
    form = _Form(
        operation,
        formula,
        tuple(sizes[a] for a in free),
        tuple(sizes[a] for a in reduced),
        tuple(tuple(step[a] for a in free) for step in steps),
        tuple(tuple(step[a] for a in reduced) for step in steps),
        tuple((operand.name, operand.dtype.name) for operand in operands),
        scalars,
        kind,
        result.name if splits == 1 else SCALARS[kind].__name__,
        scale if splits == 1 else 1.0,
        lanes_k,
        lanes_r,
        splits,
        rows,
        gpu,
        wide,
    )
    first_launch = _launch(context, form)
    if splits == 1:
        return Reduction(first_launch)
    lanes_k, lanes_r = _lanes(k, splits, False) if gpu else (1, 1)
    second_form = replace(
        form, formula=parse("s0"), free=(k,), reduced=(splits,), scalars=(), free_steps=((1,),), reduced_steps=((k,),),
        result=result.name, operands=(("s0", SCALARS[kind].__name__),), scale=scale, lanes_k=lanes_k, lanes_r=lanes_r,
        splits=1, rows=False, wide=1,
    )  # fmt: skip
    return Reduction(first_launch, _launch(context, second_form), k * splits * np.dtype(SCALARS[kind]).itemsize)


def _lanes(k: int, r: int, rows: bool) -> tuple[int, int]:
    """Return how a GPU's work group is divided between free and reduced indices."""
    if rows:
        lanes_r = min(_GROUP, max(8, 1 << (max(1, r // 4) - 1).bit_length()))
        return _GROUP // lanes_r, lanes_r
    lanes_k = min(32, max(4, 1 << (k - 1).bit_length()))
    return lanes_k, min(_GROUP // lanes_k, max(1, 1 << (max(1, r) - 1).bit_length()))


def _launch(context: cl.Context, form: _Form) -> Launch:
    k = math.prod(form.free)
    if form.gpu:
        size = (-(-k // form.lanes_k) * form.lanes_k * form.lanes_r, form.splits)
        group: tuple[int, ...] | None = (form.lanes_k * form.lanes_r, 1)
    else:
        # Reduction over columns: neighbouring work items take neighbouring elements, whatever the outer axes are.
        row_length, wide = form.free[-1] if form.free else 1, _columns(form)
        columns = (-(-row_length // wide) * wide, form.splits, k // row_length)
        size, group = ((k, form.splits), (1, 1)) if form.rows else (columns, (wide, 1, 1))
    names = [f"{part}{i}" for i in range(len(form.operands)) for part in "po"] + [f"v_{name}" for name in form.scalars]
    names += ["pr0", "or0"]
    dtypes = [t for _ in form.operands for t in (None, np.int64)]
    dtypes += [*[SCALARS[form.kind]] * len(form.scalars), None, np.int64]
    return Launch(build(context, _source(form)), "reduce_over", size, group, names, names=names, dtypes=dtypes)


@functools.lru_cache(maxsize=4096)
def _source(form: _Form) -> str:
    dtypes = [numpy_dtype(dtype) for _, dtype in form.operands]
    out = numpy_dtype(form.result)
    arguments = [f"global const {element(d).storage} *restrict p{i}, const long o{i}" for i, d in enumerate(dtypes)]
    arguments += [f"const {form.kind} v_{name}" for name in form.scalars]
    arguments.append(f"global {element(out).storage} *pr0, const long or0")
    combine, neutral, integer_neutral = OPERATIONS[form.operation]
    text = prelude([*dtypes, out], form.kind)
    text += f"#define COMBINE(a, b) ({combine.format(a='a', b='b')})\n"
    text += f"#define NEUTRAL (({form.kind}){integer_neutral if form.kind == 'long' else neutral})\n"
    body = _gpu(form) if form.gpu else _cpu_rows(form) if form.rows else _cpu_columns(form)
    items = form.lanes_k * form.lanes_r if form.gpu else 1 if form.rows else _columns(form)
    needs = f"__attribute__((reqd_work_group_size({items}, 1, 1)))\n"
    inner = "\n  ".join(body)
    comment = f"{form.operation} of {_line(form.formula.text)}"
    return f"// {comment}\n{text}kernel {needs}void reduce_over({', '.join(arguments)}) {{\n  {inner}\n}}\n"


def _values(form: _Form, lane: str = "") -> list[str]:
    """Statements that load operands at ``i<n>`` and compute ``x0``, the formula's value. ``lane`` is a component of
    what was loaded four at once."""
    lines = []
    for i, (name, dtype) in enumerate(form.operands):
        load = element(numpy_dtype(dtype)).load
        value = _load(i, load, form.reduced_steps[i][-1:] != (0,), lane, form.kind)
        lines.append(f"const {form.kind} v_{name} = {value};")
    statements, result = form.formula.opencl(form.kind)
    if not statements:
        return [*lines, f"const {form.kind} x0 = {result};"]
    lines.append(f"{form.kind} x0; {{")
    lines += [f"{form.kind} v_{name};" for name in form.formula.assigned]
    lines += [f"v_{target} = {value};" for target, value in statements]
    return [*lines, f"x0 = {result}; }}"]


def _quads(form: _Form, combine: str) -> list[str]:
    """Four neighbours at ``i<n>``: loaded at once, computed and combined one by one."""
    lines = []
    for i, (_, dtype) in enumerate(form.operands):
        kind = f"{element(numpy_dtype(dtype)).storage}{VECTOR}"
        if form.reduced_steps[i][-1]:
            lines.append(f"const {kind} w{i} = *(global const {kind} *)(p{i} + i{i});")
    for lane in range(VECTOR):
        lines += ["{", *("  " + line for line in [*_values(form, f".s{lane}"), combine]), "}"]
    return lines


def _split(name: str, index: str, sizes: tuple[int, ...], steps: tuple[tuple[int, ...], ...], base: str) -> list[str]:
    """``<base><n>``: offsets of a flat ``index`` over axes of ``sizes``, for each operand."""
    if not sizes:
        return [f"const long {base}{i} = 0;" for i in range(len(steps))]
    kind = "uint" if math.prod(sizes) < 2**32 else "ulong"
    lines = [f"{kind} {name} = {index};"] if len(sizes) > 1 else []
    axes = []
    for axis in range(len(sizes) - 1, 0, -1):
        lines += [f"const {kind} {name}{axis} = {name} % {sizes[axis]};", f"{name} /= {sizes[axis]};"]
        axes.append((axis, f"{name}{axis}"))
    axes.append((0, name if len(sizes) > 1 else f"({index})"))
    for i, step in enumerate(steps):
        terms = [f"(long){position} * {step[axis]}" for axis, position in axes if step[axis]]
        lines.append(f"const long {base}{i} = {' + '.join(terms) or '0'};")
    return lines


def _store(form: _Form, value: str) -> str:
    value = value if form.scale == 1.0 else f"{value} * ({form.kind}){form.scale!r}"
    where = "or0 + k" if form.splits == 1 else f"or0 + (long)split * {math.prod(form.free)} + k"
    return element(numpy_dtype(form.result)).store.format(p="pr0", i=f"({where})", v=value) + ";"


def _range(form: _Form) -> list[str]:
    r = math.prod(form.reduced) // form.wide
    if form.splits == 1:
        return [f"const long first = 0, last = {r};"]
    share = -(-r // form.splits)
    return [
        "const long split = get_global_id(1);",
        f"const long first = split * {share}, last = min(first + {share}, {r}L);",
    ]


def _gpu(form: _Form) -> list[str]:
    k, items = math.prod(form.free), form.lanes_k * form.lanes_r
    if form.rows:
        share = [f"const int lr = t % {form.lanes_r}, lk = t / {form.lanes_r};"]
    else:
        share = [f"const int lk = t % {form.lanes_k}, lr = t / {form.lanes_k};"]
    lines = ["const int t = get_local_id(0);", *share]
    lines.append(f"local {form.kind} part0[{items}];")
    lines.append(f"const long k = get_group_id(0) * {form.lanes_k}L + lk;")
    lines.append(f"{form.kind} s0 = NEUTRAL;")
    lines += _range(form)
    lines.append(f"if (k < {k}) {{")
    lines += ["  " + line for line in _split("kk", "k", form.free, form.free_steps, "b")]
    lines.append("#pragma unroll 4")
    lines.append(f"for (long r = first + lr; r < last; r += {form.lanes_r}) {{")
    lines += _split("rr", f"r * {form.wide}" if form.wide > 1 else "r", form.reduced, form.reduced_steps, "q")
    lines += [f"const long i{i} = o{i} + b{i} + q{i};" for i in range(len(form.operands))]
    lines += _quads(form, _COMBINE) if form.wide > 1 else [*_values(form), _COMBINE]
    lines += ["}", "}", "part0[t] = s0;"]
    step = 1 if form.rows else form.lanes_k
    lines.append(f"for (int span = {form.lanes_r} / 2; span > 0; span /= 2) {{")
    lines.append("  barrier(CLK_LOCAL_MEM_FENCE);")
    lines.append("  if (lr < span) {")
    lines.append(f"    part0[t] = COMBINE(part0[t], part0[t + span * {step}]);")
    return [*lines, "  }", "}", f"if (lr == 0 && k < {k}) {{", "  " + _store(form, "part0[t]"), "}"]


def _cpu_columns(form: _Form) -> list[str]:
    row_length, wide = form.free[-1] if form.free else 1, _columns(form)
    # The last work group ends at the last column, and stores no column that the group before it also computes.
    lines = [f"const long begin = get_group_id(0) * {wide}L, a = min(begin, {row_length - wide}L) + get_local_id(0);"]
    lines += [f"const long outer = get_global_id(2), k = outer * {row_length} + a;", "const bool own = a >= begin;"]
    lines.append(f"{form.kind} s0 = NEUTRAL;")
    lines += _range(form) + _split("kk", "outer", form.free[:-1], tuple(s[:-1] for s in form.free_steps), "c")
    steps = [step[-1] if step else 0 for step in form.free_steps]
    lines += [f"const long b{i} = c{i} + a * {step};" for i, step in enumerate(steps)]
    lines.append("for (long r = first; r < last; ++r) {")
    lines += _split("rr", "r", form.reduced, form.reduced_steps, "q")
    lines += [f"const long i{i} = o{i} + b{i} + q{i};" for i in range(len(form.operands))]
    lines += [*_values(form), _COMBINE, "}"]
    return [*lines, "if (own) {", "  " + _store(form, "s0"), "}"]


def _columns(form: _Form) -> int:
    """Columns of a CPU's group: whole vectors, for what is left over is compiled to add in another order, and then
    columns that are alike in memory are not in the result."""
    row_length = form.free[-1] if form.free else 1
    return row_length if row_length < _LANES else min(_COLUMNS, row_length // _LANES * _LANES)


def _cpu_rows(form: _Form) -> list[str]:
    """Whole rows of the last axis where a split holds some, pieces of a row at its ends; lanes within a row."""
    row_length = form.reduced[-1]
    lines = ["const long k = get_global_id(0);", f"{form.kind} s0 = NEUTRAL;"]
    lines += _range(form) + _split("kk", "k", form.free, form.free_steps, "b")
    lines.append("for (long r = first; r < last;) {")
    lines.append(
        f"const long row = r / {row_length}, start = r - row * {row_length}, "
        f"stop = min({row_length}L, start + last - r);"
    )
    lines += _split("rr", "row", form.reduced[:-1], tuple(step[:-1] for step in form.reduced_steps), "q")
    steps = [step[-1] for step in form.reduced_steps]
    lines += [f"{form.kind} a0[{_LANES}];", f"for (int l = 0; l < {_LANES}; ++l) {{ a0[l] = NEUTRAL; }}"]
    lines.append("long j = start;")
    index_lines = [f"const long i{i} = o{i} + b{i} + q{i} + (j + l) * {steps[i]};" for i in range(len(form.operands))]
    body = [*index_lines, *_values(form), "a0[l] = COMBINE(a0[l], x0);"]
    # These 16 lanes are a vector only if they are not unrolled: unrolled, they take two to three times longer.
    vector = f"#pragma clang loop vectorize_width({_LANES}) unroll(disable)"
    lines += [f"for (; j + {_LANES} <= stop; j += {_LANES}) {{", vector, f"for (int l = 0; l < {_LANES}; ++l) {{"]
    lines += [*body, "} }"]
    lines += ["for (int l = 0; j + l < stop; ++l) {", *body, "}"]
    lines.append(f"for (int span = {_LANES} / 2; span > 0; span /= 2)")
    lines.append("  for (int l = 0; l < span; ++l) { a0[l] = COMBINE(a0[l], a0[l + span]); }")
    return [*lines, "s0 = COMBINE(s0, a0[0]);", "r += stop - start;", "}", _store(form, "s0")]
