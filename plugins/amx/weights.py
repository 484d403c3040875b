"""``amx.weights``: the weights' gradient in tiles of 32 source by 32 target channels of AMX matrix registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from convdispatch.api import (
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    StepPlan,
    build,
    define,
    geometry_of,
    kernel_text,
    storage_macros,
)
from convdispatch.api.cpu import PAGE, TILE_MACROS, cdiv, uneven

from .banded import MAX_SLOT_BYTES, BandedKernel, BandedSolver, tiles_of
from .convolve import TilesKernel
from .geometry import bands_of
from .instructions import PRODUCTS, product
from .probe import require

SLOT_BYTES = 1 << 20
"""Bytes of a work item's workspace slot that the offered bands do not exceed, unless one row alone takes more."""
MAX_PARTS_BYTES = 16 << 20
"""Most bytes that all partial sums of dw may take in the workspace."""
NEAR_STEPS = 4
"""Steps of 32 positions that are multiplied for all taps before the next steps: their x and dy stay in the L1 cache."""
MAX_ONCE_TAPS = 32
"""Most taps whose sums of dw stay in a work item's slot."""


class Costs(NamedTuple):
    """Costs of the weight gradient's units of work, in operations at the device's peak rate."""

    step: float
    """Cost of one product of two planes for a tile and 32 positions with one tap; ``step_taps``: with several taps."""
    step_taps: float
    round: float
    """Cost of loading and storing the sums of one tile."""
    result: float
    """Cost of storing one element of dw; ``part``: of adding one element of a partial sum of dw."""
    part: float
    launch: float
    """Cost of one kernel launch on two cores."""
    x: tuple[float, ...]
    """Cost of copying one element of x to a slot in NCHW, in NHWC, and in NHWC as pairs; ``dy``: of one of dy."""
    dy: tuple[float, ...]
    x_apart: float
    """Cost of copying one element of x to a slot in NCHW with a stride along w, which skips its neighbours."""
    narrow: float = 0.5
    """Cost of a tile of 16 target channels or fewer, relative to a tile of 32."""


class WeightsKernel(BandedKernel):
    forward = TilesKernel
    """The kernel class of forward and data gradient that uses the same instructions."""
    max_near_steps = 0
    """Most steps of positions that a 1x1 kernel multiplies before it goes to other channels; 0: all steps."""
    costs = Costs(8400.0, 3800.0, 51e3, 18.0, 38.0, 2.9e6, (62.0, 76.0), (53.0, 61.0), 170.0)
    timed = 1.0, 1.3
    """Measured over modelled time, with one plane and with several: 44 of 154 random problems, four cores of a Xeon."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config)
        geometry, flat = self.geometry, self.flat
        self.taps = flat.taps[0]
        self.steps = cdiv(self.rows * flat.pitch, 32)
        self.near = NEAR_STEPS if len(self.taps) > 1 else self.max_near_steps or self.steps
        self.paired = self.forward.vectors and self.nhwc and geometry.pointwise
        # Each row takes an odd number of cache lines, so that the rows of a tile spread over the sets of the cache.
        self.positions = (cdiv(self.band_rows * flat.pitch + 64, 32) | 1) * 32
        self.turned = (cdiv(self.rows * flat.pitch + 64, 32) | 1) * 32
        areas = Areas(PAGE)
        areas.add(self.blocks * len(flat.parts) * self.planes * 64 * self.positions)
        self.dy_at = areas.add(32 * self.steps * 64 * self.planes)
        self.flat_at = areas.add(64 * self.planes * (self.positions + 64 if self.nhwc else self.turned))
        self.splits = min(config["splits"], self.bands)
        self.jobs = geometry.groups * self.splits * self.shares
        self.items = min(self.jobs, config["items"])
        self.tiles = self.panels * self.blocks * len(self.taps)
        self.single_pass = self.bands == 1 and self.splits == 1 and len(self.taps) <= MAX_ONCE_TAPS
        self.sums_at = areas.add(4096 * len(self.taps) * self.single_pass + 64)
        self.part_sums_at = areas.add(4096 * len(self.taps) * self.scaled + 64)
        self.slot = areas.size
        self.area = 0 if self.single_pass else self.tiles * 1024
        workspace = Areas(PAGE)
        workspace.add(4 * self.area * geometry.groups * self.splits)
        self.scales_at = workspace.add(8 * geometry.groups * self.splits * self.panels)
        self.slots_at = workspace.add(self.items * self.slot)
        self.workspace_size = workspace.size

    def text(self) -> str:
        problem, geometry, flat = self.problem, self.geometry, self.flat
        text = storage_macros(problem.dtype) + define(V="float16", LANES=16)
        triples = {"X": geometry.source.size, "S": geometry.step, "Q": [axis.pitch for axis in flat.axes],
                   "Y": geometry.target.size, "T": geometry.target.size}  # fmt: skip
        for prefix, triple in triples.items():
            text += define(**{prefix + axis: value for axis, value in zip("DHW", triple, strict=True)})
        text += define(
            OD_=1, OH_=1, OW_=1, NHWC=int(self.nhwc), PLANES=self.planes, SCALED=int(self.scaled),
            IMAGES=geometry.images, G=geometry.source.channels, GROUPS=geometry.groups, C=geometry.c, N=geometry.m,
            BLOCKS=self.blocks, PANELS=self.panels, PER=self.config["panels"], SHARES=self.shares, SPLITS=self.splits,
            ROWS=self.rows, BANDS=self.bands, BAND_ROWS=self.band_rows, ALL_ROWS=self.all_rows, PARTS=len(flat.parts),
            POSITIONS=self.positions, FLAT=self.turned, TAPS=len(self.taps), RUN=1 if self.nhwc else len(self.taps),
            STEPS=f"{self.steps}L", NEAR=f"{self.near}L", AREA=f"{self.area}L", SLOTS=f"{self.slots_at}L",
            SLOT=f"{self.slot}L", DY_AT=f"{self.dy_at}L", FLAT_AT=f"{self.flat_at}L", SUMS_AT=f"{self.sums_at}L",
            PART_SUMS_AT=f"{self.part_sums_at}L", SCALES_AT=f"{self.scales_at}L", JOBS=f"{self.jobs}L",
            ITEMS=self.items, SIZES_IN="", SIZES="",  # empty macros: this program's sizes are literals in its text
        )  # fmt: skip
        text += kernel_text(__package__, "split.cl") + kernel_text(__package__, "rows.cl") + self._tables()
        kinds = [(r, c) for r in _tile_widths(geometry.c) for c in _tile_widths(geometry.m)]
        row_bytes = 2 * self.positions
        x = {"row": row_bytes, "tile": 16 * row_bytes, "plane": 32 * row_bytes, "step": 64}
        x = {"row": 4, "pair": 128, "step": 2048} if self.paired else x
        dy = {"row": 128 * self.planes, "tile": 64, "plane": 128, "step": 2048 * self.planes}
        functions = [
            (f"{name}_{r}{c}", (r, c), add) for r, c in kinds for name, add in (("begin", False), ("more", True))
        ]
        text += self.products(x, dy, functions)
        return text + kernel_text(__package__, "transpose.cl.mako") + kernel_text(
            __package__, "weights.cl.mako", nhwc=self.nhwc, paired=self.paired, splits=self.splits,
            single_pass=self.single_pass, tiles=kinds, accumulate=problem.accumulate,
        )  # fmt: skip

    def products(self, x: dict[str, int], dy: dict[str, int], kinds: list[tuple[str, tuple[int, int], bool]]) -> str:
        """OpenCL functions that multiply tiles; ``kinds``: (name, tiles of x and dy, whether it adds to its sums)."""
        return TILE_MACROS + "".join(product(name, self.planes, x, dy, tiles, add) for name, tiles, add in kinds)

    def _tables(self) -> str:
        flat = self.flat
        origin = [axis.first for axis in flat.axes]
        parts = [[r + start for r, start in zip(part, origin, strict=True)] for part in flat.parts]
        return (
            f"constant int2 OFFSETS[] = {{{', '.join(f'(int2)({tap.part}, {tap.offset})' for tap in self.taps)}}};\n"
            f"constant int4 PART_AT[] = {{{', '.join(f'(int4)({d}, {h}, {w}, 0)' for d, h, w in parts)}}};\n"
        )

    def plan(self, context: Any) -> StepPlan:
        program = build(context, self.text())
        steps = [Launch(program, "weights", (self.items, 1, 1), (1, 1, 1), "x y w workspace", names=OPERANDS)]
        if self.splits > 1:
            sizes = (2 * self.panels * self.blocks, self.geometry.groups, 1)
            steps.append(Launch(program, "reduce", sizes, (1, 1, 1), "workspace w", names=OPERANDS))
        return StepPlan(self.workspace_size, steps)

    def operations(self, device: DeviceInfo) -> float:
        geometry, flat, costs = self.geometry, self.flat, self.costs
        launch = self.launch_cost(device)
        bands, taps = geometry.groups * self.bands, len(self.taps)
        tiles = bands * taps * cdiv(geometry.c, 16) / 2 * tiles_of(geometry.m, costs.narrow)
        product_ops = (costs.step_taps if taps > 1 else costs.step) * len(PRODUCTS[self.planes]) * tiles * self.steps
        product_ops += costs.round * tiles * cdiv(self.steps, self.near)
        x = bands * self.shares * self.band_rows * flat.pitch * self.blocks * 32 * len(flat.parts)
        layout_index = self.nhwc + self.paired
        x *= costs.x_apart if geometry.step[2] > 1 and not self.nhwc else costs.x[layout_index]
        dy = costs.dy[layout_index] * bands * self.rows * flat.pitch * self.panels * 32
        result = costs.result * geometry.groups * self.tiles * 1024
        cost = (product_ops + x + dy + (result if self.splits == 1 else 0)) * uneven(self.jobs, device) + launch
        if self.splits == 1:
            return cost
        return cost + result + costs.part * geometry.groups * self.splits * self.area + launch


def _tile_widths(channels: int) -> list[int]:
    """Numbers of 16-channel tiles in the blocks of 32 channels: 2, and 1 for a remainder of 16 or fewer."""
    remainder = channels % 32
    return ([2] if channels > 16 else []) + ([1] if 0 < remainder <= 16 else [])


class Weights(BandedSolver):
    """The weights' gradient on a CPU with matrix registers."""

    kernel: type[WeightsKernel] = WeightsKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        reason = self.common_refusal(problem)
        if reason:
            return reason
        smallest = {"planes": self.planes_of(problem), "rows": 1, "panels": 1, "splits": 1, "items": 1}
        slot = self.kernel(problem, smallest).slot
        if slot > MAX_SLOT_BYTES:
            return f"rows of {MAX_SLOT_BYTES} bytes for all channels of a group at most, got {slot}"
        return None

    def candidates(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[dict[str, Any]]:
        units, groups = device.compute_units, geometry_of(problem).groups
        base = {"splits": 1, **self.base(problem, units)}
        panels = base["panels"]
        all_rows = self.kernel(problem, {**base, "rows": 1}).all_rows
        heights = [n for n in bands_of(all_rows) if self.kernel(problem, {**base, "rows": n}).slot <= SLOT_BYTES] or [1]
        for rows in heights[-3:]:
            for shares in sorted({1, min(units, panels), min(2 * units, panels)}):
                for splits in (1, units, 2 * units):
                    config = {**base, "rows": rows, "panels": cdiv(panels, shares), "splits": splits}
                    kernel = self.kernel(problem, config)
                    if splits == 1 or 4 * kernel.area * groups * splits <= MAX_PARTS_BYTES:
                        yield {**config, "splits": kernel.splits}

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return self.kernel(problem, config).workspace_size

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        require(context, tiles=self.kernel.forward)
        return self.kernel(problem, config).plan(context)
