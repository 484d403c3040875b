"""Which tiles nvidia.direct tries for a problem, and in which order: what a tile waits for, and memory's traffic.

Times are cycles of one multiprocessor; the constants were fitted to 280 timings of first choices on an H200 (0.09 root
mean square of the logarithm), those of single products to 780 of 83 problems drawn at random (0.15). What bounds a tile
hides the rest only in part, so its times add as squares.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..hopper import LOCAL_LIMIT
from ..pace import COPY
from .job import DirectJob, DirectTile

__all__ = ["choices", "formats", "seconds"]

_CLOCK = 1.62e9
_MACS = {8: 500, 16: 1000}  # multiply-adds a cycle that a multiprocessor reaches through mma.sync, TF32 and bfloat16
_NARROW = {4: 1.0, 2: 2.2, 1: 2.5}  # copies by the numbers of one, in times of those of 16 bytes
_HALF_ROWS = 1.25  # copies of rows of 64 bytes, in times of those of 128
_WRITTEN = 30.0  # bytes a cycle that leave a multiprocessor
_SINGLE = 2.0  # times that results take which are written one by one with zeros between them
_MEMORY = 1.11  # of a copy's bandwidth: part of what is read lies in the cache
_SLICE, _FILL = 60, 2500  # cycles of a slice's barriers, and of a tile's beginning and end
_SUMMED = 1.35  # passes over the parts of a sum that it takes to write and to add them
_FIXED, _PARTS = 10900.0, 0.3  # cycles of a tile whose parts work groups add, and a byte of the tile
_FEW = 4  # parts that work groups add: more wait for each other's counting
_MOST, _FEWEST = 32, 4  # choices offered, and of each format
_SHAPES = (
    (128, 128, 2, 4), (128, 128, 4, 2), (64, 128, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 64, 2, 2),
    (64, 64, 2, 2), (64, 256, 2, 4), (48, 128, 1, 4), (32, 64, 1, 4), (32, 128, 1, 4), (32, 256, 1, 8), (16, 128, 1, 4),
    (16, 256, 1, 8), (64, 32, 4, 1), (128, 32, 4, 1), (256, 32, 8, 1), (128, 16, 4, 1), (256, 16, 8, 1), (32, 32, 2, 2),
    (256, 64, 4, 2), (96, 128, 2, 4), (96, 64, 2, 2), (192, 64, 4, 2), (112, 64, 1, 4), (112, 128, 1, 8),
    (144, 64, 1, 4), (160, 64, 2, 2), (80, 128, 1, 4), (160, 128, 2, 4),
)  # fmt: skip
_WIDE = ((128, 128, 2, 2), (256, 128, 4, 2), (128, 256, 2, 4), (64, 128, 1, 2))  # one product: warps of 64 x 64
_DEPTHS = ((32, 3), (32, 4), (16, 4))


@dataclass(frozen=True)
class _Pace:
    """What differs between three products, fitted with operands in the cache, and one, fitted with none there."""

    copied: float
    """Bytes a cycle from the L2 cache into local memory, 16 a copy."""
    read: float
    """Cycles of local memory for a warp's 32 numbers."""
    issued: float
    """Instructions a cycle that four schedulers reach together."""
    arrival: float
    """Cycles until the first bytes of a slice's copies arrive."""
    launch: float
    """Seconds, with the pause before it."""
    multiply: float = 1.0
    """Times of ``_MACS``."""


_PACES = {1: _Pace(31.6, 0.39, 4.2, 1560, 5.3e-6, 1.14), 3: _Pace(46.0, 1.2, 2.7, 900, 7.0e-6)}
_FORMATS = {
    "float32": ("tf32x3", "bf16x3"),
    "ieee": ("tf32x3",),
    "tf32": ("tf32", "tf32x3"),
    "fast": ("tf32", "tf32x3"),
}
_LONG = 512  # "ieee": longer sums are compensated
_SPLITS = (2, 3, 4, 6, 8, 12, 16)


def formats(problem: ConvProblem) -> tuple[str, ...]:
    """Formats that reach what the problem's ``math`` asks, the one to use first."""
    return _FORMATS[problem.math]


def _resident(job: DirectJob) -> int:
    """Work groups of a multiprocessor at a time, by what registers its compiler uses, about."""
    t = job.tile
    sums = t.frag_m * t.frag_n * 4
    fragments = (t.frag_n * 2 + 4) * (2 if t.products == 3 else 1)
    steps = 0 if t.products == 1 else sums if t.flush_every or t.compensated else t.frag_n * 4
    registers = min(255, -(-(sums + fragments + steps // 2 + 36) // 8) * 8)
    return max(1, min(65536 // (registers * t.items), (LOCAL_LIMIT + 1024) // (job.local_bytes + 1024),
                      2048 // t.items))  # fmt: skip


def _parallel(job: DirectJob) -> tuple[float, float, float]:
    """Cycles of a tile that tiles on one multiprocessor share, those that only this tile waits, and its output's."""
    t, pace = job.tile, _PACES[job.tile.products]
    slices = job.slices / t.split
    warps, steps = t.wm * t.wn, slices * (t.bk // t.depth)
    read = (t.frag_m * 4 + t.frag_n * 2) * t.depth // 8
    multiplied = t.frag_m * t.frag_n * t.products
    added = t.frag_m * t.frag_n * (16 if t.compensated else 4) if t.products == 3 and not t.flush_every else 0
    issued = read * (4 if t.depth == 16 else 3 if t.products == 3 else 2) + multiplied + added
    multiply = steps * t.bm * t.bn * t.depth * t.products / _MACS[t.depth] * pace.multiply
    copied = slices * sum(_copied(job, number) for number in (0, 1)) / pace.copied
    work = math.hypot(multiply, steps * warps * read * pace.read, steps * warps * issued / pace.issued, copied)
    problem = job.problem
    results = t.bm * t.bn * (problem.sd * problem.sh * problem.sw * _SINGLE if job.gaps else 1)
    arrival = slices * pace.arrival / (t.stages - 1)
    return work, max(arrival - work, 0) + slices * _SLICE + _FILL, results * 4 / _WRITTEN


def _copied(job: DirectJob, number: int) -> float:
    """Bytes of an operand's slice, in times of those that are copied 16 at once from whole lines."""
    operand = job.operands[number]
    rows = _HALF_ROWS if operand.along_k and job.tile.bk == 16 else 1
    return job.extent(number) * job.tile.bk * 4 * _NARROW[operand.width] * rows


def seconds(job: DirectJob, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    (work, wait, output), resident = _parallel(job), _resident(job)

    def together(tiles: int) -> float:
        return max(work + wait, tiles * work) + output

    whole, rest = divmod(job.work_groups, units * resident)
    cycles = whole * together(resident) + (together(-(-rest // units)) if rest else 0)
    t, launch = job.tile, _PACES[job.tile.products].launch
    if t.fixup:
        cycles += _FIXED + t.bm * t.bn * 4 * _PARTS
    moved = (job.problem.bytes + (0 if t.fixup else job.partial_bytes)) / (_MEMORY * copy)
    total = math.hypot(cycles / _CLOCK, moved) + launch
    if job.partial_bytes and not t.fixup:
        total += launch + job.partial_bytes * _SUMMED / (_MEMORY * copy)
    return total


def _parts(job: DirectJob, units: int) -> list[int]:
    """Parts of the sums that fill the device once, twice, three times, and a few small ones."""
    room = units * _resident(job)
    filling = {times * room // job.work_groups for times in (1, 2, 3)}
    small = set(_SPLITS) if job.work_groups < 2 * room else set()
    return sorted(parts for parts in filling | small if 1 < parts <= job.slices // 2 and parts <= 512)


def _tiles(problem: ConvProblem, name: str, units: int) -> Iterator[DirectTile]:
    compensated = problem.math == "ieee" and DirectJob(problem, DirectTile(16, 16, 1, 1)).k > _LONG
    shapes = _SHAPES + _WIDE if name == "tf32" else _SHAPES
    for (bm, bn, wm, wn), (bk, stages) in itertools.product(shapes, _DEPTHS):
        promotes = (0, 64 // bk) if name != "tf32" and problem.math != "ieee" else (0,)
        for flush_every in promotes:
            tile = DirectTile(bm, bn, wm, wn, name, bk, stages, 1, flush_every, compensated)
            job = DirectJob(problem, tile)
            wasted = bm >= 2 * max(32, job.m) or bn >= 2 * max(32, job.n)
            if wasted or job.misfit is not None:
                continue
            yield tile
            for split, fixup in itertools.product(_parts(job, units), (False, True)):
                if fixup and (split > _FEW or name != "tf32"):
                    continue
                cut = dataclasses.replace(tile, split=split, fixup=fixup)
                if DirectJob(problem, cut).misfit is None:
                    yield cut


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[DirectTile, ...]:
    """The fastest tiles by prediction, whatever their format, then the best few of formats that are not among them."""
    tiles = [tile for name in formats(problem) for tile in _tiles(problem, name, units)]
    cost = {tile: seconds(DirectJob(problem, tile), units) for tile in tiles}
    rated = sorted(cost, key=cost.get)  # of equals the first format's
    few = [[tile for tile in rated if tile.format == name][:_FEWEST] for name in formats(problem)]
    return tuple(dict.fromkeys(itertools.chain(rated[:_MOST], *few)))
