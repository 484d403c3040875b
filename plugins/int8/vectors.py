"""``int8.vnni``: quantized convolutions in tiles of a few positions by 32 channels of AVX512-VNNI vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, kernel_text
from convdispatch.api.cpu import PAGE, cdiv

from .packed_kernel import MIN_POSITIONS, Band, BandKernel, BandSolver
from .probe import require
from .vector_code import NUMBERS, Tile, number_macros, vector_tile

TILE_POSITIONS = 14
"""Most positions of a tile: the sums of 32 channels, the weights and the operands fit in the 32 vector registers."""
SHORT_FLOPS_PER_UNIT = 1e8
"""Operations per compute unit below which start-up of work items costs more than an uneven division of the work."""
NEAR_WEIGHT_BYTES = 64 << 10
"""Most bytes of a job's weights that are read again for each block of tiles."""
FEW_TILES = 16
"""Most tiles of a job that prefetch weights: so few do not hide the latency of reading a panel's weights."""
NEXT_BYTES = 32 << 10
"""Distance in bytes at which a job of one tile prefetches the weights that it reads next."""
BLOCK_BYTES = 16 << 10
"""Bytes of x and y that a block of tiles touches, which stay in the L1 cache while all panels are multiplied."""
STEP_COST = 900.0
"""Cost of one step of 14 positions, in operations at the device's peak rate."""
PROBED = {"rows": 5, "panels": 1, "items": 2}
"""The configuration that the probe of AVX512-VNNI runs."""


class VectorsKernel(BandKernel):
    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        p = self.problem = problem
        self.config, self.nhwc, self.unit = config, p.layout == "nhwc", 4
        self.flip = 0x80 if p.dtype == "int8" else 0
        self.in_place, self.flat = reading_of(p)
        self.band = Band(p, 1 if self.in_place else config["rows"], 4)
        self.groups, self.panels = p.g, cdiv(p.oc // p.g, 32)
        self.last = p.oc // p.g - 32 * (self.panels - 1)
        self.down, self.across = tile_of(p)
        if self.in_place:
            self.steps, self.taps, self.area = p.ic // p.g // 4, 1, 0
            self.a_row, self.a_column = (0, p.ic) if self.flat else (p.sh * p.iw * p.ic, p.sw * p.ic)
        else:
            self.steps, self.taps, self.area = self.band.steps, self.band.taps, self.band.size(1)
            self.a_row, self.a_column = self.band.line, self.band.row
        height = p.mb * p.od * p.oh * p.ow if self.flat else p.oh
        self.rows = min(config["rows"], cdiv(height, self.row_unit) * self.row_unit)
        self.parts = cdiv(height, self.rows)
        self.bands = self.parts * p.g * (1 if self.flat else p.mb * p.od)
        self.positions = self.rows * (1 if self.flat else p.ow)
        self._set_shares()
        self.numbers_at = cdiv(self.area, 64) * 64
        words = NUMBERS["sums"] + 32 * self.down * self.across + 64 * config["panels"]
        self.slot = cdiv(self.numbers_at + 4 * words, PAGE) * PAGE

    @property
    def row_unit(self) -> int:
        """The rows of a job are a multiple of this number."""
        return self.across if self.flat else self.down

    def tiles(self) -> dict[str, Tile]:
        """The tile of each generated function: whole, or at the end of a row or image; for any panel, or the last
        one."""
        p, height = self.problem, self.problem.mb * self.problem.od * self.problem.oh * self.problem.ow
        across = (height if self.flat else p.ow) % self.across or self.across
        down = 1 if self.flat else p.oh % self.down or self.down
        by_name = {}
        for name, rows, columns in (("whole", self.down, self.across), ("rest", down, across)):
            pixels = [(r, c) for r in range(rows) for c in range(columns)]
            a = tuple(r * self.a_row + c * self.a_column for r, c in pixels)
            y = tuple((r * p.ow + c) * p.oc for r, c in pixels)
            by_name[name], by_name[f"{name}_last"] = Tile(a, y), Tile(a, y, self.last)
        return by_name

    def text(self) -> str:
        p = self.problem
        text = self.macros(
            number_macros(), FLAT=int(self.flat), FLIP=self.flip, LAST=self.last, DOWN=self.down, ACROSS=self.across,
            A_ROW=f"{self.a_row}L", A_COLUMN=f"{self.a_column}L", BLOCK=self.block, AHEAD=self.ahead, NEXT=NEXT_BYTES,
            NUMBERS_AT=f"{self.numbers_at}L",
        )  # fmt: skip
        names: dict[Tile, str] = {}
        out = p.out_dtype if self.finish else None
        for name, tile in self.tiles().items():
            if tile not in names:
                names[tile] = name
                text += vector_tile(name, tile, self.steps, out, out if p.residual else None, self.ahead)
        whole, whole_last, rest, rest_last = (names[each] for each in self.tiles().values())
        text += f"#define WHOLE(last_, ...) ((last_) ? {whole_last}(__VA_ARGS__) : {whole}(__VA_ARGS__))\n"
        text += f"#define REST(last_, ...) ((last_) ? {rest_last}(__VA_ARGS__) : {rest}(__VA_ARGS__))\n"
        files = ["put.cl", *(["numbers.cl"] if self.finish else []), "band.cl", "vectors.cl"]
        return text + "".join(kernel_text(__package__, name) for name in files)

    @property
    def block(self) -> int:
        """Tiles per block: all panels are multiplied with one block before the next block begins."""
        if self.panel * self.config["panels"] > NEAR_WEIGHT_BYTES:
            return self.rows * self.problem.ow  # one block holds all tiles, so that weights are read once a job
        return max(1, BLOCK_BYTES // (self.down * self.across * (self.a_column + self.problem.oc)))

    @property
    def ahead(self) -> int:
        """Bytes of later weights that each step prefetches; 0 if enough tiles use a panel's weights."""
        tiles = cdiv(self.rows, self.row_unit) * (1 if self.flat else cdiv(self.problem.ow, self.across))
        if self.panel * self.config["panels"] <= NEAR_WEIGHT_BYTES or tiles > FEW_TILES:
            return 0
        return 128 // (4 if tiles >= 4 else 2 if tiles >= 2 else 1)

    @property
    def pack_key(self) -> list[Any]:
        p = self.problem
        return ["int8.vnni", p.w_shape, p.g, p.layout, self.band.pixel, self.steps, self.taps]


def reading_of(p: ConvProblem) -> tuple[bool, bool]:
    """(whether tiles read x directly, whether all pixels of y then count as one row)."""
    pointwise = p.kd == p.kh == p.kw == 1 and p.pd == p.ph == p.pw == 0
    inside = all((o - 1) * s < i for o, s, i in ((p.od, p.sd, p.id), (p.oh, p.sh, p.ih), (p.ow, p.sw, p.iw)))
    in_place = pointwise and inside and p.layout == "nhwc" and p.dtype == "uint8" and p.ic // p.g % 4 == 0
    return in_place, in_place and (p.od, p.oh, p.ow) == (p.id, p.ih, p.iw)


def tile_of(p: ConvProblem) -> tuple[int, int]:
    """Rows and columns of a tile: a row of y is divided into equal parts, or a tile has several short rows."""
    if reading_of(p)[1]:
        return 1, min(TILE_POSITIONS, p.mb * p.od * p.oh * p.ow)
    if p.ow > TILE_POSITIONS:
        return 1, cdiv(p.ow, cdiv(p.ow, TILE_POSITIONS))
    return min(p.oh, TILE_POSITIONS // p.ow), p.ow


class Vectors(BandSolver):
    """Quantized convolutions by AVX512-VNNI vectors."""

    kernel = VectorsKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        smallest, reason = self.least(problem)
        if reason is None:
            largest_offset = max(max(tile.a[-1], tile.y[-1]) for tile in smallest.tiles().values())
            return f"tiles within 2**31 bytes, got {largest_offset}" if largest_offset >= 1 << 31 else None
        return reason

    def config_of(self, p: ConvProblem, device: DeviceInfo, target: int) -> dict[str, Any]:
        units = device.compute_units
        items = units if p.flops < SHORT_FLOPS_PER_UNIT * units else 4 * units
        config: dict[str, Any] = {"rows": 1, "panels": 1, "items": items}
        smallest = VectorsKernel(p, config)
        if smallest.flat:
            height, planes, line, min_rows = p.mb * p.od * p.oh * p.ow, p.g, p.ic, MIN_POSITIONS
        else:
            height, planes, min_rows = p.oh, p.mb * p.od * p.g, cdiv(MIN_POSITIONS, p.ow)
            line = p.sh * p.iw * p.ic if smallest.in_place else smallest.band.step_h * smallest.band.line * p.kd
        max_rows = max(1, min(height, target // max(1, line)))
        min_tiles, max_tiles = (cdiv(rows, smallest.row_unit) for rows in (min(max_rows, min_rows), max_rows))
        target_tiles = cdiv(cdiv(height * planes, 4 * units), smallest.row_unit)

        def shared(tiles: int) -> tuple[int, int]:
            """(number of jobs, panels of one job): few bands divide their panels among jobs."""
            bands = cdiv(height, tiles * smallest.row_unit) * planes
            shares = 1 if bands >= 2 * units else min(smallest.panels, cdiv(2 * units, bands))
            panels = cdiv(smallest.panels, shares)
            return bands * cdiv(smallest.panels, panels), panels

        def workload(tiles: int) -> tuple[int, int, int]:
            """Sort key: tiles that the busiest unit computes, copies of a band, distance from the target height."""
            jobs, panels = shared(tiles)
            return cdiv(jobs, units) * tiles * panels, smallest.panels // panels, abs(tiles - target_tiles)

        best = min(range(min_tiles, max_tiles + 1), key=workload)
        return config | {"rows": best * smallest.row_unit, "panels": shared(best)[1]}

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        kernel = VectorsKernel(problem, config)
        size = kernel.down * kernel.across
        steps = kernel.bands * cdiv(kernel.positions, size) * kernel.panels * kernel.taps * kernel.steps
        return kernel.cost(device, STEP_COST * steps * (size + 1) / (TILE_POSITIONS + 1))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        require(context, self.name, VectorsKernel, PROBED)
        return VectorsKernel(problem, config).plan(context)
