"""GroupedSums: the weights' gradient of small groups as products of slabs of 32 channels, in parts of the places."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem, Geometry

from ..configured import Configured
from ..hopper import LOCAL_LIMIT
from ..pace import COPY
from .tiling import SLAB, GroupedTile, GroupedTiling, Region

_CLOCK = 1.7e9
# Fitted to 268 timings on an H200, 0.18 root mean square of the logarithm.
_ISSUED = 2.6  # instructions a cycle that four schedulers reach together
_COPIED, _LEFT = 34, 36  # instructions of a copy, and of a sum that leaves
_READ, _PRODUCT = 0.34, 2.9  # cycles of ldmatrix and of tensor cores
_ARRIVAL = 2900  # cycles from a region's first copy to its first product
_MEMORY = 0.53  # of a copy's bandwidth
_LAUNCHES, _FILL = 2.2e-6, 1.5e-6  # seconds: of both launches, and from a part's first read to its last write
_MOST_COLUMNS = 7  # taps of a row, and rows: 32 sums each, and a warp
_PITCH = SLAB * 2 + 16  # bytes from pixel to pixel in local memory
_LOCAL = 98304  # bytes of a work group


@dataclass(frozen=True)
class SumsTile(Configured):
    """How many parts the regions are cut into, and how many warps share a row of taps and a region."""

    parts: int = 1
    split: int = 1
    places: int = 128
    """Of a region, at most."""


@dataclass(frozen=True)
class GroupedSums:
    """One weights' gradient under one tile."""

    problem: ConvProblem
    tile: SumsTile

    @functools.cached_property
    def slabs(self) -> GroupedTiling:
        """Which slabs meet."""
        return GroupedTiling(self.problem, GroupedTile())

    @property
    def geometry(self) -> Geometry:
        """The geometry."""
        return self.slabs.geometry

    @property
    def bfloat(self) -> bool:
        """Whether values are bfloat16."""
        return self.slabs.bfloat

    @property
    def sources(self) -> int:
        """Slabs of x that a slab of dy meets."""
        return self.slabs.sources

    @property
    def slab_pairs(self) -> int:
        """Pairs of slabs."""
        return self.slabs.targets * self.sources

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(half of x's channels, fragment of eight channels of dy) that have groups in common."""
        return self.slabs.pairs

    @property
    def items(self) -> int:
        """Work items of a group."""
        return 32 * self.geometry.kernel[1] * self.tile.split

    @functools.cached_property
    def region(self) -> Region:
        """The region of a work group."""
        return Region.of(self.geometry, self.tile.places)

    @functools.cached_property
    def count(self) -> tuple[int, int, int]:
        """Regions along images, h and w."""
        region, (_, rows, columns) = self.region, self.geometry.phases[0].count
        return -(-self.geometry.images // region.images), -(-rows // region.rows), -(-columns // region.columns)

    @property
    def regions(self) -> int:
        """Regions of all images."""
        return self.count[0] * self.count[1] * self.count[2]

    @property
    def per(self) -> int:
        """Regions of a part."""
        return -(-self.regions // self.tile.parts)

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory: pixels of x and dy and where each place reads; then four sums of all items."""
        runs = -(-self.region.places // 16)
        return max((self.region.pixels + runs * 16) * _PITCH + runs * 64, self.items * 16)

    @property
    def size(self) -> int:
        """Elements of a part, which lies as the weights do."""
        return math.prod(self.problem.w_shape)

    @property
    def workspace_size(self) -> int:
        """Bytes of all parts."""
        return 4 * self.size * self.tile.parts

    @property
    def work_groups(self) -> int:
        """Work groups of the sums."""
        return self.tile.parts * self.slab_pairs

    @property
    def index(self) -> str:
        """OpenCL type of offsets in x and dy."""
        geometry = self.geometry
        return "int" if geometry.images * max(geometry.source.image, geometry.target.image) < 2**31 else "long"

    @property
    def misfit(self) -> str | None:
        """Why this cannot run; None when it can."""
        if max(self.geometry.kernel) > _MOST_COLUMNS:
            most = f"{_MOST_COLUMNS}x{_MOST_COLUMNS}"
            return f"kernels of up to {most} for the weights' gradient, got {max(self.geometry.kernel)}"
        if self.local_bytes > _LOCAL:
            return f"{_LOCAL} bytes of pixels a work group, got {self.local_bytes}"
        if self.items > 1024 or self.geometry.kernel[2] * len(self.pairs) * 4 > 160:
            return "the tile has more work items or sums than fit"
        return None


def seconds(tiling: GroupedSums, units: int, copy: float = COPY) -> float:
    """Predicted seconds on a device of ``units`` multiprocessors."""
    region, columns, pairs = tiling.region, tiling.geometry.kernel[2], len(tiling.pairs)
    warps, runs = tiling.items // 32, -(-region.places // 16)
    sums = columns * pairs * 4
    resident = max(
        1, min(65536 // ((48 + sums) * tiling.items), LOCAL_LIMIT // (tiling.local_bytes + 1024), 2048 // tiling.items)
    )
    copies = -(-(region.pixels + runs * 16) * 4 // tiling.items)
    turns = -(-runs // tiling.tile.split)
    issued = warps * (copies * _COPIED + turns * (12 + columns * (2 + pairs))) / _ISSUED
    read = warps * (copies * 8 + turns * _READ * (2 + 2 * columns))
    work = math.hypot(issued, read, warps * turns * columns * pairs * _PRODUCT)
    waves, rest = divmod(-(-tiling.work_groups // units), resident)
    cycles = sum(tiling.per * max(count * work, work + _ARRIVAL) + count * warps * sums * _LEFT / _ISSUED
                 for count in [resident] * waves + [rest] * (rest > 0))  # fmt: skip
    moved = math.hypot(cycles / _CLOCK, tiling.problem.bytes / (_MEMORY * copy))
    return moved + _LAUNCHES + _FILL + 2 * tiling.workspace_size / copy


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[SumsTile, ...]:
    """Parts, warps and regions, the fastest by prediction first."""
    tilings = []
    for split, places in itertools.product((1, 2, 3), (64, 128, 256)):
        one = GroupedSums(problem, SumsTile(1, split, places))
        if one.misfit is None:
            wanted = {max(1, min(one.regions, units * groups // one.slab_pairs)) for groups in (1, 2, 3, 4, 6, 8)}
            tilings += [GroupedSums(problem, SumsTile(parts, split, places)) for parts in sorted(wanted)]
    return tuple(tiling.tile for tiling in sorted(tilings, key=lambda tiling: seconds(tiling, units)))
