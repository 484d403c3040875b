"""Which tiles nvidia.direct tries for a problem, and in which order: what a tile waits for, and memory's traffic.

Times are cycles of one multiprocessor. Not fitted to timings yet: the constants are what other kernels reached.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from convdispatch.api import ConvProblem

from .direct_job import DirectJob, DirectTile
from .job import LOCAL_LIMIT

__all__ = ["UNIT", "choices", "formats", "seconds"]

UNIT = 60e12
"""Operations a second that a cost is told in, as ``solver.py``'s."""
_CLOCK = 1.7e9
_MACS = {8: 500, 16: 1000}  # multiply-adds a cycle that a multiprocessor reaches through mma.sync, TF32 and bfloat16
_COPIED = 24.0  # bytes a cycle from the L2 cache into local memory, 16 a copy
_NARROW = {4: 1.0, 2: 1.2, 1: 1.5}  # in times of it, by the numbers of a copy
_READ = 1.2  # cycles of local memory for a warp's 32 numbers
_ISSUED = 3.5  # instructions a cycle that four schedulers reach together
_WRITTEN = 20.0  # bytes a cycle that leave a multiprocessor
_MEMORY = 3.7e12  # bytes a second
_FEW = 2.0  # warps whose time is lost to products that wait for each other, whatever their number
_SLICE, _FILL = 60, 4000  # cycles of a slice's barriers, and of a tile's beginning and end
_LAUNCH = 3.0e-6  # seconds
_MOST, _FEWEST = 32, 4  # choices offered, and of each format
_SHAPES = (
    (128, 128, 2, 4), (128, 128, 4, 2), (64, 128, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 64, 2, 2),
    (64, 64, 2, 2), (64, 256, 2, 4), (48, 128, 1, 4), (32, 64, 1, 4), (32, 128, 1, 4), (32, 256, 1, 8), (16, 128, 1, 4),
    (16, 256, 1, 8), (64, 32, 4, 1), (128, 32, 4, 1), (256, 32, 8, 1), (128, 16, 4, 1), (256, 16, 8, 1), (32, 32, 2, 2),
    (256, 64, 4, 2), (96, 128, 2, 4), (96, 64, 2, 2), (192, 64, 4, 2),
)  # fmt: skip
_DEPTHS = ((32, 3), (32, 4), (16, 4))
_SPLITS = (2, 3, 4, 6, 8, 12, 16)


def formats(problem: ConvProblem) -> tuple[str, ...]:
    """Formats that reach what the problem's ``math`` asks, the one to use first."""
    return {"float32": ("tf32x3", "bf16x3"), "tf32": ("tf32", "tf32x3"), "fast": ("tf32", "tf32x3")}.get(
        problem.math, ()
    )


def _resident(job: DirectJob) -> int:
    """Work groups of a multiprocessor at a time."""
    t = job.tile
    fragments = (t.frag_n * 2 + 4) * (2 if t.products == 3 else 1)
    steps = 0 if t.products == 1 else t.frag_m * t.frag_n * 4 if t.promote else t.frag_n * 4
    registers = min(255, t.frag_m * t.frag_n * 4 + steps + fragments + 58)
    return max(1, min(65536 // (registers * t.items), (LOCAL_LIMIT + 1024) // (job.local_bytes + 1024),
                      2048 // t.items))  # fmt: skip


def _parallel(job: DirectJob) -> tuple[float, float]:
    """Cycles of a tile that tiles on one multiprocessor share, and those that only this tile waits."""
    t = job.tile
    slices = job.slices / t.split
    warps, steps = t.wm * t.wn, slices * (t.bk // t.depth)
    read = (t.frag_m * 4 + t.frag_n * 2) * t.depth // 8
    multiplied = t.frag_m * t.frag_n * t.products
    added = t.frag_m * t.frag_n * 4 if t.products == 3 and not t.promote else 0
    issued = read * (4 if t.depth == 16 else 3 if t.products == 3 else 2) + multiplied + added
    multiply = steps * t.bm * t.bn * t.depth * t.products / _MACS[t.depth]
    local = steps * warps * read * _READ
    copied = [job.extent(number) * t.bk * 4 * _NARROW[job.operands[number].width] for number in (0, 1)]
    work = max(multiply, local, steps * warps * issued / _ISSUED, slices * sum(copied) / _COPIED)
    return work, slices * _SLICE + _FILL + t.bm * t.bn * 4 / _WRITTEN


def seconds(job: DirectJob, units: int) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    (work, wait), resident = _parallel(job), _resident(job)
    work *= 1 + _FEW / (min(resident, -(-job.work_groups // units)) * job.tile.items / 32)
    whole, rest = divmod(job.work_groups, units * resident)
    cycles = whole * max(work + wait, resident * work)
    if rest:
        cycles += max(work + wait, -(-rest // units) * work)
    total = max(cycles / _CLOCK, (job.problem.bytes + job.partial_bytes) / _MEMORY) + _LAUNCH
    if job.partial_bytes:
        total += _LAUNCH + job.partial_bytes * 0.3 / _MEMORY + job.tile.split / job.lanes * 6e-8
    return total


def _parts(job: DirectJob, units: int) -> list[int]:
    """Parts of the sums that fill the device once, twice, three times, and a few small ones."""
    room = units * _resident(job)
    filling = {times * room // job.work_groups for times in (1, 2, 3)}
    small = set(_SPLITS) if job.work_groups < 2 * room else set()
    return sorted(parts for parts in filling | small if 1 < parts <= job.slices // 2 and parts <= 512)


def _tiles(problem: ConvProblem, name: str, units: int) -> Iterator[DirectTile]:
    for (bm, bn, wm, wn), (bk, stages) in itertools.product(_SHAPES, _DEPTHS):
        promotes = (0, 64 // bk) if name != "tf32" else (0,)
        for promote in promotes:
            tile = DirectTile(bm, bn, wm, wn, name, bk, stages, 1, promote)
            job = DirectJob(problem, tile)
            wasted = bm >= 2 * max(32, job.m) or bn >= 2 * max(32, job.n)
            if wasted or job.misfit is not None:
                continue
            yield tile
            for split in _parts(job, units):
                yield DirectTile(bm, bn, wm, wn, name, bk, stages, split, promote)


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[DirectTile, ...]:
    """The fastest tiles by prediction, whatever their format, then the best few of formats that are not among them."""
    tiles = [tile for name in formats(problem) for tile in _tiles(problem, name, units)]
    cost = {tile: seconds(DirectJob(problem, tile), units) for tile in tiles}
    rated = sorted(cost, key=cost.get)  # of equals the first format's
    few = [[tile for tile in rated if tile.format == name][:_FEWEST] for name in formats(problem)]
    return tuple(dict.fromkeys(itertools.chain(rated[:_MOST], *few)))
