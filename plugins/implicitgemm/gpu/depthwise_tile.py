"""DepthwiseTile: which places and channels a work item computes of a depthwise layer, and what it reads.

Channels last, an item has ``vector`` neighbouring channels, which it reads and writes at once; otherwise one, and its
neighbours have the next columns. What a tile of places reads is unrolled row by row of the source: each value is read
once for all taps, places and phases that need it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, Geometry, geometry_of, phase_count

from .product import element_index

ITEMS = 128
"""Work items of a group, or a few less."""
_MOST_STEPS = 2400  # multiply-adds of vectors that are written out
_MOST_REGISTERS = 168  # of an item, about
_REGISTERS = 65536  # of a compute unit
_LOCAL = 32768  # bytes of local memory that every device has


@dataclass(frozen=True)
class DepthwiseTile:
    """A tile of one problem; the configuration's numbers."""

    problem: ConvProblem
    vector: int
    """Channels of an item: 1, 2, 4 or 8."""
    rows: int
    columns: int
    """Places of an item along h and w; for the data gradient of a stride, of each phase."""
    turns: int = 1
    """Tiles of an item, one after another."""

    def config(self) -> dict[str, Any]:
        """The configuration."""
        return {key: value for key, value in asdict(self).items() if key != "problem"}

    @functools.cached_property
    def geometry(self) -> Geometry:
        """What places of the target read."""
        return geometry_of(self.problem)

    @property
    def gradient(self) -> bool:
        """Whether weights are summed."""
        return self.problem.direction == "bwd_weights"

    @property
    def part(self) -> int:
        """Channels of a part of a vector."""
        return min(4, self.vector)

    @property
    def parts(self) -> range:
        """Parts of a vector."""
        return range(self.vector // self.part)

    @property
    def accsize(self) -> int:
        """Bytes of a sum."""
        return 8 if self.problem.dtype == "float64" else 4

    # --- who computes what -------------------------------------------------------------------------------------------

    @property
    def across(self) -> int:
        """Vectors of all channels."""
        return self.geometry.groups // self.vector

    @property
    def nhwc(self) -> bool:
        """Channels last."""
        return self.problem.layout == "nhwc"

    @functools.cached_property
    def lanes(self) -> int:
        """Items of a group that have different channels."""
        most = min(32, _LOCAL // (self.geometry.volume * self.vector * self.accsize))
        if not self.nhwc:  # a plane's tiles first, then the next planes
            most = min(most, ITEMS // min(ITEMS, math.prod(self.count)))
        slabs = -(-self.across // max(1, most))
        return -(-self.across // slabs)

    @property
    def slabs(self) -> int:
        """Groups of lanes that all channels are."""
        return -(-self.across // self.lanes)

    @property
    def deep(self) -> int:
        """Items of a group that share a lane's channels."""
        return max(1, min(ITEMS // self.lanes, self.tiles if self.nhwc else math.prod(self.count)))

    def size(self, tiles: int, channels: int) -> tuple[int, int]:
        """Work items along the launch's two axes: neighbours along the first are neighbours in memory."""
        return (channels, tiles) if self.nhwc else (tiles, channels)

    @functools.cached_property
    def count(self) -> tuple[int, int, int]:
        """Tiles along d, h and w."""
        most = [max(phase.count[axis] for phase in self.geometry.phases) for axis in range(3)]
        return most[0], -(-most[1] // self.rows), -(-most[2] // self.columns)

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.geometry.images * math.prod(self.count)

    @property
    def blocks(self) -> int:
        """Work groups of a slab."""
        return -(-self.tiles // (self.deep * self.turns))

    # --- what a tile reads -------------------------------------------------------------------------------------------

    @functools.cached_property
    def places(self) -> list[tuple[int, int, int]]:
        """(phase, row, column) of each place of a tile."""
        phases = range(len(self.geometry.phases))
        return list(itertools.product(phases, range(self.rows), range(self.columns)))

    @property
    def reads(self) -> dict[tuple[int, int], dict[int, list[tuple[int, int]]]]:
        """{(depth, row) of the source: {tap: [(place, column)]}}, positions relative to the tile's first place."""
        return _reads(self.geometry, self.rows, self.columns)

    @staticmethod
    def columns_of(row: dict[int, list[tuple[int, int]]]) -> list[int]:
        """Columns that a row's taps read."""
        return sorted({column for uses in row.values() for _, column in uses})

    @property
    def all_columns(self) -> list[int]:
        """Columns that any row reads."""
        return sorted({column for row in self.reads.values() for column in self.columns_of(row)})

    @property
    def loads(self) -> int:
        """Vectors of the source that a tile reads."""
        return _counts(self.geometry, self.rows, self.columns)[0]

    @property
    def steps(self) -> int:
        """Multiply-adds of vectors of a tile."""
        return sum(phase.volume for phase in self.geometry.phases) * self.rows * self.columns

    @property
    def weight_reads(self) -> int:
        """Vectors of weights that a tile reads from local memory."""
        return _counts(self.geometry, self.rows, self.columns)[1]

    @property
    def registers(self) -> int:
        """What an item's values take, about."""
        width = _counts(self.geometry, self.rows, self.columns)[2]
        values = self.geometry.volume + len(self.places) if self.gradient else len(self.places) + 2
        return ((values + width) * self.vector + 6 * self.vector // 2) * self.accsize // 4 + 24

    @property
    def index(self) -> str:
        """Type of element offsets in x and y."""
        return element_index(self.geometry.images * max(self.geometry.source.image, self.geometry.target.image))


@functools.lru_cache(maxsize=256)
def _reads(geo: Geometry, rows: int, columns: int) -> dict[tuple[int, int], dict[int, list[tuple[int, int]]]]:
    """See ``DepthwiseTile.reads``; places are numbered phase by phase, row by row."""
    found: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}
    for f, phase in enumerate(geo.phases):
        for taps in itertools.product(*map(range, phase.taps)):
            z, y, x = (o + t * d for o, t, d in zip(phase.origin, taps, geo.spread, strict=True))
            kernel = [first + t * s for first, t, s in zip(phase.tap0, taps, geo.tap_step, strict=True)]
            flat = (kernel[0] * geo.kernel[1] + kernel[1]) * geo.kernel[2] + kernel[2]
            for j, i in itertools.product(range(rows), range(columns)):
                row = found.setdefault((z, y + j * geo.step[1]), {})
                row.setdefault(flat, []).append(((f * rows + j) * columns + i, x + i * geo.step[2]))
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=256)
def _counts(geo: Geometry, rows: int, columns: int) -> tuple[int, int, int]:
    """Vectors of the source and of weights that a tile reads, and most columns of a row."""
    reads = _reads(geo, rows, columns)
    widths = [len(DepthwiseTile.columns_of(row)) for row in reads.values()]
    return sum(widths), sum(map(len, reads.values())), max(widths)


def busy(tile: DepthwiseTile, items: int, device: DeviceInfo, enough: int) -> float:
    """The share of a device's speed that ``items`` work items reach, where ``enough`` a compute unit reach all."""
    resident = max(1, min(16, _REGISTERS // (tile.registers * ITEMS))) * ITEMS
    return min(1.0, items / (device.compute_units * enough)) * min(1.0, resident / enough)


def limits(problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why tiles of depthwise layers do not suit the problem, whatever its direction."""
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
        return f"kernels of up to {_MOST_STEPS} multiply-adds an item, got {problem.kd}x{problem.kh}x{problem.kw}"
    return device.supports(problem.dtype)


def vectors(problem: ConvProblem) -> list[int]:
    """Channels of an item that divide the problem's, most first."""
    most = {"float16": 8, "bfloat16": 8, "float32": 4, "float64": 2}[problem.dtype] if problem.layout == "nhwc" else 1
    return [vector for vector in (8, 4, 2, 1) if vector <= most and problem.g % vector == 0]


def fits(tile: DepthwiseTile) -> bool:
    """Whether the tile's text and registers stay small."""
    weights = tile.geometry.volume * tile.vector * tile.accsize
    if tile.steps * len(tile.parts) > _MOST_STEPS or weights > _LOCAL:
        return False
    return tile.registers <= _MOST_REGISTERS


def shapes(problem: ConvProblem) -> Iterator[DepthwiseTile]:
    """Tiles that fit, without those that waste half."""
    count = [max(phase.count[axis] for phase in geometry_of(problem).phases) for axis in range(3)]
    lengths = (1, 2, 4, 7, 8)
    # Planes: a second column reads beside gaps, which small kernels over short rows took 1.5 times as long for.
    across = lengths if problem.layout == "nhwc" else (1,) if count[2] < 28 and problem.kw <= 3 else (1, 2)
    for vector, rows, columns in itertools.product(vectors(problem), lengths, across):
        tile = DepthwiseTile(problem, vector, rows, columns)
        if rows < 2 * count[1] and columns < 2 * count[2] and fits(tile):
            yield tile
