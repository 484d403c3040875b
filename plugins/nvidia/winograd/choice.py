"""Which tiles ``nvidia.winograd`` tries, and their predicted time: the product's model, and the transforms' traffic.

The constants were fitted to 162 timings on an H200 (rms error of the logarithm 0.06).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

from convdispatch.api import ConvProblem

from ..pace import CLOCK, COPY
from ..packed.choice import product_cycles
from .tiling import Points, PointsTile

LAUNCH_SECONDS = 2.9e-6  # seconds of a launch, with the pause before it
SCALE_MEMORY_SHARE = 0.941  # memory bandwidth of searching operands for scales, relative to a copy's
SPLIT_MEMORY_SHARE = 1.18  # memory bandwidth of writing transformed tiles as planes, relative to a copy's
INVERSE_MEMORY_SHARE = 0.612  # memory bandwidth of the inverse transform, relative to a copy's
PRODUCT_FACTOR = 0.97  # measured over modelled time of the matrix products
MEMORY_SHARE = 0.847  # memory bandwidth of the matrix products, relative to a copy's
FORMAT = "half2"
MAX_CHOICES = 16  # most tiles that are offered to a search
SHAPES = (
    (128, 128, 2), (64, 128, 1), (192, 128, 3), (128, 64, 2), (64, 64, 1), (192, 64, 3), (128, 96, 2), (128, 192, 2),
    (64, 192, 1),
)  # fmt: skip
"""(bm, bn, wm) of the product's tiles that are tried."""
DEPTHS = ((64, 4), (64, 3), (32, 6), (32, 5), (32, 4), (32, 3))


def seconds(points: Points, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    tiling, problem, tile = points.tiling, points.problem, points.tile
    read_bytes = math.prod(problem.y_shape if problem.direction == "bwd_data" else problem.x_shape) * 4
    written_bytes = math.prod(problem.out_shape) * 4
    planes, weights = tiling.source.image * 2, 0 if points.layout.constant else tiling.weights_bytes
    if not tiling.data:
        planes += tiling.places.image * 2
        read_bytes += math.prod(problem.y_shape) * 4
    product_bytes = planes + tiling.weights_bytes + tiling.partial_bytes
    product = math.hypot(PRODUCT_FACTOR * product_cycles(tiling, units) / CLOCK, product_bytes / (MEMORY_SHARE * copy))
    passes = planes / (SPLIT_MEMORY_SHARE * copy) + tiling.partial_bytes * (1 if tile.split == 1 else 1.5) / (
        INVERSE_MEMORY_SHARE * copy
    )
    total = (
        tile.pieces * (product + passes + 3 * LAUNCH_SECONDS)
        + (4 + (not tiling.data) + (tile.split > 1)) * LAUNCH_SECONDS
    )
    return (
        total
        + read_bytes * (1 / (SCALE_MEMORY_SHARE * copy) + 1 / (SPLIT_MEMORY_SHARE * copy))
        + weights * 2.5 / (SCALE_MEMORY_SHARE * copy)
        + written_bytes / (INVERSE_MEMORY_SHARE * copy)
    )


def _tiles(problem: ConvProblem) -> Iterator[PointsTile]:
    for (bm, bn, wm), (bk, stages) in itertools.product(SHAPES, DEPTHS):
        tile = PointsTile(bm, bn, wm, 1, FORMAT, bk=bk, stages=stages, flush_every=64 // bk)
        points = Points(problem, tile)
        rows = points.work.rows if points.tiling.data else points.work.m
        if points.tiling.misfit is None and bn < 2 * max(64, points.tiling.n) and bm < 2 * max(64, rows):
            yield tile


def _parts(points: Points, units: int) -> list[int]:
    """Numbers of parts of the weight gradient's sums that are worth trying: they fill the device one to four times."""
    tiling = points.tiling
    if tiling.data:
        return [1]
    counts = {max(1, times * units // tiling.work_groups) for times in (1, 2, 3, 4)}
    return sorted(parts for parts in counts | {1} if parts <= max(1, tiling.slices[0] // 4))


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int, limit: int) -> tuple[PointsTile, ...]:
    """Tiles, the fastest by prediction first, then ever smaller pieces; ``limit``: most bytes of an allocation."""
    rated = []
    for tile in _tiles(problem):
        for parts in _parts(Points(problem, tile), units):
            points = Points(problem, dataclasses.replace(tile, split=parts))
            if points.tiling.misfit is None:
                rated.append((seconds(points, units), len(rated), points))
    best = [points for _, _, points in sorted(rated, key=lambda row: row[:2])]
    tiles = [points.tile for points in best if points.layout.size <= limit][:MAX_CHOICES]
    if best and problem.direction != "bwd_weights":
        smaller = [Points(problem, dataclasses.replace(best[0].tile, pieces=pieces)) for pieces in (2, 4, 8, 16, 32)]
        tiles += [points.tile for points in smaller if points.layout.size <= limit]
    return tuple(tiles)
