"""nvidia.direct: convolutions with 1x1 kernels on tensor cores without a packing pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import (
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Launch,
    StepPlan,
    build,
    define,
    epilogue_macros,
    kernel_text,
    numbers_as_arguments,
    numbers_as_literals,
    storage_macros,
)
from convdispatch.api.matrix import MATRIX_TILES, Parts, group_limits, reduction_launch, size_limits, written

from ..instructions import Instructions
from ..probe import require
from ..solving import TileSolver, kernel_words
from .choice import choices, seconds
from .tiling import DirectTile, DirectTiling, MatrixAxis, Operand

MAX_PIXELS = 2**31 - 2**16
"""Most output pixels of all images: int32 indices leave room for the rows of a last, partial tile."""


class Direct(TileSolver):
    """Products of float32 matrices in their own layout, all directions of convolutions with 1x1 kernels."""

    seconds, engine = staticmethod(seconds), "direct"

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        reason = size_limits(problem)
        if reason:
            return reason
        if problem.kd * problem.kh * problem.kw > 1:
            return f"1x1 kernels only, got {kernel_words(problem)}"
        pads = [getattr(problem, "p" + axis + side) for axis in problem.axes for side in ("", "_r")]
        if any(pads):
            return f"no padding, got {max(pads)}"
        pixels = problem.mb * problem.od * problem.oh * problem.ow
        group_reason = group_limits(problem)
        return group_reason or (f"at most {MAX_PIXELS} output pixels, got {pixels}" if pixels > MAX_PIXELS else None)

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[DirectTile]:
        return choices(problem, device.compute_units)

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> DirectTiling:
        return DirectTiling(problem, DirectTile.of(config))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace: partial sums."""
        return self.tiling(problem, config).partial_bytes

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> DirectPlan:
        require(context, "direct")
        return DirectPlan(context, problem, config)


@dataclass(frozen=True)
class AxisForm:
    """A ``MatrixAxis`` whose numbers have names that begin with ``name``."""

    name: str
    pixels: bool
    rows: bool
    deep: bool
    """Whether pixels along d have a step of their own."""

    @classmethod
    def of(cls, name: str, axis: MatrixAxis) -> AxisForm:
        """The form of an axis."""
        pixels = axis.count is not None
        return cls(name, pixels, pixels and axis.rows, pixels and axis.steps[0] > 0)

    def at(self, i: str, index: str = "INDEX") -> str:
        """OpenCL expression: the offset, in elements of the type ``index``, of index ``i`` (a variable)."""
        name = self.name
        if not self.pixels:
            return f"({index}){i} * {name}_STEP"
        image, rest = f"DIVIDED({i}, {name}_PIXELS)", f"({i} - DIVIDED({i}, {name}_PIXELS) * {name}_PIXELS)"
        if self.rows:
            return f"(({index}){image} * {name}_IMAGE + ({index}){rest} * {name}_STEP)"
        row, plane = f"DIVIDED({i}, {name}_W)", f"DIVIDED({i}, {name}_PLANE)"
        z = f" + ({index})({plane} - {image} * {name}_D) * {name}_STEP_D" if self.deep else ""
        y, x = f"({row} - {plane} * {name}_H)", f"({i} - {row} * {name}_W)"
        return f"(({index}){image} * {name}_IMAGE{z} + ({index}){y} * {name}_STEP_H + ({index}){x} * {name}_STEP_W)"


@dataclass(frozen=True)
class OperandForm:
    """An ``Operand``'s axes, and how its tiles are copied."""

    row: AxisForm
    k: AxisForm
    along_k: bool
    width: int
    ragged: bool
    """Whether the last tile has rows beyond the operand's last row."""


@dataclass(frozen=True)
class DirectForm:
    """A tile, and the properties of a geometry that decide which code is generated. Templates see nothing else."""

    tile: DirectTile
    """The tile; its sum is in one part or, for all other numbers of parts, in two."""
    data: bool
    nhwc: bool
    operands: tuple[OperandForm, OperandForm]
    target: tuple[AxisForm, AxisForm]
    k_ragged: bool
    gaps: bool
    residual: bool
    out_width: int
    pitch: tuple[int, int]
    floats: tuple[int, int]
    stage: int
    local_bytes: int
    index: str

    @classmethod
    def of(cls, tiling: DirectTiling) -> DirectForm:
        """The form of a tiling."""
        t, target = tiling.tile, tiling.target
        tile = dataclasses.replace(t, split=min(t.split, 2))
        operands = tuple(_operand(letter, tiling, number) for number, letter in enumerate("AB"))
        written, k_ragged = (AxisForm.of("OUT_M", target.row), AxisForm.of("OUT_N", target.k)), tiling.k % t.bk > 0
        return cls(tile, tiling.data, tiling.nhwc, operands, written, k_ragged, tiling.gaps,
                   tiling.problem.residual, tiling.out_width, tiling.pitch, tiling.floats, tiling.stage,
                   tiling.local_bytes, tiling.index)  # type: ignore[arg-type]  # fmt: skip


def _operand(letter: str, tiling: DirectTiling, number: int) -> OperandForm:
    operand: Operand = tiling.operands[number]
    ragged = operand.row.size % tiling.extent[number] > 0
    axes = AxisForm.of(f"{letter}_ROW", operand.row), AxisForm.of(f"{letter}_K", operand.k)
    return OperandForm(*axes, operand.along_k, operand.width, ragged)


def numbers(tiling: DirectTiling) -> dict[str, Any]:
    """The numbers that the kernel names, of NumPy's integer types."""
    p, t = tiling.problem, tiling.tile
    offset, out_offset = (np.int32 if index == "int" else np.int64 for index in (tiling.index, tiling.out_index))
    ints = {
        "M": tiling.m, "N": tiling.n, "K": tiling.k, "M_TILES": tiling.m_tiles, "N_TILES": tiling.n_tiles,
        "SLICES": tiling.slices, "SPLIT": t.split, "GROUP_CHANNELS": (p.channels_out if tiling.data else p.oc) // p.g,
        "OUT_PIXELS": p.od * p.oh * p.ow, "OUT_D": p.od, "OUT_H": p.oh, "OUT_W": p.ow, "IN_D": p.id,
        "IN_H": p.ih, "IN_W": p.iw, "STRIDE_D": p.sd, "STRIDE_H": p.sh, "STRIDE_W": p.sw,
        "IN_STEP": p.ic if tiling.nhwc else 1,
    }  # fmt: skip
    result: dict[str, Any] = {name: np.int32(value) for name, value in ints.items()}
    for letter, operand, kind in (*zip("AB", tiling.operands, (offset, offset)), ("OUT", tiling.target, out_offset)):
        result[f"{letter}_GROUP"] = kind(operand.group)
        sides = ("M", "N") if letter == "OUT" else ("ROW", "K")
        for side, axis in zip(sides, (operand.row, operand.k), strict=True):
            result |= {f"{letter}_{side}_{key}": value for key, value in _axis(axis, kind).items()}
    return result | {"PARTIAL_ELEMENTS": out_offset(tiling.partial_elements)}


def _axis(axis: MatrixAxis, offset: Any) -> dict[str, Any]:
    """An axis' numbers by the ends of their names."""
    values = {"SIZE": np.int32(axis.size), "STEP": offset(axis.step)}
    if axis.count is None:
        return values
    d, h, w = axis.count
    counts = {"D": d, "H": h, "W": w, "PLANE": h * w, "PIXELS": axis.pixels}
    steps = {"IMAGE": axis.image, **{f"STEP_{name}": step for name, step in zip("DHW", axis.steps, strict=True)}}
    values |= {name: np.int32(value) for name, value in counts.items()}
    return values | {name: offset(value) for name, value in steps.items()}


@dataclass(frozen=True)
class Copies:
    """How work items copy an operand's tile to local memory, for the templates."""

    form: DirectForm
    number: int
    """Index of the operand: 0 is A, 1 is B."""

    def __post_init__(self) -> None:
        self.__dict__.update(self._numbers())

    def _numbers(self) -> dict[str, Any]:
        tile, number, operand = self.form.tile, self.number, self.form.operands[self.number]
        width, extent = operand.width, (tile.bm, tile.bn)[number]
        # width: float32 numbers per copy; pitch: float32 numbers from line to line in local memory.
        values = {"operand": operand, "letter": "ab"[number], "width": width, "pitch": self.form.pitch[number],
                  "extent": extent, "origin": ("m0", "n0")[number]}  # fmt: skip
        # How copies are divided: work items along a line, rows per work item, the stride between its rows, the stride
        # between its steps along k, and the number of these steps.
        if operand.along_k:
            across = tile.bk // width
            rows, row_step, k_step, k_steps = -(-extent * across // tile.items), tile.items // across, 0, 1
        else:
            across = min(extent // width, tile.items)
            rows, row_step, k_step = extent // width // across, across * width, tile.items // across
            k_steps = -(-tile.bk // k_step)
        return values | {"across": across, "rows": rows, "row_step": row_step, "k_step": k_step, "k_steps": k_steps}

    def guard(self, i: int, j: int) -> str:
        """The OpenCL condition before the copy of row step i and k step j, if some work items do not copy there."""
        if self.operand.along_k and (i + 1) * self.row_step > self.extent:
            return f"if ({self.letter}_row + {i * self.row_step} < {self.extent}) "
        if not self.operand.along_k and (j + 1) * self.k_step > self.form.tile.bk:
            return f"if ({self.letter}_k + {j * self.k_step} < {self.form.tile.bk}) "
        return ""

    def to(self, i: int, j: int) -> int:
        """Bytes from the work item's first number to that of row step i and k step j."""
        row_stride, k_stride = (self.pitch, 1) if self.operand.along_k else (1, self.pitch)
        return 4 * (i * self.row_step * row_stride + j * self.k_step * k_stride + self.form.floats[0] * self.number)


@functools.lru_cache(maxsize=256)
def product_text(f: DirectForm, emulate: bool) -> str:
    """The text of the kernel ``direct`` for a form, without the functions that it calls."""
    t, width = f.tile, f.out_width
    across = min(t.bn // width, t.items)
    values: dict[str, Any] = {
        "f": f, "t": t, "both": [Copies(f, 0), Copies(f, 1)], "unroll": "" if emulate else "#pragma unroll",
        "exact": t.products == 3, "separate": t.flush_every > 0, "sums": t.frag_m * t.frag_n * 4,
        "distance": t.stages - 1, "stage_bytes": f.stage * 4,
        "order": ["m_tile", "n_tile"] if f.data and not f.nhwc else ["n_tile", "m_tile"],
        "width": width, "run": "float" if width == 1 else f"float{width}", "pitch_out": t.bn + 8,
        "across": across, "down": t.items // across, "rows_at_once": 4 if f.residual and not f.gaps else 1,
        "row": f.target[0], "column": f.target[1],
    }  # fmt: skip
    return kernel_text(__package__, "product.cl.mako", **values)


class DirectPlan(StepPlan):
    """The plan of nvidia.direct; ``product.cl.mako`` explains the kernel. ``emulate``: tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling, self._emulate = DirectTiling(problem, DirectTile.of(config)), emulate
        self.tiling, tile, outputs = tiling, tiling.tile, written(problem)
        partial = tile.split > 1
        operands = [*(operand.name for operand in tiling.operands), *(["workspace"] if partial else outputs)]
        text, arguments = self._program
        program, size = build(context, text), (tiling.work_groups * tile.items,)
        steps = [Launch(program, "direct", size, (tile.items,), [*operands, *arguments], names=OPERANDS)]
        if partial:
            parts = Parts(tile.split, tiling.partial_elements, tiling.out_index)
            steps.append(reduction_launch(context, problem, parts, outputs))
        super().__init__(tiling.partial_bytes, steps)

    def product_text(self) -> str:
        """The text of the product's program."""
        return self._program[0]

    @functools.cached_property
    def _program(self) -> tuple[str, list[Any]]:
        """The text of the product's program, and the launch's arguments beyond the operands."""
        tiling, tile, problem = self.tiling, self.tiling.tile, self.tiling.problem
        instructions = Instructions("bf16" if tile.depth == 16 else "tf32", ("copies", "mma"))
        text = storage_macros(problem.dtype) + epilogue_macros(problem)
        text += define(NHWC=int(tiling.nhwc), OUT_INDEX=tiling.out_index, PARTIAL=int(tile.split > 1), PARTIAL_AT="0L")
        text += (
            kernel_text(MATRIX_TILES, "finish.cl")
            + instructions.text(self._emulate)
            + kernel_text(MATRIX_TILES, "sums.cl")
        )
        text += kernel_text(__package__, "split.cl.mako", depth=tile.depth)
        product, named = product_text(DirectForm.of(tiling), self._emulate), numbers(tiling)
        if tiling.specialised:
            return text + numbers_as_literals(product, named), []
        product, arguments = numbers_as_arguments(product, named)
        return text + product, arguments
