"""What is compiled into nvidia.direct's programs, and the numbers of a geometry, which are its arguments or,
for short sums, literals."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api.matrix import parts_magic

from .tiling import DirectTile, DirectTiling, MatrixAxis, Operand


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
    """The tile; its sum is in one part or, for all other numbers of parts, in two, unless its work groups add them."""
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
        tile = t if t.fixup else dataclasses.replace(t, split=min(t.split, 2))
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
    return result | {"PARTIAL_ELEMENTS": out_offset(tiling.partial_elements), "STATES_AT": np.int64(tiling.states_at),
                     "MAGIC": parts_magic(tiling)}  # fmt: skip


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
