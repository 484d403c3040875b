"""A convolution over slabs of 32 channels and regions of output pixels, whose source pixels are copied unchanged.

    y[pixel, n] = sum over (tap, k) of source[pixel * step + origin + tap * spread, k] w[n, tap, k]

A slab of 32 target channels reads the slabs of the source with the same groups: one or two if groups are small, all
slabs if there is one group. Weights between channels of different groups are zeros. A region is a rectangle of output
pixels of an image, or whole small images; all phases of a strided data gradient read the same pixels of dy. The
weights' gradient sums products of slabs of dy and of x, in parts of the regions.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from convdispatch.api import ConvProblem, Geometry, geometry_of
from convdispatch.api.matrix import Configured

SLAB = 32
"""Channels that are copied together: 64 bytes per pixel."""
MAX_LOCAL_BYTES = 98304
"""Most bytes of local memory of a work group: two work groups fit on a multiprocessor."""
MAX_COLUMNS = 32
"""Most output pixels in a row of a region."""
MAX_KERNEL = 7
"""Largest kernel size of the weight gradient: a warp computes a row of taps and holds 32 sums per tap."""
SUMS_PITCH = SLAB * 2 + 16
"""Bytes from pixel to pixel in local memory, in the kernel of the weight gradient."""


@dataclass(frozen=True)
class GroupedTile(Configured):
    """How many output pixels a warp computes, and how many warps share pixels and weights."""

    frag_m: int = 2
    """Fragments of 16 output pixels of a warp."""
    warps: int = 4
    turns: int = 1
    """Regions that a work group computes one after another."""

    @property
    def items(self) -> int:
        """Work items of a work group."""
        return self.warps * 32


@dataclass(frozen=True)
class SumsTile(Configured):
    """How many parts the regions are divided into, and how many warps share a row of taps and a region."""

    parts: int = 1
    split: int = 1
    places: int = 128
    """Most output pixels of a region."""


@dataclass(frozen=True)
class Region:
    """A rectangle of output pixels, or whole small images, and the source pixels that they read."""

    images: int
    rows: int
    columns: int
    low: tuple[int, int]
    """Row and column of the first source pixel, relative to the first output pixel's position."""
    height: int
    """Rows of an image's source pixels."""
    width: int

    @property
    def places(self) -> int:
        """Output pixels."""
        return self.images * self.rows * self.columns

    @property
    def pixels(self) -> int:
        """Source pixels."""
        return self.images * self.height * self.width

    def at(self, step: tuple[int, int, int]) -> str:
        """OpenCL expression of the index of the source pixel at output pixel ``place``, to which taps are added."""
        row, column = f"place / {self.columns} % {self.rows}", f"place % {self.columns}"
        image = f"place / {self.rows * self.columns} * {self.height}"
        return f"(({image} + {row} * {step[1]}) * {self.width} + {column} * {step[2]})"

    @classmethod
    def of(cls, geometry: Geometry, capacity: int) -> Region:
        """A region of at most ``capacity`` output pixels whose copies cover the output with little waste."""
        _, height, width = _largest_phase(geometry)
        columns = -(-width // -(-width // min(MAX_COLUMNS, capacity)))
        max_rows = max(1, min(height, capacity // columns))
        rows = -(-height // -(-height // max_rows))
        whole_image = rows == height and columns == width
        images = max(1, min(geometry.images, capacity // (rows * columns))) if whole_image else 1
        reads = [[tap[axis] for phase in geometry.phases for tap in geometry.reads(phase)] or [0] for axis in (2, 3)]
        lowest = (min(reads[0]), min(reads[1]))
        highest = ((rows - 1) * geometry.step[1] + max(reads[0]), (columns - 1) * geometry.step[2] + max(reads[1]))
        return cls(images, rows, columns, lowest, highest[0] - lowest[0] + 1, highest[1] - lowest[1] + 1)


def _largest_phase(geometry: Geometry) -> list[int]:
    """The most output pixels that any phase has along each of d, h and w."""
    return [max(phase.count[axis] for phase in geometry.phases) for axis in range(3)]


@functools.lru_cache(maxsize=256)
def _sources_of(geometry: Geometry) -> int:
    """The most slabs of the source that a slab of the target reads."""
    sources = 0
    for first_channel in range(0, geometry.target.channels, SLAB):
        last_channel = min(geometry.target.channels, first_channel + SLAB) - 1
        end = (last_channel // geometry.m + 1) * geometry.c
        sources = max(sources, -(-end // SLAB) - first_channel // geometry.m * geometry.c // SLAB)
    return sources


@dataclass(unsafe_hash=True)
class Slabs:
    """Base of both tilings: which slabs of source and target are multiplied, and the regions of output pixels."""

    problem: ConvProblem
    tile: Any

    def __post_init__(self) -> None:
        self.geometry = geometry = geometry_of(self.problem)
        self.bfloat = self.problem.dtype == "bfloat16"
        self.targets, self.sources = -(-geometry.target.channels // SLAB), _sources_of(geometry)
        # pairs: (half of a source slab, fragment of eight columns) whose weights are not all zeros.
        disjoint_halves = geometry.c == geometry.m and 16 % geometry.c == 0
        self.pairs = [(k, n) for k in range(2) for n in range(4) if not disjoint_halves or n // 2 == k]
        self.region = region = Region.of(geometry, self._capacity())
        _, height, width = _largest_phase(geometry)
        # count: the number of regions along images, h and w.
        self.count = -(-geometry.images // region.images), -(-height // region.rows), -(-width // region.columns)
        self.regions = math.prod(self.count)
        self._arrange()

    def _capacity(self) -> int:
        """Output pixels of a region, at most."""
        raise NotImplementedError

    def _arrange(self) -> None:
        raise NotImplementedError


@dataclass(unsafe_hash=True)
class GroupedTiling(Slabs):
    """The numbers of a forward or data gradient problem with a GroupedTile."""

    def _capacity(self) -> int:
        return self.tile.frag_m * self.tile.warps * 16

    def _arrange(self) -> None:
        geometry = self.geometry
        self.blocks = -(-self.regions // self.tile.turns)  # work groups per target slab
        self.work_groups = self.blocks * self.targets
        self.taps = sum(phase.volume for phase in geometry.phases)
        # pitch: bytes from pixel to pixel in local memory; eight neighbouring pixels begin in different banks.
        self.pitch = self.sources * SLAB * 2 + 16
        # Local memory holds the source pixels of a region, then the weights.
        self.local_bytes = self.region.pixels * self.pitch + self.taps * self.sources * len(self.pairs) * 256
        # OpenCL types of element offsets in the source tensor and in the output tensor.
        self.index, self.out_index = (
            "int" if geometry.images * tensor.image < 2**31 else "long" for tensor in (geometry.source, geometry.target)
        )

    @property
    def misfit(self) -> str | None:
        """The reason why the tile cannot run this problem; None when it can."""
        if self.local_bytes > MAX_LOCAL_BYTES:
            return f"{MAX_LOCAL_BYTES} bytes of pixels and weights a work group, got {self.local_bytes}"
        return None


@dataclass(unsafe_hash=True)
class GroupedSums(Slabs):
    """The numbers of a weight gradient with a SumsTile."""

    def _capacity(self) -> int:
        return self.tile.places

    def _arrange(self) -> None:
        geometry, tile = self.geometry, self.tile
        self.slab_pairs = self.targets * self.sources
        self.items = 32 * geometry.kernel[1] * tile.split  # work items of a work group
        self.work_groups = tile.parts * self.slab_pairs
        self.per = -(-self.regions // tile.parts)  # regions that are summed into one part
        self.runs = -(-self.region.places // 16)
        # Local memory holds pixels of x and dy and each output pixel's read position; later four sums per work item.
        pixel_bytes = (self.region.pixels + self.runs * 16) * SUMS_PITCH + self.runs * 64
        self.local_bytes = max(pixel_bytes, self.items * 16)
        self.size = math.prod(self.problem.w_shape)  # elements of one part of dw, in the layout of the weights
        self.workspace_size = 4 * self.size * tile.parts
        max_offset = geometry.images * max(geometry.source.image, geometry.target.image)
        self.index = "int" if max_offset < 2**31 else "long"  # OpenCL type of element offsets in x and dy

    @property
    def misfit(self) -> str | None:
        """The reason why the tile cannot run this problem; None when it can."""
        if max(self.geometry.kernel) > MAX_KERNEL:
            limit = f"{MAX_KERNEL}x{MAX_KERNEL}"
            return f"kernels of up to {limit} for the weights' gradient, got {max(self.geometry.kernel)}"
        if self.local_bytes > MAX_LOCAL_BYTES:
            return f"{MAX_LOCAL_BYTES} bytes of pixels a work group, got {self.local_bytes}"
        if self.items > 1024 or self.geometry.kernel[2] * len(self.pairs) * 4 > 160:
            return "the tile has more work items or sums than fit"
        return None
