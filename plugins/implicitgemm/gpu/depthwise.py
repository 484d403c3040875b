"""implicitgemm.tiled_depthwise: forward and data gradient of depthwise layers; the tiles of both depthwise solvers.

In NHWC a work item computes ``vector`` consecutive channels, which it reads and writes together. In NCHW it computes
one channel, and the next work items have the next columns. The reads of a tile are unrolled row by row of the source:
each value is read once for all taps, pixels and phases that need it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from convdispatch.api import (
    MOST_PHASES,
    ConvProblem,
    DeviceInfo,
    Geometry,
    StepPlan,
    define,
    geometry_of,
    kernel_text,
    phase_count,
    rates,
)

from ..solving import KernelSolver, launch
from .choice import SECTOR_OPS, SUSTAINED
from .product import element_index

ITEMS = 128
"""Most work items in a work group; it may have a few less."""
MAX_STEPS = 2400
"""Most vector multiply-adds that the unrolled text of a kernel may contain."""
MAX_ITEM_REGISTERS = 168
"""Most registers that a work item may need, approximately."""
UNIT_REGISTERS = 65536
"""Registers of a compute unit."""
LOCAL_BYTES = 32768
"""Bytes of local memory that every device has."""


@dataclass(unsafe_hash=True)
class DepthwiseTile:
    """A tile of one problem; all fields except the problem are the configuration."""

    problem: ConvProblem
    vector: int
    """Channels that one work item computes: 1, 2, 4 or 8."""
    rows: int
    columns: int
    """Output pixels of a work item along h and w; in the data gradient of a stride, in each phase."""
    turns: int = 1
    """Tiles that a work item processes one after another."""

    workspace_size = 0

    def __post_init__(self) -> None:
        problem, vector = self.problem, self.vector
        self.geometry = geo = geometry_of(problem)
        self.nhwc = problem.layout == "nhwc"
        self.accsize = problem.accumulator_size
        self.part = min(4, vector)
        """Channels in each of the parts (of up to 4) that a vector is divided into."""
        self.parts = range(vector // self.part)
        largest_phase = [max(phase.count[axis] for phase in geo.phases) for axis in range(3)]
        self.count = largest_phase[0], -(-largest_phase[1] // self.rows), -(-largest_phase[2] // self.columns)
        self.tiles = geo.images * math.prod(self.count)
        self.across = geo.groups // vector
        lanes = min(32, LOCAL_BYTES // (geo.volume * vector * self.accsize))
        # In NCHW the work items of a group first take the tiles of one plane, then those of the next planes.
        if not self.nhwc:
            lanes = min(lanes, ITEMS // min(ITEMS, math.prod(self.count)))
        self.lanes = -(-self.across // -(-self.across // max(1, lanes)))
        """Work items of a work group that compute different channels."""
        self.slabs = -(-self.across // self.lanes)
        self.deep = max(1, min(ITEMS // self.lanes, self.tiles if self.nhwc else math.prod(self.count)))
        """Work items of a work group that compute the same channels."""
        self.blocks = -(-self.tiles // (self.deep * self.turns))
        """Number of work groups that cover all tiles of a slab's channels."""
        self.index = element_index(geo.images * max(geo.source.image, geo.target.image))
        phases = range(len(geo.phases))
        self.places = list(itertools.product(phases, range(self.rows), range(self.columns)))
        """(Phase, row, column) of each output pixel of a tile."""
        self.steps = sum(phase.volume for phase in geo.phases) * self.rows * self.columns
        """Vector multiply-adds of one tile."""

    def config(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "problem"}

    def size(self, tiles: int, channels: int) -> tuple[int, int]:
        """Work items along the launch's two axes; consecutive ones along the first axis access contiguous memory."""
        return (channels, tiles) if self.nhwc else (tiles, channels)

    @property
    def reads(self) -> dict[tuple[int, int], dict[int, list[tuple[int, int]]]]:
        """{(depth, row) of the source: {tap: [(output pixel, column)]}}, relative to the tile's first pixel."""
        return _reads(self.geometry, self.rows, self.columns)

    @staticmethod
    def columns_of(row: dict[int, list[tuple[int, int]]]) -> list[int]:
        """Return the source columns that the taps of a row read."""
        return sorted({column for uses in row.values() for _, column in uses})

    @property
    def all_columns(self) -> list[int]:
        """Source columns that any row of a tile reads."""
        return sorted({column for row in self.reads.values() for column in self.columns_of(row)})

    @property
    def counts(self) -> tuple[int, int, int]:
        """(vectors of the source that a tile reads, vectors of weights that it reads, most columns of a row)."""
        return _counts(self.geometry, self.rows, self.columns)

    @property
    def registers(self) -> int:
        """Registers that a work item needs, approximately."""
        gradient, width = self.problem.direction == "bwd_weights", self.counts[2]
        values = self.geometry.volume + len(self.places) if gradient else len(self.places) + 2
        return ((values + width) * self.vector + 6 * self.vector // 2) * self.accsize // 4 + 24


@functools.lru_cache(maxsize=256)
def _reads(geo: Geometry, rows: int, columns: int) -> dict[tuple[int, int], dict[int, list[tuple[int, int]]]]:
    """Compute ``DepthwiseTile.reads``; output pixels are numbered by phase, then by row, then by column."""
    reads: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}
    for f, phase in enumerate(geo.phases):
        for kernel_tap, z, y, x in geo.reads(phase):
            for j, i in itertools.product(range(rows), range(columns)):
                row = reads.setdefault((z, y + j * geo.step[1]), {})
                row.setdefault(kernel_tap, []).append(((f * rows + j) * columns + i, x + i * geo.step[2]))
    return dict(sorted(reads.items()))


@functools.lru_cache(maxsize=256)
def _counts(geo: Geometry, rows: int, columns: int) -> tuple[int, int, int]:
    """Compute ``DepthwiseTile.counts``, without listing the reads as ``_reads`` does."""
    first_columns: dict[tuple[int, int], set[int]] = {}
    taps_of_rows: dict[tuple[int, int], set[int]] = {}
    for phase in geo.phases:
        for kernel_tap, z, y, x in geo.reads(phase):
            for j in range(rows):
                row = z, y + j * geo.step[1]
                first_columns.setdefault(row, set()).add(x)
                taps_of_rows.setdefault(row, set()).add(kernel_tap)
    steps = [i * geo.step[2] for i in range(columns)]
    widths = [len({x + step for x in starts for step in steps}) for starts in first_columns.values()]
    return sum(widths), sum(map(len, taps_of_rows.values())), max(widths)


def busy(tile: DepthwiseTile, items: int, device: DeviceInfo, enough: int) -> float:
    """The share of a device's speed that ``items`` work items reach, if ``enough`` per compute unit reach all of it."""
    resident = max(1, min(16, UNIT_REGISTERS // (tile.registers * ITEMS))) * ITEMS
    return min(1.0, items / (device.compute_units * enough)) * min(1.0, resident / enough)


def limits(problem: ConvProblem, device: DeviceInfo) -> str | None:
    """The reason why tiles of depthwise layers do not suit the problem in any direction; otherwise None."""
    if phase_count(problem) > MOST_PHASES:
        return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
    if problem.mb < 1:
        return f"1 image or more, got {problem.mb}"
    if not problem.ic == problem.oc == problem.g:
        return f"one channel in and out a group only, got {problem.ic} and {problem.oc} in {problem.g} groups"
    if min(device.max_work_group_size, *device.max_work_item_sizes[:2]) < ITEMS:
        return f"{ITEMS} work items a group, the device has {device.max_work_group_size}"
    if not any(phase.volume for phase in geometry_of(problem).phases):
        return "some tap that reaches the image only"
    if not fits(DepthwiseTile(problem, vectors(problem)[-1], 1, 1)):
        return f"kernels of up to {MAX_STEPS} multiply-adds an item, got {problem.kd}x{problem.kh}x{problem.kw}"
    return None


def vectors(problem: ConvProblem) -> list[int]:
    """Return the numbers of channels per work item that divide the problem's channels, the largest first."""
    widest = 16 // problem.itemsize if problem.layout == "nhwc" else 1
    return [vector for vector in (8, 4, 2, 1) if vector <= widest and problem.g % vector == 0]


def fits(tile: DepthwiseTile) -> bool:
    """Whether the kernel's text and its registers stay below the limits above."""
    weights = tile.geometry.volume * tile.vector * tile.accsize
    if tile.steps * len(tile.parts) > MAX_STEPS or weights > LOCAL_BYTES:
        return False
    return tile.registers <= MAX_ITEM_REGISTERS


def shapes(problem: ConvProblem, kind: type[DepthwiseTile] = DepthwiseTile) -> Iterator[Any]:
    """Yield tiles that fit, without those that would leave half of their pixels empty."""
    count = [max(phase.count[axis] for phase in geometry_of(problem).phases) for axis in range(3)]
    lengths = (1, 2, 4, 7, 8)
    # In NCHW, two columns per work item leave gaps between neighbours' reads: small kernels over short rows took 1.5
    # times as long.
    column_counts = lengths if problem.layout == "nhwc" else (1,) if count[2] < 28 and problem.kw <= 3 else (1, 2)
    for vector, rows, columns in itertools.product(vectors(problem), lengths, column_counts):
        tile = kind(problem, vector, rows, columns)
        if rows < 2 * count[1] and columns < 2 * count[2] and fits(tile):
            yield tile


MANY_GROUPS = 64
"""Work groups per compute unit from which on each work item processes several tiles."""
MAX_CONFIGS = 24
SECTOR_BYTES = 32
"""Bytes of a sector, the unit in which the second-level cache is read and written."""

# The constants of the cost model were fitted to 669 timings on an H200, with an rms error of the logarithm of 0.17.
REACHED_SHARE = 0.83  # share of the device's instruction rate that a busy device reaches
LOAD_INSTRUCTIONS = 5.0  # instructions of a work item per vector that it reads
# Additional instructions per 16-bit number that is read alone, not in a vector: 3 timings on an H200
LONE_HALF_INSTRUCTIONS = 12.0
PLACE_INSTRUCTIONS = 7.7  # instructions of a work item per result
TILE_INSTRUCTIONS = 28  # instructions of a work item per tile
FILL_INSTRUCTIONS = 88  # instructions of a work item per weight that it copies to local memory
BUSY_ITEMS = 437  # work items per compute unit that are enough to hide each other's latency
COPY_SHARE = 0.91  # share of the measured bandwidth of a copy that the kernel reaches
LAUNCH_SHARE = 0.75  # share of a launch's time that a call takes in addition to its work


class ForwardTile(DepthwiseTile):
    """A tile of output pixels, of the forward convolution or the data gradient."""

    def plan(self, context: Any) -> StepPlan:
        problem = self.problem
        text = problem.macros() + define(OUT_INDEX=element_index(math.prod(problem.out_shape)), PARTIAL=0)
        text += kernel_text(__package__, "output.cl") + kernel_text(__package__, "depthwise.cl.mako", p=self)
        source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
        operands = ["w", source, written, *(name for name in ("bias", "residual") if getattr(problem, name))]
        size = self.size(self.blocks * self.deep, self.slabs * self.lanes)
        return StepPlan(0, [launch(context, text, "depthwise", size, self.size(self.deep, self.lanes), operands)])

    def seconds(self, device: DeviceInfo) -> float:
        """Return the predicted seconds: instructions, memory traffic, and the idle time of too few work items."""
        problem, peaks = self.problem, rates(device)
        loads, weight_reads, _ = self.counts
        widened = self.vector if problem.itemsize == 2 else 0
        load = LOAD_INSTRUCTIONS + (LONE_HALF_INSTRUCTIONS if problem.itemsize == 2 and self.vector == 1 else 0)
        instructions = self.steps * self.vector + loads * load + weight_reads * len(self.parts)
        instructions += len(self.places) * (PLACE_INSTRUCTIONS + (widened or 1)) + TILE_INSTRUCTIONS
        instructions += FILL_INSTRUCTIONS * self.geometry.volume * self.vector / self.deep / self.turns
        items = self.tiles * self.slabs * self.lanes
        compute = items * instructions * 2 / (REACHED_SHARE * peaks.flops * busy(self, items, device, BUSY_ITEMS))
        gaps = SECTOR_OPS * self._partial_sectors() / (SUSTAINED * peaks.flops)
        traffic = problem.bytes / (COPY_SHARE * peaks.bandwidth)
        return math.hypot(compute, traffic, gaps) + LAUNCH_SHARE * peaks.launch

    def _partial_sectors(self) -> float:
        """Return the sectors that are only partly written: in NCHW results of adjacent items are a tile apart."""
        if self.nhwc:
            return 0.0
        size = self.problem.itemsize
        pixel_distance = min(self.columns * self.geometry.out_step[2], SECTOR_BYTES // size)
        return math.prod(self.problem.out_shape) * (pixel_distance - 1) * size / SECTOR_BYTES


class Depthwise(KernelSolver):
    """Forward and data gradient of layers whose channels each have one kernel."""

    @staticmethod
    def kernel(problem: ConvProblem, config: Mapping[str, Any]) -> ForwardTile:
        return ForwardTile(problem, **config)

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got the weights' gradient"
        return limits(problem, device)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield tiles, the fastest by prediction first."""
        tiles, many_groups = list(shapes(problem, ForwardTile)), MANY_GROUPS * device.compute_units
        tiles += [replace(tile, turns=4) for tile in tiles if tile.blocks * tile.slabs > many_groups]
        return (tile.config() for tile in sorted(tiles, key=lambda tile: tile.seconds(device))[:MAX_CONFIGS])
