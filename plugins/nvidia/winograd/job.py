"""One problem in transformed tiles: a product for each point of a tile, as a 1x1 convolution with a group a point."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch_winograd.gpu.walk import Walk
from convdispatch_winograd.gpu.work import Inverse, Work

from convdispatch.api import Areas, ConvProblem

from ..packed.job import SEARCHERS, Job
from ..packed.source import Source
from ..packed.tile import Tile

__all__ = ["Points", "PointsTile", "margin"]


@dataclass(frozen=True)
class PointsTile(Tile):
    """A Tile of the product, and how large the tiles of the problem are."""

    engine: str = "wgmma"
    stages: int = 3
    points: int = 4
    """Places of a tile along an axis: m of F(m, 3)."""
    pieces: int = 1
    """Shares of the tiles that use the same workspace, one after the other."""


@dataclass(frozen=True)
class PointSource(Source):
    """Transformed tiles: [point][tile][plane][channels], written so by ``tiles.cl.mako``."""

    @property
    def plane(self) -> int:
        """Elements from plane to plane."""
        return self.c8 * 8

    @property
    def group(self) -> int:
        """Elements from point to point."""
        return self.pixels * self.pixel

    @property
    def image(self) -> int:
        """Elements of all points."""
        return self.groups * self.group


@dataclass(frozen=True)
class PointsJob(Job):
    """The product: ``problem`` is the 1x1 convolution."""

    def _source(self, name: str, c: int, size: tuple[int, int, int], fold: bool) -> Source:
        return PointSource(name, 1, self.problem.g, c, size, self.format.planes, direct=True)

    @property
    def partial(self) -> bool:
        """Always: the inverse transform reads what the product leaves."""
        return True

    @property
    def misfit(self) -> str | None:
        """Why the tile cannot run this problem; None when it can."""
        return super().misfit if self.format.planes == 2 else "formats of two planes"


def points_job(walk: Walk, tile: PointsTile) -> PointsJob:
    """The product's numbers."""
    work = Work(walk, tile.pieces, tile.split)
    direction = "bwd_weights" if walk.weights else "fwd"
    points = walk.points
    problem = ConvProblem(direction=direction, mb=1, ic=points * work.k, oc=points * work.m, ih=1, iw=work.rows,
                          kh=1, kw=1, g=points, layout=walk.problem.layout, math=walk.problem.math)  # fmt: skip
    return PointsJob(problem, tile)


def margin(matrices: tuple[Any, Any]) -> int:
    """Bits by which a transform's values may be larger than the tensor's."""
    most = math.prod(max(float(sum(map(abs, row))) for row in matrix) for matrix in matrices)
    return max(0, math.ceil(math.log2(most)))


class PointsLayout:
    """Where planes, weights, products and scales lie: bytes into the workspace, or into the packed weights' buffer."""

    def __init__(self, walk: Walk, job: PointsJob) -> None:
        areas, scales = Areas(), (1 + SEARCHERS) * 4
        self.constant = not walk.weights and walk.problem.constant_weights
        sources = (job.source,) if job.data else (job.source, job.places)
        self.at: dict[str, int] = {}
        self.scale_at: dict[str, int] = {}
        for source in sources:
            self.at[source.name] = areas.add(source.image * 2)
            self.scale_at[source.name] = areas.add(scales)
        weights = Areas() if self.constant else areas
        if job.data:
            self.at["w"] = weights.add(job.weights_bytes)
            self.scale_at["w"] = weights.add(scales)
        self.packed_size = weights.size if self.constant else 0
        self.partial = areas.add(job.partial_bytes)
        self.size = areas.size


@dataclass(frozen=True)
class PointsWork(Work):
    """Winograd's own numbers, for the inverse transform, where the products lie as ``layout`` says."""

    layout: Any = None

    @functools.cached_property
    def areas(self) -> tuple[int, int, int, int]:
        """Elements before the source, the second operand and the products; bytes of all."""
        return 0, 0, self.layout.partial // 4, self.layout.size

    @property
    def inverse(self) -> Inverse:
        """The products: channels last they lie as [tile][point][channel], the points beside one another."""
        found = super().inverse
        if self.walk.weights or not self.walk.nhwc:
            return found
        return dataclasses.replace(found, mp=self.walk.points * self.m, plane=self.m)


@dataclass(frozen=True)
class Points:
    """A problem and a tile: everything that plan, costs and workspace ask."""

    problem: ConvProblem
    tile: PointsTile

    @classmethod
    def of(cls, problem: ConvProblem, config: Mapping[str, Any]) -> Points:
        """From a configuration's JSON values."""
        return cls(problem, PointsTile.of(config))

    @functools.cached_property
    def walk(self) -> Walk:
        """The problem in tiles."""
        return Walk(self.problem, self.tile.points)

    @functools.cached_property
    def job(self) -> PointsJob:
        """The product."""
        return points_job(self.walk, self.tile)

    @functools.cached_property
    def layout(self) -> PointsLayout:
        """Where everything lies."""
        return PointsLayout(self.walk, self.job)

    @functools.cached_property
    def work(self) -> PointsWork:
        """What the transforms ask."""
        return PointsWork(self.walk, self.tile.pieces, self.tile.split, self.layout)
