"""A problem in transformed tiles: its products, one per point of a tile, are a 1x1 convolution with a group per
point."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

from convdispatch_winograd.geometry import TileGeometry
from convdispatch_winograd.gpu.work import Inverse, Work

from convdispatch.api import Areas, ConvProblem
from convdispatch.api.matrix import Scales, Source

from ..packed.tiling import Tile, Tiling


@dataclass(frozen=True)
class PointsTile(Tile):
    """A Tile of the product, and the size of the Winograd tiles."""

    engine: str = "wgmma"
    stages: int = 3
    points: int = 4
    """Output pixels of a Winograd tile along an axis: the m of F(m, 3)."""
    pieces: int = 1
    """Number of parts of the Winograd tiles that use the same workspace one after another."""


@dataclass(unsafe_hash=True)
class PointsTiling(Tiling):
    """The numbers of the product; ``problem`` is the 1x1 convolution."""

    margins: int = 0
    """Bits by which the transforms of both operands together may increase numbers."""

    always_partial = True  # the inverse transform reads the product's float32 sums from the workspace

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unshift = Tiling.unshift - self.margins

    def _source(self, name: str, c: int, size: tuple[int, int, int], fold: bool) -> Source:
        return Source(name, 1, self.problem.g, c, size, self.format.planes, direct=True, points=True)

    @property
    def row_mark(self) -> str:
        """Each row, a tile, has its exponent; the exponents of dy's channels apply to all points."""
        return "{m}"

    @property
    def column_mark(self) -> str:
        return "n" if self.data else "c"

    @property
    def misfit(self) -> str | None:
        return super().misfit if self.format.planes == 2 else "formats of two planes"


@functools.lru_cache(maxsize=1024)
def _product(geometry: TileGeometry, pieces: int, split: int) -> tuple[ConvProblem, int]:
    """(the 1x1 convolution, the sum of its operands' margins in bits)."""
    work = Work(geometry, pieces, split)
    direction = "bwd_weights" if geometry.weights else "fwd"
    points = geometry.points
    problem = ConvProblem(direction=direction, mb=1, ic=points * work.k, oc=points * work.m, ih=1, iw=work.rows,
                          kh=1, kw=1, g=points, layout=geometry.problem.layout, math=geometry.problem.math)  # fmt: skip
    return problem, sum(margin(geometry.matrices(name)) for name in ("bt", "g"))


def margin(matrices: tuple[Any, Any]) -> int:
    """Bits by which transformed values may be larger than the tensor's values."""
    growth = math.prod(max(float(sum(map(abs, row))) for row in matrix) for matrix in matrices)
    return max(0, math.ceil(math.log2(growth)))


class PointsLayout:
    """Byte offsets of planes, weights, products and scales in the workspace, or in the packed weights' buffer."""

    def __init__(self, geometry: TileGeometry, tiling: PointsTiling) -> None:
        areas = Areas()
        self.constant = not geometry.weights and geometry.problem.constant_weights
        sources = (tiling.source,) if tiling.data else (tiling.source, tiling.places)
        self.at: dict[str, int] = {source.name: areas.add(source.image * 2) for source in sources}
        weights = Areas() if self.constant else areas
        if tiling.data:
            self.at["w"] = weights.add(tiling.weights_bytes)
        self.scales = Scales(geometry.problem, areas, weights)
        self.tile_marks = areas.add(tiling.source.pixels * 4) // 4 if tiling.data else 0
        """Offset, in ints, of the exponents of tiles; each tile has its image's exponent."""
        self.packed_size = weights.size if self.constant else 0
        self.partial = areas.add(tiling.partial_bytes)
        self.size = areas.size

    def marks_at(self, letter: str) -> int:
        """Offset, in ints, of the exponents of the product's A or B in their buffer."""
        scales = self.scales
        return self.tile_marks if letter == "A" and self.tile_marks else scales.marks_at(scales.named(letter))


@dataclass(unsafe_hash=True)
class PointsWork(Work):
    """The numbers of the winograd plugin's inverse transform, which reads the products at ``layout.partial``."""

    layout: Any = None

    @functools.cached_property
    def areas(self) -> tuple[int, int, int, int]:
        """(offsets of the source, the second operand and the products in elements, bytes of the workspace)."""
        return 0, 0, self.layout.partial // 4, self.layout.size

    @property
    def inverse(self) -> Inverse:
        """The inverse transform; in NHWC the products are [tile][point][channel]."""
        base = super().inverse
        if self.geometry.weights or not self.geometry.nhwc:
            return base
        return dataclasses.replace(base, mp=self.geometry.points * self.m, plane=self.m)


@dataclass(frozen=True)
class Points:
    """A problem under a tile, with the numbers that plan, costs and workspace need."""

    problem: ConvProblem
    tile: PointsTile

    @functools.cached_property
    def geometry(self) -> TileGeometry:
        """The problem in tiles."""
        return TileGeometry(self.problem, self.tile.points)

    @functools.cached_property
    def tiling(self) -> PointsTiling:
        """The numbers of the product."""
        problem, margins = _product(self.geometry, self.tile.pieces, self.tile.split)
        return PointsTiling(problem, self.tile, margins)

    @functools.cached_property
    def layout(self) -> PointsLayout:
        """Offsets of planes, weights, products and scales in the workspace."""
        return PointsLayout(self.geometry, self.tiling)

    @functools.cached_property
    def work(self) -> PointsWork:
        """The numbers that the input and inverse transforms need."""
        return PointsWork(self.geometry, self.tile.pieces, self.tile.split, self.layout)
