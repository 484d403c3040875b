"""Which tiles ``nvidia.tma`` tries, and in which order: tensor cores, waves, memory.

Fitted to 132 timings of 18 problems on an H200 (0.10 root mean square of the logarithm; on these same timings the tile
chosen among those timed of a problem loses 0.9 %). Products and memory add up: neither hides the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from convdispatch.api import ConvProblem

from ..hopper import LOCAL_LIMIT
from ..pace import COPY
from .job import TmaJob, TmaTile

__all__ = ["choices", "seconds"]

_CLOCK = 1.7e9
_MACS = 1960.0  # multiply-adds a cycle of a multiprocessor
_COPIED = 130.0  # bytes a cycle from the L2 cache into local memory: no timing shows more
_SHARED = 0.36  # of a product's time, on top for each further work group beside it: fewer slices are in flight
_TILE = 160.0  # cycles of a tile beside its products
_MEMORY = 1.36  # of a copy's bandwidth: the tensors count once each, and the cache serves the rest
_START = 5.1e-6  # seconds
_SUM, _SUMMED = 8.3e-6, 0.362  # seconds of the parts' sum; of a copy's bandwidth, at which their bytes move
_MOST = 24
_STAGES = (7, 6, 5, 4, 3)


def seconds(job: TmaJob, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t, problem = job.tile, job.problem
    slice_of = max(t.bm * t.bn * 64 / _MACS, (job.a_bytes + job.b_bytes) / _COPIED)
    product = job.slices[0] / t.split * slice_of * (1 + _SHARED * (t.resident - 1))
    tiles = -(-job.tiles // units)  # of the busiest multiprocessor
    moved = 2 * sum(math.prod(shape) for shape in (problem.x_shape, problem.w_shape, problem.y_shape))
    total = tiles * (product + _TILE / t.resident) / _CLOCK + moved / (_MEMORY * copy) + _START
    return total + (_SUM + job.partial_bytes / (_SUMMED * copy) if job.partial else 0)


def _parts(job: TmaJob, units: int) -> list[int]:
    """Parts of the sum that fill the device's work groups once, twice, three times; 1 first."""
    room, slices = units * job.tile.resident, job.slices[0]
    filling = {max(1, times * room // job.tiles) for times in (1, 2, 3)} | {2, 4, 8}
    return [1, *sorted(parts for parts in filling if 1 < parts <= slices // 4 and parts * job.tiles <= 4 * room)]


def _shapes() -> Iterator[tuple[int, int, int, int]]:
    """(bm, bn, work groups of a multiprocessor, stages): as many stages as local memory holds."""
    for bm in (64, 128, 192, 256):
        for bn in (32, 64, 96, 128, 160, 192, 224, 256):
            for resident in (1, 2, 3, 4):
                stages = (LOCAL_LIMIT + 1024) // resident // ((bm + bn) * 128 + 16) - (resident > 1)
                if stages >= 3:
                    yield bm, bn, resident, min(stages, 7)


def _tiles(problem: ConvProblem, units: int) -> Iterator[TmaTile]:
    for bm, bn, resident, stages in _shapes():
        for most in (stages, stages - 1):
            tile = TmaTile(bm, bn, bm // 64, 1, problem.dtype, "wgmma", stages=most, resident=resident)
            job = TmaJob(problem, tile)
            if job.misfit is not None:
                continue
            for split in _parts(job, units):
                cut = TmaTile(bm, bn, bm // 64, 1, problem.dtype, "wgmma", stages=most, resident=resident, split=split)
                if TmaJob(problem, cut).misfit is None:
                    yield cut
            break


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[TmaTile, ...]:
    """Tiles, the fastest by prediction first."""
    rated = sorted(
        ((seconds(TmaJob(problem, tile), units), number, tile) for number, tile in enumerate(_tiles(problem, units))),
        key=lambda row: row[:2],
    )
    return tuple(tile for _, _, tile in rated[:_MOST])
