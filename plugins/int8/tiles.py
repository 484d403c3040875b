"""``int8.vnni`` and ``int8.amx``: quantized convolutions by tiles of positions and 32 channels, on Intel's CPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from convdispatch.api import (
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    build,
    define,
    kernel_text,
    rates,
)
from convdispatch.api.cpu import PAGE, uneven

from .band import Band
from .instructions import CONFIGURE, byte_finish, tile_product, vector_product
from .probe import require
from .processor import serves_tiles, serves_vectors

__all__ = ["Tiles", "Vectors"]

_BAND, _MOST_SLOT = 256 << 10, 16 << 20  # bytes of a band: wanted, and at most
_MOST_ROWS = 14
_LEAST = 96
"""Positions of a band below which its weights are read too often."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


class Costs(NamedTuple):
    """In operations of the peak, what takes the time of one."""

    step: float
    """A step of a whole tile."""
    stored: float
    """Sixteen elements of y."""
    scattered: float
    """One, where channels are not last."""
    copied: float
    """A byte of a band."""
    read: float
    """A byte of weights, for a band."""
    packed: float
    launch: float


class TilesKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        p = self.problem = problem
        self.config, self.tiles = config, bool(config["tiles"])
        self.unit, self.tile = (64, 32) if self.tiles else (4, config["tile"])
        self.nhwc, signed = p.layout == "nhwc", p.dtype == "int8"
        self.signed, self.flip = signed and self.tiles, 0x80 if signed and not self.tiles else 0
        self.in_place = in_place(p, self.tiles, self.tile)
        self.band = Band(p, 1 if self.in_place else config["rows"], self.unit)
        self.groups, self.panels = p.g, _ceil(p.oc // p.g, 32)
        if self.in_place:
            total = p.mb * p.od * p.oh * p.ow
            self.rows, self.row, self.steps = min(config["rows"], total), p.ic, _ceil(p.ic, self.unit)
            self.parts, self.bands = _ceil(total, self.rows), _ceil(total, self.rows)
            self.positions, area = self.rows, self.tile * p.ic + self.steps * self.unit
        else:
            self.rows, self.row, self.steps = config["rows"], self.band.row, self.band.steps
            self.parts = _ceil(p.oh, self.rows)
            self.bands = self.parts * p.mb * p.od * p.g
            self.positions, area = self.band.positions, self.band.size(self.tile)
        self.taps = 1 if self.in_place else self.band.taps
        self.panel = self.taps * self.steps * self.unit * 32
        self.shares = _ceil(self.panels, config["panels"])
        self.jobs = self.bands * self.shares
        self.items = min(self.jobs, config["items"])
        self.area = area
        self.sums_at = _ceil(area, 64) * 64
        self.finish = self.nhwc and p.out_itemsize == 1
        self.slot = _ceil(self.sums_at + 128 * (self.tile + 3) + 8 * self.positions, PAGE) * PAGE
        self.w_sums = self.groups * self.panels * self.panel
        self.packed_size = self.w_sums + 128 * self.groups * self.panels

    def text(self) -> str:
        """The program."""
        p, band = self.problem, self.band
        text = p.macros() + "#define ONCE __attribute__((opencl_unroll_hint(1)))\n"
        text += define(
            MATRIX=int(self.tiles), IN_PLACE=int(self.in_place), FLIP=self.flip, TILE=self.tile, ROW=self.row,
            PIXEL=band.pixel, LINE=band.line, AREA=band.area, HALF_ROWS=band.half_rows, STEP_H=band.step_h,
            SKIP_H=band.skip_h, SKIP_W=band.skip_w, COLUMNS=band.columns, BAND_ROWS=band.band_rows, HALVES=band.halves,
            PLACES=band.places, RUN_TAPS=band.run_taps, TAPS=self.taps, STEPS=self.steps, UNIT=self.unit,
            PANEL=f"{self.panel}L", ROWS=self.rows, PARTS=self.parts, PANELS=self.panels, PER=self.config["panels"],
            SHARES=self.shares, ITEMS=f"{self.items}L", JOBS=f"{self.jobs}L", SLOT=f"{self.slot}L",
            SUMS_AT=f"{self.sums_at}L", W_SUMS=f"{self.w_sums}L",
            FINISH=int(self.finish), POSITIONS=self.positions, CHANNEL=1 if self.nhwc else f"{p.od * p.oh * p.ow}L",
        )  # fmt: skip
        offsets = [0] if self.in_place else band.offsets
        text += f"constant int OFFSETS[{len(offsets)}] = {{{', '.join(map(str, offsets))}}};\n"
        if self.tiles:
            text += CONFIGURE
            for rows in (1, 2):
                for columns in (1, 2):
                    name = f"tile{rows}{columns}"
                    text += tile_product(name, (rows, columns), self.row, self.steps, self.signed)
        else:
            text += vector_product("vectors", self.tile, self.row, self.steps)
        if self.finish:
            text += byte_finish("finish", p.out_dtype if p.residual else None)
        files = ("put.cl", "finish.cl", "tiles.cl") if self.finish else ("put.cl", "tiles.cl")
        return text + "".join(kernel_text(__package__, name) for name in files)

    def areas(self) -> tuple[int, int]:
        """(bytes of workspace, where packed weights begin): slots first."""
        areas = Areas(PAGE)
        areas.add(self.items * self.slot)
        place = 0 if self.problem.constant_weights else areas.add(self.packed_size)
        return areas.size, place

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        problem, program = self.problem, build(context, self.text())
        (size, place), weights = self.areas(), "w" if self.problem.constant_weights else "workspace"
        extras = ["bias", *(["residual"] if problem.residual else [])]
        arguments = ["x", weights, np.int64(place), "y", *extras, "workspace"]
        run = Launch(program, "conv", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)
        items = self.panels, self.groups, 32
        pack = Launch(program, "pack", items, (1, 1, 32), ["w", "workspace", np.int64(place)], names=OPERANDS)
        if not problem.constant_weights:
            return StepPlan(size, [pack, run])
        order = [problem.w_shape, problem.g, problem.layout, self.unit, self.steps, self.taps]
        return StepPlan(size, [run], self.packed_size, [pack], json.dumps(["int8", *order]))


def in_place(p: ConvProblem, tiles: bool, tile: int) -> bool:
    """Whether x's pixels are the positions of a tile, as they lie."""
    one = p.kd == p.kh == p.kw == p.sd == p.sh == p.sw == p.g == 1
    whole = (p.od, p.oh, p.ow) == (p.id, p.ih, p.iw) and p.pd == p.ph == p.pw == 0
    unit = 64 if tiles else 4
    taken = tiles or (p.dtype == "uint8")
    return one and whole and taken and p.layout == "nhwc" and _ceil(p.ic, unit) * unit <= tile * p.ic


class _Tiled(Solver):
    tiles: bool
    costs: Costs

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Floats, few channels a group, and rows that fit no cache."""
        if not problem.quantized:
            return f"quantized problems only, got {problem.dtype}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.depthwise:
            return "more than 1 channel a group, got depthwise"
        config = {"tiles": self.tiles, "tile": _MOST_ROWS, "rows": 1, "panels": 1, "items": 1}
        least = TilesKernel(problem, config)
        if least.slot > _MOST_SLOT or least.row * 32 >= 1 << 31:
            return f"rows of {_MOST_SLOT} bytes for all channels of a group at most, got {least.slot}"
        if least.taps > 4096:
            return f"4096 taps at most, got {least.taps}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, Any]]:
        """Bands of about a cache, or of half as many rows; panels shared where there are few bands."""
        seen = []
        for target in (_BAND, _BAND // 4, 4 * _BAND):
            config = self._config(problem, device, target)
            if config not in seen:
                seen.append(config)
                yield config

    def _config(self, p: ConvProblem, device: DeviceInfo, target: int) -> dict[str, Any]:
        units = device.compute_units
        config: dict[str, Any] = {"tiles": self.tiles, "tile": _MOST_ROWS, "rows": 1, "panels": 1, "items": 4 * units}
        one = TilesKernel(p, config)
        wanted = 4 * units
        if one.in_place:
            total = p.mb * p.od * p.oh * p.ow
            most = max(_LEAST, target // max(1, p.ic))
            rows = min(most, max(_LEAST, _ceil(total, wanted)))
            tile = 32 if self.tiles else self._tile(min(rows, total))
            config |= {"tile": tile, "rows": _ceil(min(rows, total), tile) * tile}
        else:
            line = one.band.step_h * one.band.line * p.kd
            most = max(1, min(p.oh, target // max(1, line)))
            whole = p.mb * p.od * p.g
            fewest = min(most, _ceil(_LEAST, one.band.places))
            rows = max(fewest, min(most, _ceil(p.oh * whole, wanted)))
            config["rows"] = _ceil(p.oh, _ceil(p.oh, rows))
            band = Band(p, config["rows"], one.unit)
            config["tile"] = 32 if self.tiles else self._tile(band.positions)
        bands = TilesKernel(p, config).bands
        shares = min(one.panels, max(1, _ceil(2 * units, bands))) if bands < 2 * units else 1
        config["panels"] = _ceil(one.panels, shares)
        return config

    @staticmethod
    def _tile(positions: int) -> int:
        """Positions of a tile of vectors: so many that the last tile is nearly full."""
        return min(range(1, _MOST_ROWS + 1), key=lambda rows: (_ceil(positions, rows) * max(rows + 1.5, 6), -rows))

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """By steps of tiles, bytes of bands and weights, and what is stored."""
        kernel, costs = TilesKernel(problem, config), self.costs
        tiles = _ceil(kernel.positions, kernel.tile)
        steps = kernel.bands * tiles * kernel.panels * kernel.taps * kernel.steps
        work = costs.step * steps * (1.0 if self.tiles else (kernel.tile + 1) / (_MOST_ROWS + 1))
        elements = math.prod(problem.y_shape)
        work += costs.stored * elements / 16 if kernel.nhwc else costs.scattered * elements
        work += 0 if kernel.in_place else costs.copied * kernel.bands * kernel.shares * kernel.area
        work += costs.read * kernel.bands * kernel.groups**0 * kernel.panels * kernel.panel
        work += 0 if problem.constant_weights else costs.packed * kernel.packed_size
        known = rates(device)
        return known.launch + (costs.launch + work * uneven(kernel.jobs, device)) / known.flops

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """Slots, and packed weights that are not kept."""
        return TilesKernel(problem, config).areas()[0]

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile, once the device has proved that it computes."""
        require(context, self.name, self.tiles, TilesKernel)
        return TilesKernel(problem, config).plan(context)


class Tiles(_Tiled):
    """By matrix registers."""

    tiles = True
    costs = Costs(5200.0, 350.0, 500.0, 8.0, 8.0, 400.0, 3e5)

    def serves(self, device: DeviceInfo) -> str | None:
        """Intel's runtime on a processor with AMX-INT8."""
        return serves_tiles(device)


class Vectors(_Tiled):
    """By AVX512-VNNI."""

    tiles = False
    costs = Costs(900.0, 350.0, 500.0, 8.0, 8.0, 400.0, 3e5)

    def serves(self, device: DeviceInfo) -> str | None:
        """Intel's runtime on a processor with AVX512-VNNI."""
        return serves_vectors(device)
