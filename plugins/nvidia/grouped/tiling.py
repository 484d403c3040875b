"""GroupedTiling: a convolution over slabs of 32 channels and regions of places, whose pixels are copied as they lie.

    y[place, n] = sum over (tap, k) of source[place * step + origin + tap * spread, k] w[n, tap, k]

A slab of 32 target channels reads those slabs of the source whose groups it has: one or two where groups are small,
all of them where there is one group. Weights between channels of different groups are zeros. A region is a rectangle of
places of an image, or small images whole; all phases of a stride's data gradient read the same pixels of dy.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from convdispatch.api import ConvProblem, Geometry, Phase, geometry_of

from ..configured import Configured

SLAB = 32
"""Channels that are copied together, 64 bytes a pixel."""
_INT = 2**31
_LOCAL = 98304  # bytes of a work group: two fit on a multiprocessor
_WIDE = 32  # places of a region's row, at most


@dataclass(frozen=True)
class GroupedTile(Configured):
    """How many places a warp has, how many warps share pixels and weights."""

    frag_m: int = 2
    """Fragments of 16 places of a warp."""
    warps: int = 4
    turns: int = 1
    """Regions of a work group, one after another."""

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.warps * 32


@dataclass(frozen=True)
class Region:
    """A rectangle of places, in whole images where these are small, and the pixels that they read."""

    images: int
    rows: int
    columns: int
    low: tuple[int, int]
    """Row and column of the first pixel, from the first place's own position on."""
    height: int
    width: int
    """Pixels of an image."""

    @property
    def places(self) -> int:
        """Places."""
        return self.images * self.rows * self.columns

    @property
    def pixels(self) -> int:
        """Pixels."""
        return self.images * self.height * self.width

    def at(self, step: tuple[int, int, int]) -> str:
        """OpenCL expression of the pixel at which ``place`` is, before its taps."""
        row, column = f"place / {self.columns} % {self.rows}", f"place % {self.columns}"
        image = f"place / {self.rows * self.columns} * {self.height}"
        return f"(({image} + {row} * {step[1]}) * {self.width} + {column} * {step[2]})"

    @classmethod
    def of(cls, geometry: Geometry, capacity: int) -> Region:
        """The region of at most ``capacity`` places that wastes little."""
        count = [max(phase.count[axis] for phase in geometry.phases) for axis in range(3)]
        columns = -(-count[2] // -(-count[2] // min(_WIDE, capacity)))
        most = max(1, min(count[1], capacity // columns))
        rows = -(-count[1] // -(-count[1] // most))
        whole = rows == count[1] and columns == count[2]
        images = max(1, min(geometry.images, capacity // (rows * columns))) if whole else 1
        reads = [
            [tap[axis] for phase in geometry.phases for tap in reads_of(geometry, phase)] or [0] for axis in (2, 3)
        ]
        low = (min(reads[0]), min(reads[1]))
        height = (rows - 1) * geometry.step[1] + max(reads[0]) - low[0] + 1
        width = (columns - 1) * geometry.step[2] + max(reads[1]) - low[1] + 1
        return cls(images, rows, columns, low, height, width)


def reads_of(geometry: Geometry, phase: Phase) -> list[tuple[int, int, int, int]]:
    """(tap of the kernel, z, y, x) of a phase's taps: where they read, from the place's own position on."""
    found = []
    for tap in itertools.product(*map(range, phase.taps)):
        at = [o + t * d for o, t, d in zip(phase.origin, tap, geometry.spread, strict=True)]
        kernel = [first + t * s for first, t, s in zip(phase.tap0, tap, geometry.tap_step, strict=True)]
        found.append(((kernel[0] * geometry.kernel[1] + kernel[1]) * geometry.kernel[2] + kernel[2], *at))
    return found


@dataclass(frozen=True)
class GroupedTiling:
    """One forward or data gradient problem under one tile."""

    problem: ConvProblem
    tile: GroupedTile

    @functools.cached_property
    def geometry(self) -> Geometry:
        """The geometry."""
        return geometry_of(self.problem)

    @functools.cached_property
    def region(self) -> Region:
        """The region of a work group."""
        return Region.of(self.geometry, self.tile.frag_m * self.tile.warps * 16)

    @functools.cached_property
    def count(self) -> tuple[int, int, int]:
        """Regions along images, h and w."""
        most = [max(phase.count[axis] for phase in self.geometry.phases) for axis in range(3)]
        region = self.region
        return -(-self.geometry.images // region.images), -(-most[1] // region.rows), -(-most[2] // region.columns)

    @property
    def regions(self) -> int:
        """Regions of all images."""
        return self.count[0] * self.count[1] * self.count[2]

    @property
    def blocks(self) -> int:
        """Work groups of a slab."""
        return -(-self.regions // self.tile.turns)

    @property
    def bfloat(self) -> bool:
        """Whether values are bfloat16."""
        return self.problem.dtype == "bfloat16"

    @property
    def targets(self) -> int:
        """Slabs of the target."""
        return -(-self.geometry.target.channels // SLAB)

    def first(self, target: int) -> int:
        """The first slab of the source that a slab of the target reads."""
        return target * SLAB // self.geometry.m * self.geometry.c // SLAB

    @functools.cached_property
    def sources(self) -> int:
        """Slabs of the source that a slab of the target reads, at most."""
        most = 0
        for target in range(self.targets):
            last = min(self.geometry.target.channels, (target + 1) * SLAB) - 1
            end = (last // self.geometry.m + 1) * self.geometry.c
            most = max(most, -(-end // SLAB) - self.first(target))
        return most

    @functools.cached_property
    def taps(self) -> int:
        """Taps of all phases."""
        return sum(phase.volume for phase in self.geometry.phases)

    @functools.cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """(half of a slab of the source, fragment of eight columns) whose weights are not all zeros."""
        apart = self.geometry.c == self.geometry.m and 16 % self.geometry.c == 0
        return [(k, n) for k in range(2) for n in range(4) if not apart or n // 2 == k]

    @property
    def pitch(self) -> int:
        """Bytes from pixel to pixel in local memory: eight pixels in a row begin in eight parts of the banks."""
        return self.sources * SLAB * 2 + 16

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in local memory."""
        return self.taps * self.sources * len(self.pairs) * 256

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory: pixels, then weights."""
        return self.region.pixels * self.pitch + self.weight_bytes

    @property
    def work_groups(self) -> int:
        """Work groups."""
        return self.blocks * self.targets

    @property
    def index(self) -> str:
        """OpenCL type of offsets in the source."""
        return "int" if self.geometry.images * self.geometry.source.image < _INT else "long"

    @property
    def out_index(self) -> str:
        """OpenCL type of offsets in the output."""
        return "int" if self.geometry.images * self.geometry.target.image < _INT else "long"

    @property
    def misfit(self) -> str | None:
        """Why this cannot run; None when it can."""
        if self.local_bytes > _LOCAL:
            return f"{_LOCAL} bytes of pixels and weights a work group, got {self.local_bytes}"
        return None
