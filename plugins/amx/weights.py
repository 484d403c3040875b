"""``amx.weights``: the weights' gradient, tiles of 32 source by 32 target channels in matrix registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
    geometry_of,
    kernel_text,
    rates,
    storage_macros,
)
from convdispatch.api.cpu import PAGE, Balance, cdiv, uneven

from .convolve import TAKES, TilesKernel, tiles_of
from .geometry import bands_of, flat_of, merged
from .instructions import CONFIGURE, product
from .probe import require
from .splits import PRODUCTS, planes_of

_LEAST = 8
"""Channels of a group, below which most of a tile would be empty."""
_SLOT, _MOST_SLOT = 1 << 20, 4 << 20  # bytes of a band's planes: wanted, and at most
_AREAS = 16 << 20  # bytes of all parts of dw
_NEAR = 4
"""Steps of positions that all taps take before the next ones: so many of x and dy stay in the first cache."""
_ONCE = 32
"""Taps whose sums stay in a slot at most."""


class Costs(NamedTuple):
    """In operations of the peak, what takes the time of one."""

    step: float
    """A product of a step of a tile for one tap, and for several."""
    step_taps: float
    round: float
    """The sums that a tile begins and ends with."""
    result: float
    """An element of dw, and of a part of it."""
    part: float
    launch: float
    """A launch, on two cores."""
    x: tuple[float, ...]
    """An element of x, and of dy, laid out in NCHW, channels last, and channels last as pairs."""
    dy: tuple[float, ...]
    x_apart: float
    """One of x in NCHW whose neighbours in a row are not read."""
    narrow: float = 0.5
    """A tile of 16 target channels or fewer, beside a whole one."""


class WeightsKernel:
    """One configuration, worked out without compiling."""

    tiles = TilesKernel
    """Of the other directions, by the same instructions."""
    most_near = 0
    """Steps of positions that a single tap takes before other channels do; 0: all."""
    costs = Costs(8400.0, 3800.0, 51e3, 18.0, 38.0, 2.9e6, (62.0, 76.0), (53.0, 61.0), 170.0)
    timed = 1.0, 1.3
    """Times of what is counted, of one plane and of several: 44 of 154 drawn problems, on four cores of a Xeon."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem = problem = merged(problem)
        self.config = config
        self.geometry = geometry = geometry_of(problem)
        self.flat = flat = flat_of(geometry)
        self.taps = flat.taps[0]
        self.planes, self.nhwc = config["planes"], problem.layout == "nhwc"
        self.blocks, self.panels = cdiv(geometry.c, 32), cdiv(geometry.m, 32)
        self.all_rows = geometry.images * flat.rows
        self.rows = min(config["rows"], self.all_rows)
        self.bands = cdiv(self.all_rows, self.rows)
        self.band_rows = self.rows + flat.beyond
        self.steps = cdiv(self.rows * flat.pitch, 32)
        self.near = _NEAR if len(self.taps) > 1 else self.most_near or self.steps
        self.paired = self.tiles.vectors and self.nhwc and geometry.pointwise
        # Rows of an odd number of cache lines, so that a tile's spread over the cache's sets.
        self.positions = (cdiv(self.band_rows * flat.pitch + 64, 32) | 1) * 32
        self.turned = (cdiv(self.rows * flat.pitch + 64, 32) | 1) * 32
        areas = Areas(PAGE)
        areas.add(self.blocks * len(flat.parts) * self.planes * 64 * self.positions)
        self.dy_at = areas.add(32 * self.steps * 64 * self.planes)
        self.flat_at = areas.add(64 * self.planes * (self.positions + 64 if self.nhwc else self.turned))
        self.splits = min(config["splits"], self.bands)
        self.shares = cdiv(self.panels, config["panels"])
        self.jobs = geometry.groups * self.splits * self.shares
        self.items = min(self.jobs, config["items"])
        self.tiles = self.panels * self.blocks * len(self.taps)
        self.once = self.bands == 1 and self.splits == 1 and len(self.taps) <= _ONCE
        self.scaled = problem.dtype == "float32"
        self.sums_at = areas.add(4096 * len(self.taps) * self.once + 64)
        self.part_sums_at = areas.add(4096 * len(self.taps) * self.scaled + 64)
        self.slot = areas.size
        self.area = 0 if self.once else self.tiles * 1024
        workspace = Areas(PAGE)
        workspace.add(4 * self.area * geometry.groups * self.splits)
        self.scales_at = workspace.add(8 * geometry.groups * self.splits * self.panels)
        self.slots_at = workspace.add(self.items * self.slot)
        self.workspace_size = workspace.size

    def text(self) -> str:
        """The program."""
        problem, geometry, flat = self.problem, self.geometry, self.flat
        text = storage_macros(problem.dtype) + define(V="float16", LANES=16)
        triples = {"X": geometry.source.size, "S": geometry.step, "Q": [axis.pitch for axis in flat.axes],
                   "Y": geometry.target.size, "T": geometry.target.size}  # fmt: skip
        for prefix, triple in triples.items():
            text += define(**{prefix + axis: value for axis, value in zip("DHW", triple, strict=True)})
        text += define(OD_=1, OH_=1, OW_=1, NHWC=int(self.nhwc), PLANES=self.planes, IMAGES=geometry.images)
        text += define(
            G=geometry.source.channels, GROUPS=geometry.groups, C=geometry.c, N=geometry.m, BLOCKS=self.blocks
        )
        text += define(PANELS=self.panels, PER=self.config["panels"], SHARES=self.shares, SPLITS=self.splits)
        text += define(ROWS=self.rows, BANDS=self.bands, BAND_ROWS=self.band_rows, POSITIONS=self.positions)
        text += define(
            FLAT=self.turned,
            STEPS=f"{self.steps}L",
            TAPS=len(self.taps),
            NEAR=f"{self.near}L",
            RUN=1 if self.nhwc else len(self.taps),
        )
        text += define(
            ALL_ROWS=self.all_rows,
            PARTS=len(flat.parts),
            AREA=f"{self.area}L",
            SLOTS=f"{self.slots_at}L",
            SLOT=f"{self.slot}L",
        )
        text += define(DY_AT=f"{self.dy_at}L", FLAT_AT=f"{self.flat_at}L", SUMS_AT=f"{self.sums_at}L")
        text += define(JOBS=f"{self.jobs}L", ITEMS=self.items, SCALED=int(self.scaled), SCALES_AT=f"{self.scales_at}L")
        text += define(PART_SUMS_AT=f"{self.part_sums_at}L")
        text += define(SIZES_IN="", SIZES="")  # sizes are in the text
        text += kernel_text(__package__, "split.cl") + kernel_text(__package__, "rows.cl") + self._tables()
        kinds = [(r, c) for r in _sizes(geometry.c) for c in _sizes(geometry.m)]
        line = 2 * self.positions
        x = {"row": line, "tile": 16 * line, "plane": 32 * line, "step": 64}
        x = {"row": 4, "pair": 128, "step": 2048} if self.paired else x
        dy = {"row": 128 * self.planes, "tile": 64, "plane": 128, "step": 2048 * self.planes}
        ways = [
            (f"{name}_{r}{c}", (r, c), goes_on)
            for r, c in kinds
            for name, goes_on in (("begin", False), ("more", True))
        ]
        text += self.products(x, dy, ways)
        return text + kernel_text(__package__, "turn.cl.mako") + kernel_text(
            __package__, "weights.cl.mako", nhwc=self.nhwc, paired=self.paired, once=self.once, splits=self.splits,
            tiles=kinds, accumulate=problem.accumulate,
        )  # fmt: skip

    def products(self, x: dict[str, int], dy: dict[str, int], ways: list[tuple[str, tuple[int, int], bool]]) -> str:
        """The functions that multiply, of these names, tiles, and whether they begin with what memory holds."""
        return CONFIGURE + "".join(product(name, self.planes, x, dy, tiles, goes_on) for name, tiles, goes_on in ways)

    def _tables(self) -> str:
        flat = self.flat
        first = [axis.first for axis in flat.axes]
        parts = [[r + at for r, at in zip(part, first, strict=True)] for part in flat.parts]
        return (
            f"constant int2 OFFSETS[] = {{{', '.join(f'(int2)({tap.part}, {tap.offset})' for tap in self.taps)}}};\n"
            f"constant int4 PART_AT[] = {{{', '.join(f'(int4)({d}, {h}, {w}, 0)' for d, h, w in parts)}}};\n"
        )

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        program = build(context, self.text())
        steps = [Launch(program, "weights", (self.items, 1, 1), (1, 1, 1), "x y w workspace", names=OPERANDS)]
        if self.splits > 1:
            sizes = (2 * self.panels * self.blocks, self.geometry.groups, 1)
            steps.append(Launch(program, "reduce", sizes, (1, 1, 1), "workspace w", names=OPERANDS))
        return StepPlan(self.workspace_size, steps)


def _sizes(channels: int) -> list[int]:
    """Tiles of 16 that blocks of 32 channels take: two, and one for a rest of 16 or less."""
    rest = channels % 32
    return ([2] if channels > 16 else []) + ([1] if 0 < rest <= 16 else [])


class Weights(Solver):
    """The weights' gradient on a CPU with matrix registers."""

    kernel: type[WeightsKernel] = WeightsKernel
    takes = TAKES
    planes_of = staticmethod(planes_of)

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Other directions, float64, few channels, and bands that fit no cache."""
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        if not self.planes_of(problem):
            return f"{self.takes} only, got {problem.dtype} and {problem.math}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        geometry = geometry_of(problem)
        if min(geometry.c, geometry.m) < _LEAST:
            return f"{_LEAST} channels a group or more, got {min(geometry.c, geometry.m)}"
        least = {"planes": self.planes_of(problem), "rows": 1, "panels": 1, "splits": 1, "items": 1}
        kernel = self.kernel(problem, least)
        if kernel.slot > _MOST_SLOT:
            return f"rows of {_MOST_SLOT} bytes for all channels of a group at most, got {kernel.slot}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Bands, parts and shares by predicted cost."""
        geometry, units = geometry_of(problem), device.compute_units
        panels = cdiv(geometry.m, 32)
        base = {
            "planes": self.planes_of(problem),
            "panels": panels,
            "splits": 1,
            "items": min(4 * units, max(units, 16)),
        }
        all_rows = self.kernel(problem, {**base, "rows": 1}).all_rows
        fits = [n for n in bands_of(all_rows) if self.kernel(problem, {**base, "rows": n}).slot <= _SLOT] or [1]
        found: dict[str, tuple[float, dict[str, Any]]] = {}
        for rows in fits[-3:]:
            for shares in sorted({1, min(units, panels), min(2 * units, panels)}):
                for splits in (1, units, 2 * units):
                    config = {**base, "rows": rows, "panels": cdiv(panels, shares), "splits": splits}
                    kernel = self.kernel(problem, config)
                    if splits == 1 or 4 * kernel.area * geometry.groups * splits <= _AREAS:
                        config["splits"] = kernel.splits
                        found[str(config)] = cost_of(kernel, device), config
        for _, config in sorted(found.values(), key=lambda each: each[0])[:3]:
            yield config

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Sums of the parts, and slots."""
        return self.kernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """What tiles take, what is split, turned and added, and launches."""
        kernel = self.kernel(problem, config)
        return cost_of(kernel, device) * kernel.timed[kernel.planes > 1] / rates(device).flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile, once the device has proved that it can. Raises PluginError."""
        require(context, tiles=self.kernel.tiles)
        return self.kernel(problem, config).plan(context)


def cost_of(kernel: WeightsKernel, device: DeviceInfo) -> float:
    """Operations of the peak that a configuration takes the time of."""
    geometry, flat, costs = kernel.geometry, kernel.flat, kernel.costs
    launch = costs.launch * Balance.of(rates(device)).launch
    bands, taps = geometry.groups * kernel.bands, len(kernel.taps)
    tiles = bands * taps * cdiv(geometry.c, 16) / 2 * tiles_of(geometry.m, costs.narrow)
    work = (costs.step_taps if taps > 1 else costs.step) * len(PRODUCTS[kernel.planes]) * tiles * kernel.steps
    work += costs.round * tiles * cdiv(kernel.steps, kernel.near)
    x = bands * kernel.shares * kernel.band_rows * flat.pitch * kernel.blocks * 32 * len(flat.parts)
    form = kernel.nhwc + kernel.paired
    x *= costs.x_apart if geometry.step[2] > 1 and not kernel.nhwc else costs.x[form]
    dy = costs.dy[form] * bands * kernel.rows * flat.pitch * kernel.panels * 32
    result = costs.result * geometry.groups * kernel.tiles * 1024
    cost = (work + x + dy + (result if kernel.splits == 1 else 0)) * uneven(kernel.jobs, device) + launch
    if kernel.splits == 1:
        return cost
    return cost + result + costs.part * geometry.groups * kernel.splits * kernel.area + launch
