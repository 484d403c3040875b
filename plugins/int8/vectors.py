"""``int8.vnni``: quantized convolutions by tiles of a few positions and 32 channels in vectors (AVX512-VNNI)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan, define, kernel_text, rates
from convdispatch.api.cpu import PAGE, cdiv, uneven

from .band import Band
from .packed_kernel import PackedKernel
from .probe import require
from .vector_code import NUMBERS, Tile, number_macros, vector_tile

__all__ = ["PROBED", "Vectors", "VectorsKernel"]

_BAND, _MOST_SLOT = 256 << 10, 16 << 20  # bytes of a band: wanted, and at most
_MOST = 14
"""Positions of a tile: their sums of 32 channels, weights and what is multiplied are all registers."""
_LEAST = 96
"""Positions of a job below which weights are read too often."""
_SHORT = 1e8
"""Operations of a unit below which what a work item begins with weighs more than that items share evenly."""
_HELD = 64 << 10
"""Bytes of weights that may be read for each of a job's blocks of tiles."""
_FEW = 16
"""Tiles of a job that do not hide by themselves that a panel's weights come from far."""
_NEXT = 32 << 10
"""Bytes of weights that a tile alone has come before it reads them."""
_NEAR = 16 << 10
"""Bytes of x and y that a block of tiles touches: they stay in the nearest cache while panels pass."""
_STEP, _STORED, _SCATTERED, _COPIED, _READ, _PACKED, _LAUNCH = 900.0, 350.0, 500.0, 8.0, 8.0, 400.0, 3e5
"""In operations of the peak, what takes the time of one: a step of 14 positions, sixteen elements of y, one where
channels are not last, a byte of a band, of weights for a job, of packed weights, a launch."""

PROBED = {"rows": 5, "panels": 1, "items": 2}
"""The configuration by which a device proves that it computes."""


class VectorsKernel(PackedKernel):
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        p = self.problem = problem
        self.config, self.nhwc = config, p.layout == "nhwc"
        self.flip = 0x80 if p.dtype == "int8" else 0
        self.in_place, self.flat = where_it_lies(p)
        self.band = Band(p, 1 if self.in_place else config["rows"], 4)
        self.groups, self.panels = p.g, cdiv(p.oc // p.g, 32)
        self.last = p.oc // p.g - 32 * (self.panels - 1)
        self.down, self.across = tile_of(p)
        if self.in_place:
            self.steps, self.taps, self.offsets, area = p.ic // p.g // 4, 1, [0], 0
            self.a_row, self.a_column = (0, p.ic) if self.flat else (p.sh * p.iw * p.ic, p.sw * p.ic)
        else:
            self.steps, self.taps, self.offsets = self.band.steps, self.band.taps, self.band.offsets
            self.a_row, self.a_column, area = self.band.line, self.band.row, self.band.size(1)
        height = p.mb * p.od * p.oh * p.ow if self.flat else p.oh
        self.rows = min(config["rows"], cdiv(height, self.unit) * self.unit)
        self.parts = cdiv(height, self.rows)
        self.bands = self.parts * p.g * (1 if self.flat else p.mb * p.od)
        self.positions = self.rows * (1 if self.flat else p.ow)
        self.panel = self.taps * self.steps * 4 * 32
        self.shares = cdiv(self.panels, config["panels"])
        self.jobs = self.bands * self.shares
        self.items = min(self.jobs, config["items"])
        self.area = area
        self.finish = self.nhwc and p.out_itemsize == 1
        self.numbers_at = cdiv(area, 64) * 64
        words = NUMBERS["sums"] + 32 * self.down * self.across + 64 * config["panels"]
        self.slot = cdiv(self.numbers_at + 4 * words, PAGE) * PAGE
        self.w_sums = self.groups * self.panels * self.panel
        self.packed_size = self.w_sums + 128 * self.groups * self.panels

    @property
    def unit(self) -> int:
        """What the rows of a job are a multiple of."""
        return self.across if self.flat else self.down

    def tiles(self) -> dict[str, Tile]:
        """The functions: of whole tiles and of those at the end of a row or picture, of other panels and the last."""
        p, height = self.problem, self.problem.mb * self.problem.od * self.problem.oh * self.problem.ow
        across = (height if self.flat else p.ow) % self.across or self.across
        down = 1 if self.flat else p.oh % self.down or self.down
        found = {}
        for name, rows, columns in (("whole", self.down, self.across), ("rest", down, across)):
            places = [(r, c) for r in range(rows) for c in range(columns)]
            a = tuple(r * self.a_row + c * self.a_column for r, c in places)
            y = tuple((r * p.ow + c) * p.oc for r, c in places)
            found[name], found[f"{name}_last"] = Tile(a, y), Tile(a, y, self.last)
        return found

    def text(self) -> str:
        """The program."""
        p, band = self.problem, self.band
        text = p.macros() + "#define ONCE __attribute__((opencl_unroll_hint(1)))\n"
        text += define(
            IN_PLACE=int(self.in_place), FLAT=int(self.flat), FLIP=self.flip, PIXEL=band.pixel, LINE=band.line,
            AREA=band.area, HALF_ROWS=band.half_rows, STEP_H=band.step_h, SKIP_H=band.skip_h, SKIP_W=band.skip_w,
            COLUMNS=band.columns, BAND_ROWS=band.band_rows, HALVES=band.halves, RUN_TAPS=band.run_taps, TAPS=self.taps,
            STEPS=self.steps, UNIT=4, PANEL=f"{self.panel}L", ROWS=self.rows, PARTS=self.parts, PANELS=self.panels,
            PER=self.config["panels"], SHARES=self.shares, LAST=self.last, DOWN=self.down, ACROSS=self.across,
            A_ROW=f"{self.a_row}L", A_COLUMN=f"{self.a_column}L", BLOCK=self.block, ITEMS=f"{self.items}L",
            JOBS=f"{self.jobs}L", SLOT=f"{self.slot}L", NUMBERS_AT=f"{self.numbers_at}L", W_SUMS=f"{self.w_sums}L",
            AHEAD=self.ahead, NEXT=_NEXT, FINISH=int(self.finish), CHANNEL=1 if self.nhwc else f"{p.od * p.oh * p.ow}L",
        )  # fmt: skip
        text += number_macros()
        text += f"constant int OFFSETS[{len(self.offsets)}] = {{{', '.join(map(str, self.offsets))}}};\n"
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
        """Tiles that are computed for all panels before others are."""
        if self.panel * self.config["panels"] > _HELD:
            return self.rows * self.problem.ow  # all: weights are read once a job
        return max(1, _NEAR // (self.down * self.across * (self.a_column + self.problem.oc)))

    @property
    def ahead(self) -> int:
        """Bytes of weights to come that a step brings into the cache, where few tiles use those of a panel."""
        tiles = cdiv(self.rows, self.unit) * (1 if self.flat else cdiv(self.problem.ow, self.across))
        if self.panel * self.config["panels"] <= _HELD or tiles > _FEW:
            return 0
        return 128 // (4 if tiles >= 4 else 2 if tiles >= 2 else 1)

    @property
    def pack_key(self) -> list[Any]:
        """Shapes and the form of a panel."""
        p = self.problem
        return ["int8.vnni", p.w_shape, p.g, p.layout, self.band.pixel, self.steps, self.taps]


def where_it_lies(p: ConvProblem) -> tuple[bool, bool]:
    """Whether x's pixels are read where they are, and whether those of y are one row then."""
    one = p.kd == p.kh == p.kw == 1 and p.pd == p.ph == p.pw == 0
    inside = all((o - 1) * s < i for o, s, i in ((p.od, p.sd, p.id), (p.oh, p.sh, p.ih), (p.ow, p.sw, p.iw)))
    in_place = one and inside and p.layout == "nhwc" and p.dtype == "uint8" and p.ic // p.g % 4 == 0
    return in_place, in_place and (p.od, p.oh, p.ow) == (p.id, p.ih, p.iw)


def tile_of(p: ConvProblem) -> tuple[int, int]:
    """Rows and columns of a tile: rows of y in equal parts, or several short ones."""
    if where_it_lies(p)[1]:
        return 1, min(_MOST, p.mb * p.od * p.oh * p.ow)
    if p.ow > _MOST:
        return 1, cdiv(p.ow, cdiv(p.ow, _MOST))
    return min(p.oh, _MOST // p.ow), p.ow


class Vectors(Solver):
    """By AVX512-VNNI."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Floats, one channel a group, and rows that fit no cache."""
        if not problem.quantized:
            return f"quantized problems only, got {problem.dtype}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.depthwise:
            return "more than 1 channel a group, got depthwise"
        least = VectorsKernel(problem, {"rows": 1, "panels": 1, "items": 1})
        if least.slot > _MOST_SLOT:
            return f"rows of {_MOST_SLOT} bytes for all channels of a group at most, got {least.slot}"
        far = max(max(tile.a[-1], tile.y[-1]) for tile in least.tiles().values())
        if far >= 1 << 31:
            return f"tiles within 2**31 bytes, got {far}"
        if least.taps > 4096:
            return f"4096 taps at most, got {least.taps}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, Any]]:
        """Bands of about a cache, or of a quarter or four times as many bytes; panels shared where bands are few."""
        seen = []
        for target in (_BAND, _BAND // 4, 4 * _BAND):
            config = self._config(problem, device, target)
            if config not in seen:
                seen.append(config)
                yield config

    def _config(self, p: ConvProblem, device: DeviceInfo, target: int) -> dict[str, Any]:
        units = device.compute_units
        items = units if p.flops < _SHORT * units else 4 * units
        config: dict[str, Any] = {"rows": 1, "panels": 1, "items": items}
        one = VectorsKernel(p, config)
        if one.flat:
            height, others, line, least = p.mb * p.od * p.oh * p.ow, p.g, p.ic, _LEAST
        else:
            height, others, least = p.oh, p.mb * p.od * p.g, cdiv(_LEAST, p.ow)
            line = p.sh * p.iw * p.ic if one.in_place else one.band.step_h * one.band.line * p.kd
        most = max(1, min(height, target // max(1, line)))
        low, high = (cdiv(rows, one.unit) for rows in (min(most, least), most))
        wanted = cdiv(cdiv(height * others, 4 * units), one.unit)

        def shared(tiles: int) -> tuple[int, int]:
            """(jobs, panels of one): the panels of few bands are shared."""
            bands = cdiv(height, tiles * one.unit) * others
            shares = 1 if bands >= 2 * units else min(one.panels, cdiv(2 * units, bands))
            panels = cdiv(one.panels, shares)
            return bands * cdiv(one.panels, panels), panels

        def work(tiles: int) -> tuple[int, int, int]:
            """What the busiest unit computes, how often bands are made, how far their rows are from those wanted."""
            jobs, panels = shared(tiles)
            return cdiv(jobs, units) * tiles * panels, one.panels // panels, abs(tiles - wanted)

        best = min(range(low, high + 1), key=work)
        return config | {"rows": best * one.unit, "panels": shared(best)[1]}

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """By steps of tiles, bytes of bands and weights, and what is stored."""
        kernel, elements = VectorsKernel(problem, config), math.prod(problem.y_shape)
        size = kernel.down * kernel.across
        steps = kernel.bands * cdiv(kernel.positions, size) * kernel.panels * kernel.taps * kernel.steps
        work = _STEP * steps * (size + 1) / (_MOST + 1)
        work += _STORED * elements / 16 if kernel.nhwc else _SCATTERED * elements
        work += 0 if kernel.in_place else _COPIED * kernel.bands * kernel.shares * kernel.area
        work += _READ * kernel.bands * kernel.panels * kernel.panel
        work += 0 if problem.constant_weights else _PACKED * kernel.packed_size
        known = rates(device)
        return known.launch + (_LAUNCH + work * uneven(kernel.jobs, device)) / known.flops

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """Slots, and packed weights that are not kept."""
        return VectorsKernel(problem, config).areas()[0]

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile, once the device has proved that it computes."""
        require(context, self.name, VectorsKernel, PROBED)
        return VectorsKernel(problem, config).plan(context)
