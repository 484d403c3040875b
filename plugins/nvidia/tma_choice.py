"""Which tiles ``nvidia.tma`` tries, and in which order: tensor cores, copies from the L2 cache, waves, memory.

Times are cycles of one multiprocessor; the constants are fitted to timings on an H200.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from convdispatch.api import ConvProblem

from .job import LOCAL_LIMIT
from .tma_job import TmaJob, TmaTile

__all__ = ["choices", "seconds"]

_CLOCK = 1.7e9
_MACS = 3500  # multiply-adds a cycle of a multiprocessor whose slices are there
_COPIED = 88.0  # bytes a cycle from the L2 cache into local memory
_OUTPUT = 24.0  # bytes a cycle that leave a multiprocessor
_FILL = 1200  # cycles until a work group's first slice is there
_TURN = 500  # cycles between a tile's last product and the next one's first, beside its output
_MEMORY = 3.9e12
_START = 3.0e-6
_LAUNCH = 4.0e-6
_SUMMED = 1.5  # passes over the parts of a sum, of write and read
_MOST = 24
_STAGES = (7, 6, 5, 4, 3)


def seconds(job: TmaJob, units: int) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t = job.tile
    multiply = t.bm * t.bn * 64 / _MACS
    copied = (job.a_bytes + job.b_bytes) / _COPIED
    product = job.slices[0] / t.split * max(multiply, copied)
    output = t.bm * t.bn * (4 if job.partial else 2) / _OUTPUT + _TURN
    tiles = -(-job.tiles // units)  # of the busiest multiprocessor
    alone = tiles * (product + output)
    # Several work groups: one's output beside another's product, until the last tile.
    cycles = alone if t.resident == 1 or tiles == 1 else max(tiles * product + output, alone / t.resident)
    total = (_FILL + cycles) / _CLOCK
    problem = job.problem
    moved = (math.prod(problem.x_shape) + math.prod(problem.w_shape) + math.prod(problem.y_shape)) * 2
    total = max(total, moved / _MEMORY) + _START
    if job.partial:
        total += _LAUNCH + job.partial_bytes * _SUMMED / _MEMORY
    return total


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
