"""``int8.amx``: quantized convolutions by tiles of 32 positions and 32 channels, in matrix registers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan, define, kernel_text, rates
from convdispatch.api.cpu import PAGE, cdiv, uneven

from .band import Band
from .instructions import CONFIGURE, byte_finish, tile_product
from .packed_kernel import PackedKernel
from .probe import require

__all__ = ["Tiles", "TilesKernel"]

_BAND, _MOST_SLOT = 256 << 10, 16 << 20  # bytes of a band: wanted, and at most
_UNIT, _TILE = 64, 32  # bytes of a step, positions of a tile
_LEAST = 96
"""Positions of a band below which its weights are read too often."""


_STEP, _STORED, _SCATTERED, _COPIED, _READ, _PACKED, _LAUNCH = 5200.0, 350.0, 500.0, 8.0, 8.0, 400.0, 3e5
"""In operations of the peak, what takes the time of one: a step of a whole tile, sixteen elements of y, one where
channels are not last, a byte of a band, of weights for a band, of packed weights, a launch."""


class TilesKernel(PackedKernel):
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        p = self.problem = problem
        self.config, self.unit, self.tile = config, _UNIT, _TILE
        self.nhwc, self.signed = p.layout == "nhwc", p.dtype == "int8"
        self.in_place = in_place(p)
        self.band = Band(p, 1 if self.in_place else config["rows"], self.unit)
        self.groups, self.panels = p.g, cdiv(p.oc // p.g, 32)
        if self.in_place:
            total = p.mb * p.od * p.oh * p.ow
            self.rows, self.row, self.steps = min(config["rows"], total), p.ic, cdiv(p.ic, self.unit)
            self.parts, self.bands = cdiv(total, self.rows), cdiv(total, self.rows)
            self.positions, area = self.rows, self.tile * p.ic + self.steps * self.unit
        else:
            self.rows, self.row, self.steps = config["rows"], self.band.row, self.band.steps
            self.parts = cdiv(p.oh, self.rows)
            self.bands = self.parts * p.mb * p.od * p.g
            self.positions, area = self.band.positions, self.band.size(self.tile)
        self.taps = 1 if self.in_place else self.band.taps
        self.panel = self.taps * self.steps * self.unit * 32
        self.shares = cdiv(self.panels, config["panels"])
        self.jobs = self.bands * self.shares
        self.items = min(self.jobs, config["items"])
        self.area = area
        self.sums_at = cdiv(area, 64) * 64
        self.finish = self.nhwc and p.out_itemsize == 1
        self.slot = cdiv(self.sums_at + 128 * (self.tile + 3) + 8 * self.positions, PAGE) * PAGE
        self.w_sums = self.groups * self.panels * self.panel
        self.packed_size = self.w_sums + 128 * self.groups * self.panels

    def text(self) -> str:
        """The program."""
        p, band = self.problem, self.band
        text = p.macros() + "#define ONCE __attribute__((opencl_unroll_hint(1)))\n"
        text += define(
            IN_PLACE=int(self.in_place), FLIP=0, TILE=self.tile, ROW=self.row,
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
        text += CONFIGURE
        for rows in (1, 2):
            for columns in (1, 2):
                name = f"tile{rows}{columns}"
                text += tile_product(name, (rows, columns), self.row, self.steps, self.signed)
        if self.finish:
            text += byte_finish("finish", p.out_dtype if p.residual else None)
        files = ("put.cl", "finish.cl", "band.cl", "tiles.cl") if self.finish else ("put.cl", "band.cl", "tiles.cl")
        return text + "".join(kernel_text(__package__, name) for name in files)

    @property
    def pack_key(self) -> list[Any]:
        """Shapes and the form of a panel."""
        p = self.problem
        return ["int8", p.w_shape, p.g, p.layout, self.unit, self.steps, self.taps]


def in_place(p: ConvProblem) -> bool:
    """Whether x's pixels are the positions of a tile, as they lie."""
    one = p.kd == p.kh == p.kw == p.sd == p.sh == p.sw == p.g == 1
    whole = (p.od, p.oh, p.ow) == (p.id, p.ih, p.iw) and p.pd == p.ph == p.pw == 0
    return one and whole and p.layout == "nhwc" and cdiv(p.ic, _UNIT) * _UNIT <= _TILE * p.ic


class Tiles(Solver):
    """By matrix registers."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Floats, few channels a group, and rows that fit no cache."""
        if not problem.quantized:
            return f"quantized problems only, got {problem.dtype}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.depthwise:
            return "more than 1 channel a group, got depthwise"
        least = TilesKernel(problem, {"rows": 1, "panels": 1, "items": 1})
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
        config: dict[str, Any] = {"rows": 1, "panels": 1, "items": 4 * units}
        one = TilesKernel(p, config)
        wanted = 4 * units
        if one.in_place:
            total = p.mb * p.od * p.oh * p.ow
            most = max(_LEAST, target // max(1, p.ic))
            rows = min(most, max(_LEAST, cdiv(total, wanted)))
            config["rows"] = cdiv(min(rows, total), _TILE) * _TILE
        else:
            line = one.band.step_h * one.band.line * p.kd
            most = max(1, min(p.oh, target // max(1, line)))
            whole = p.mb * p.od * p.g
            fewest = min(most, cdiv(_LEAST, one.band.places))
            rows = max(fewest, min(most, cdiv(p.oh * whole, wanted)))
            config["rows"] = cdiv(p.oh, cdiv(p.oh, rows))
        bands = TilesKernel(p, config).bands
        shares = min(one.panels, max(1, cdiv(2 * units, bands))) if bands < 2 * units else 1
        config["panels"] = cdiv(one.panels, shares)
        return config

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """By steps of tiles, bytes of bands and weights, and what is stored."""
        kernel = TilesKernel(problem, config)
        tiles = cdiv(kernel.positions, kernel.tile)
        steps = kernel.bands * tiles * kernel.panels * kernel.taps * kernel.steps
        work = _STEP * steps
        elements = math.prod(problem.y_shape)
        work += _STORED * elements / 16 if kernel.nhwc else _SCATTERED * elements
        work += 0 if kernel.in_place else _COPIED * kernel.bands * kernel.shares * kernel.area
        work += _READ * kernel.bands * kernel.panels * kernel.panel
        work += 0 if problem.constant_weights else _PACKED * kernel.packed_size
        known = rates(device)
        return known.launch + (_LAUNCH + work * uneven(kernel.jobs, device)) / known.flops

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """Slots, and packed weights that are not kept."""
        return TilesKernel(problem, config).areas()[0]

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile, once the device has proved that it computes."""
        require(context, self.name, TilesKernel, {"rows": 5, "panels": 1, "items": 2})
        return TilesKernel(problem, config).plan(context)
