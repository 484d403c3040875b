"""``int8.amx``: quantized convolutions in tiles of 32 positions by 32 channels of AMX matrix registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, kernel_text
from convdispatch.api.cpu import PAGE, TILE_MACROS, cdiv

from .instructions import byte_finish, tile_product
from .packed_kernel import MIN_POSITIONS, Band, BandKernel, BandSolver
from .probe import require

STEP_BYTES = 64
TILE_POSITIONS = 32
STEP_COST = 5200.0
"""Cost of one step of a whole tile, in operations at the device's peak rate."""


class TilesKernel(BandKernel):
    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        p = self.problem = problem
        self.config, self.unit, self.tile = config, STEP_BYTES, TILE_POSITIONS
        self.nhwc, self.signed = p.layout == "nhwc", p.dtype == "int8"
        self.in_place = in_place(p)
        self.band = Band(p, 1 if self.in_place else config["rows"], self.unit)
        self.groups, self.panels = p.g, cdiv(p.oc // p.g, 32)
        if self.in_place:
            pixels = p.mb * p.od * p.oh * p.ow
            self.rows, self.row, self.steps = min(config["rows"], pixels), p.ic, cdiv(p.ic, self.unit)
            self.parts, self.bands = cdiv(pixels, self.rows), cdiv(pixels, self.rows)
            self.positions, area = self.rows, self.tile * p.ic + self.steps * self.unit
        else:
            self.rows, self.row, self.steps = config["rows"], self.band.row, self.band.steps
            self.parts = cdiv(p.oh, self.rows)
            self.bands = self.parts * p.mb * p.od * p.g
            self.positions, area = self.band.positions, self.band.size(self.tile)
        self.taps = 1 if self.in_place else self.band.taps
        self.area = area
        self._set_shares()
        self.sums_at = cdiv(area, 64) * 64
        self.slot = cdiv(self.sums_at + 128 * (self.tile + 3) + 8 * self.positions, PAGE) * PAGE

    def text(self) -> str:
        text = self.macros(FLIP=0, TILE=self.tile, ROW=self.row, PLACES=self.band.row_positions,
                           SUMS_AT=f"{self.sums_at}L", POSITIONS=self.positions)  # fmt: skip
        text += TILE_MACROS
        for rows in (1, 2):
            for columns in (1, 2):
                name = f"tile{rows}{columns}"
                text += tile_product(name, (rows, columns), self.row, self.steps, self.signed)
        if self.finish:
            text += byte_finish("finish", self.problem.out_dtype if self.problem.residual else None)
        files = ("put.cl", "finish.cl", "band.cl", "tiles.cl") if self.finish else ("put.cl", "band.cl", "tiles.cl")
        return text + "".join(kernel_text(__package__, name) for name in files)

    @property
    def pack_key(self) -> list[Any]:
        p = self.problem
        return ["int8", p.w_shape, p.g, p.layout, self.unit, self.steps, self.taps]


def in_place(p: ConvProblem) -> bool:
    """Whether tiles read x directly: a 1x1 convolution in NHWC without stride, padding and groups."""
    pointwise = p.kd == p.kh == p.kw == p.sd == p.sh == p.sw == p.g == 1
    unpadded = (p.od, p.oh, p.ow) == (p.id, p.ih, p.iw) and p.pd == p.ph == p.pw == 0
    fits = cdiv(p.ic, STEP_BYTES) * STEP_BYTES <= TILE_POSITIONS * p.ic
    return pointwise and unpadded and p.layout == "nhwc" and fits


class Tiles(BandSolver):
    """Quantized convolutions by AMX matrix registers."""

    kernel = TilesKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        smallest, reason = self.least(problem)
        if reason is None and smallest.row * 32 >= 1 << 31:
            return f"tiles within 2**31 bytes, got {smallest.row * 32}"
        return reason

    def config_of(self, p: ConvProblem, device: DeviceInfo, target: int) -> dict[str, Any]:
        units = device.compute_units
        config: dict[str, Any] = {"rows": 1, "panels": 1, "items": 4 * units}
        smallest = TilesKernel(p, config)
        target_jobs = 4 * units
        if smallest.in_place:
            pixels = p.mb * p.od * p.oh * p.ow
            max_rows = max(MIN_POSITIONS, target // max(1, p.ic))
            rows = min(max_rows, max(MIN_POSITIONS, cdiv(pixels, target_jobs)))
            config["rows"] = cdiv(min(rows, pixels), TILE_POSITIONS) * TILE_POSITIONS
        else:
            line = smallest.band.step_h * smallest.band.line * p.kd
            max_rows = max(1, min(p.oh, target // max(1, line)))
            planes = p.mb * p.od * p.g
            min_rows = min(max_rows, cdiv(MIN_POSITIONS, smallest.band.row_positions))
            rows = max(min_rows, min(max_rows, cdiv(p.oh * planes, target_jobs)))
            config["rows"] = cdiv(p.oh, cdiv(p.oh, rows))
        bands = TilesKernel(p, config).bands
        shares = min(smallest.panels, max(1, cdiv(2 * units, bands))) if bands < 2 * units else 1
        config["panels"] = cdiv(smallest.panels, shares)
        return config

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        kernel = TilesKernel(problem, config)
        tiles = cdiv(kernel.positions, kernel.tile)
        return kernel.cost(device, STEP_COST * (kernel.bands * tiles * kernel.panels * kernel.taps * kernel.steps))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        require(context, self.name, TilesKernel, {"rows": 5, "panels": 1, "items": 2})
        return TilesKernel(problem, config).plan(context)
