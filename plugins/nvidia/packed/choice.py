"""Which tiles to try for a problem, and in which order: a model of tensor cores, local copies, waves and traffic.

Times are cycles of one multiprocessor; the constants were fitted to 2500 timings on an H200 (0.17 root mean square of
the logarithm; on these same timings the tile chosen among those timed of a problem loses 1 to 9 %, by kind of problem).
What sums that are moved often cost was added by hand since (0.16 on 658 timings of "ieee"); then results that lie
apart; then launches were fitted anew (0.11 on 345 timings of what is near the fastest).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..formats import FORMATS, formats
from ..hopper import LOCAL_LIMIT
from ..pace import COPY
from ..walk import walk, window
from .job import Job
from .tile import Tile

__all__ = ["choices", "fits", "product_cycles", "seconds"]

_CLOCK = 1.7e9
_MACS = {"wgmma": 2530, "mma": 1670}  # multiply-adds a cycle of a busy multiprocessor, were columns endless
# Columns whose time a product costs on top: a narrow one reads as much of A.
_THIN = {"wgmma": 93, "mma": 41}
_GATHERED = 1.2  # times that slices take whose rows several taps gather
_COPIED = 62.0  # bytes a cycle from the L2 cache into local memory
_HALF_ROWS = 1.66  # copies of 64-byte rows, in times of those of 128 bytes
_TURNED = 2.8  # copies of places for the weights' gradient, in times of those of a packed slice
_ARRIVAL = 860.0  # cycles until the first bytes of a slice's copies arrive
_WRITTEN, _SCATTERED = 21.0, 1.7  # bytes a cycle that leave a multiprocessor; times a window's, channels first
_MEMORY, _WEIGHTS = 0.847, 0.153  # of a copy's bandwidth: what packing moves, and what the packing of weights does
_FILL = 2700  # cycles of a tile's beginning and end
_LAUNCH, _SHORT_LAUNCH = 6.0e-6, 5.0e-6  # seconds, with the pause before it; of one that does next to nothing
_APART = 5.0  # times that results take in memory whose neighbours along w another phase writes
_NATIVE = 1.14  # times that 16-bit tensors' data directions take, whose operands are not in the cache
_SUMMED = 1.5  # passes over the parts of a sum, of write and read
_MOST = 40  # choices offered
_STACK_BELOW = 1024  # columns of stacked phases
_WHOLE = 16  # channels of a pixel that phases write whole, channels last: stacked, its parts took four times as long
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_FLUSH_K = 192  # products a tensor core adds, toward zero, before a float32 register does; for "ieee" a slice's
_LONG = 512  # "ieee": longer sums are compensated
_SHORT = 1024  # "ieee": weights' gradients of no more pixels are moved every 16 of k
_MMA_CARRIES = 0.22  # times of an mma's multiplications that carrying takes on top
_ADDED, _DRAINED = 128.0, 60.0  # float32 additions a cycle; cycles until tensor cores are done and begin again


@dataclass(frozen=True)
class _Cost:
    """Cycles of one tile, by what they wait for."""

    busy: float
    """Multiplying or copying, whichever is longer: work that tiles on one multiprocessor share."""
    arrival: float
    """Until copies arrive, where more of them are not in flight: time that tiles spend side by side."""
    output: float

    def together(self, tiles: int) -> float:
        """Cycles of ``tiles`` tiles on one multiprocessor at once."""
        alone = max(self.busy, self.arrival) + _FILL + self.output
        return max(alone, tiles * self.busy + (self.output if tiles > 1 else 0))


def _resident(job: Job) -> int:
    """Work groups of a multiprocessor at a time."""
    t = job.tile
    twice = job.format.float32_accurate and (t.engine == "wgmma" or t.compensated)
    registers = t.frag_m * t.frag_n * 4 * (2 if twice else 1) + (70 if t.engine == "wgmma" else 100)
    by_registers = 65536 // (min(255, registers) * t.items)
    return max(1, min(by_registers, (LOCAL_LIMIT + 1024) // (job.local_bytes + 1024), 2048 // t.items))


def _tile_cost(job: Job) -> _Cost:
    t, planes = job.tile, job.format.planes
    slices = sum(job.slices) / len(job.slices) / t.split
    multiply = t.bm * t.bn * t.bk * len(job.format.products) * (1 + _THIN[t.engine] * t.wn / t.bn) / _MACS[t.engine]
    source = job.window_bytes / job.walk.phases[0].volume if t.window else job.a_bytes * (1 if job.data else _TURNED)
    copied = (source + job.b_bytes) * planes * (_HALF_ROWS if job.row_bytes == 64 else 1) / _COPIED
    written = t.bm * t.bn * (4 if job.partial else job.problem.itemsize)
    scattered = _SCATTERED if t.window and job.problem.layout == "nchw" else 1
    moved = multiply * slices * _MMA_CARRIES if t.engine == "mma" and t.compensated else 0.0
    if job.format.float32_accurate and t.engine == "wgmma" and job.drained:
        moves = slices * (t.bk // 16 if t.flush_every == 0 else 1)
        moved = moves * (t.bm * t.bn * (4 if t.compensated else 1) / _ADDED + _DRAINED)
    if job.data and not t.window and job.walk.phases[0].volume > 1:
        slices *= _GATHERED
    return _Cost(slices * max(multiply, copied) + moved, slices * (_ARRIVAL + 0.9 * copied) / job.under_way,
                 written * scattered / _WRITTEN)  # fmt: skip


def product_cycles(job: Job, units: int) -> float:
    """Predicted cycles of the product on a device of ``units`` multiprocessors."""
    cost, resident = _tile_cost(job), _resident(job)
    whole, rest = divmod(job.work_groups, units * resident)
    cycles = whole * cost.together(resident)
    return cycles + (cost.together(-(-rest // units)) if rest else 0)


def seconds(job: Job, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    cycles = product_cycles(job, units)
    itemsize, planes = job.problem.itemsize, job.format.planes
    passes = 2 if job.format.scaled else 1  # over the tensors; and two short launches between
    packed = sum(source.bytes for source in job.sources)
    written = math.prod(job.problem.out_shape) * itemsize
    total = max(cycles / _CLOCK, (packed + job.weights_bytes + written) / (_MEMORY * copy)) + _LAUNCH
    if packed or job.weights_bytes:
        read = itemsize / (2 * planes) * passes  # bytes read for a byte written
        total += passes * _LAUNCH + (passes - 1) * 2 * _SHORT_LAUNCH + packed * (1 + read) / (_MEMORY * copy)
        total += job.weights_bytes * (1 + itemsize / (2 * planes)) / (_WEIGHTS * copy)
    if job.data and not job.target.nhwc and not job.tile.stacked and job.walk.out_step[2] > 1:
        total += written * _APART / (_MEMORY * copy)
    if job.partial:
        total += _LAUNCH + job.partial_bytes * _SUMMED / (_MEMORY * copy)
    return total * (_NATIVE if job.data and job.format.name == "native" else 1)


def _widths(columns: int, most: int, step: int) -> list[int]:
    """Tile widths that cover ``columns`` in 1 to 4 more tiles than needed, and the usual ones."""
    least = -(-columns // most)
    even = {-(-columns // tiles // step) * step for tiles in range(least, least + 4)}
    return sorted(width for width in even | {64, 128} if 0 < width <= min(most, -(-columns // step) * step))


def _joinable(problem: ConvProblem) -> bool:
    """Whether the data gradient's phases may be worth joining: few channels, a stride, not many wasted taps."""
    if problem.direction != "bwd_data" or problem.sd * problem.sh * problem.sw == 1:
        return False
    one, many = walk(problem, True), walk(problem)
    if problem.layout == "nhwc" and many.m >= _WHOLE:
        return False
    work = one.m * one.phases[0].volume
    return one.m <= _STACK_BELOW and work <= 4 * many.m * sum(phase.volume for phase in many.phases)


def _shapes(problem: ConvProblem, engine: str, exact: bool, stacked: bool) -> Iterator[tuple[int, int, int, int]]:
    """(bm, bn, wm, wn)."""
    geo = walk(problem, stacked)
    data = problem.direction != "bwd_weights"
    if engine == "wgmma" and data:
        for bn in _widths(geo.m, 192 if exact else 256, 8):
            yield 128, bn, 2, 1
            yield 64, bn, 1, 1
            if bn <= 128:
                yield 192, bn, 3, 1
            if not exact and bn <= 128:
                yield 256, bn, 4, 1
    elif engine == "wgmma":
        for bm, wm in ((64, 1), (128, 2)):
            for bn in (64, 128, 192, 256):
                if bn <= (192 if exact else 256):
                    yield bm, bn, wm, 1
                if wm == 1 and bn >= 128 and bn % 128 == 0:
                    yield bm, bn, wm, 2
    elif data:
        yield from ((128, 128, 2, 4), (128, 64, 2, 2), (64, 64, 2, 2), (128, 32, 4, 1), (64, 32, 2, 1), (32, 32, 1, 1),
                    (64, 16, 4, 1))  # fmt: skip
    else:
        yield from ((128, 128, 2, 4), (64, 128, 2, 4), (64, 64, 2, 2))


def _tiles(problem: ConvProblem, engine: str, name: str, units: int) -> Iterator[Tile]:
    exact = FORMATS[name].float32_accurate
    data = problem.direction != "bwd_weights"
    ieee, depths = problem.math == "ieee", ((32, 3), (32, 2))
    if engine == "wgmma":
        depths = ((64, 2), (64, 3), (32, 3), (32, 4)) if ieee else ((64, 3), (64, 4), (32, 4), (32, 5), (32, 6))
    choices = (False, True) if _joinable(problem) else (False,)
    for stacked, (bm, bn, wm, wn) in ((j, shape) for j in choices for shape in _shapes(problem, engine, exact, j)):
        windows = (True, False) if data and window(walk(problem, stacked)) is not None else (False,)
        for bk, stages in depths:
            for in_window in windows:
                tile = Tile(bm, bn, wm, wn, name, engine, bk, stages, 1, in_window, stacked, _FLUSH_K // bk)
                job = Job(problem, tile)
                if ieee:
                    length = max(phase.volume for phase in job.walk.phases) * job.walk.c if data else job.n_places
                    moved = 0 if engine == "wgmma" and not data and length <= _SHORT else 1
                    tile = dataclasses.replace(tile, flush_every=moved, compensated=length > _LONG)
                    job = Job(problem, tile)
                if job.misfit is not None:
                    continue
                yield tile
                for split in _parts(job, units):
                    cut = dataclasses.replace(tile, split=split)
                    if Job(problem, cut).misfit is None:
                        yield cut


def _parts(job: Job, units: int) -> list[int]:
    """Parts of the sum that fill the device once, twice, three times, and a few small ones."""
    room, slices = units * _resident(job), max(job.slices)
    if job.tile.window:
        slices //= job.walk.phases[0].volume
    filling = {max(1, times * room // job.work_groups) for times in (1, 2, 3)}
    small = set(_SPLITS) if job.work_groups < 2 * room else set()
    least = 2 if job.tile.window or job.data else 4  # slices worth a part
    return sorted(parts for parts in filling | small if 1 < parts <= slices // least and parts <= 512)


@functools.lru_cache(maxsize=1024)
def fits(problem: ConvProblem, engine: str, units: int) -> bool:
    """Whether any tile fits; cheaper than ``choices``."""
    return any(True for name in formats(problem) for _ in itertools.islice(_tiles(problem, engine, name, units), 1))


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, engine: str, units: int) -> tuple[Tile, ...]:
    """Tiles of the first format, the fastest by prediction first, then the best few of the other formats."""
    names = formats(problem)
    result: list[Tile] = []
    for place, name in enumerate(names):
        rated = sorted(
            ((seconds(Job(problem, tile), units), number, tile)
             for number, tile in enumerate(_tiles(problem, engine, name, units))),
            key=lambda row: row[:2],
        )  # fmt: skip
        ordered = _different_first([tile for _, _, tile in rated])
        result += ordered[: _MOST if place == 0 else 4]
    return tuple(result)


def _different_first(tiles: list[Tile]) -> list[Tile]:
    """In order, but tiles that differ from one before in the stages alone come last: for a search's first steps."""
    seen: set[Tile] = set()
    first, others = [], []
    for tile in tiles:
        kind = dataclasses.replace(tile, stages=0)
        (others if kind in seen else first).append(tile)
        seen.add(kind)
    return first + others
