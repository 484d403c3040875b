"""Which tiles to try for a problem, and in which order: a model of tensor cores, local copies, waves and traffic.

Times are cycles of one multiprocessor; the constants were fitted to 2500 timings on an H200 (0.17 root mean square of
the logarithm; on these same timings the tile chosen among those timed of a problem loses 1 to 9 %, by kind of problem).
What sums that are moved often cost was added by hand since (0.16 on 658 timings of "ieee"); then results that lie
apart; then what instructions store, and launches, copies and waits were fitted anew to the first choices of 733 drawn
problems on an H100 and an H200, in CUDA graphs.

Hundreds of tiles are rated at once: tilings here stand for one tile, or for many whose numbers are arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem

from ..configured import fitting, many
from ..formats import FORMATS, formats
from ..geometry import product_geometry, window
from ..instructions import LOCAL_LIMIT
from ..pace import COPY, read_share
from .tiling import Tile, Tiling

_CLOCK = 1.7e9
_MACS = {"wgmma": 2530, "mma": 1340}  # multiply-adds a cycle of a busy multiprocessor, were columns endless
# Columns whose time a product costs on top: a narrow one reads as much of A.
_THIN = {"wgmma": 93, "mma": 37}
_WINDOWED = 0.89  # of what is reckoned, float32's windows take: 63 layers of six nets, 0.07 root mean square
_GATHERED = 1.07  # times that slices take whose rows several taps gather
_COPIED = 49.6  # bytes a cycle from the L2 cache into local memory
_HALF_ROWS = 1.66  # copies of 64-byte rows, in times of those of 128 bytes
_TURNED = 2.66  # copies of places for the weights' gradient, in times of those of a packed slice
_ARRIVAL = 1140.0  # cycles until the first bytes of a slice's copies arrive
_STORED = {8: 0.3, 2: 0.85, 1: 1.5}  # cycles of a result, in which a multiprocessor writes as many at once
_BEHIND = 1.12  # of its own copying, what a slice waits longer
_WRITTEN, _SCATTERED = 18.8, 1.7  # bytes a cycle that leave a multiprocessor; times a window's, channels first
_MEMORY, _WEIGHTS = 0.85, 0.28  # of a copy's bandwidth: what packing moves, and what the packing of weights does
_FILL = 270  # cycles of a tile's beginning and end
_LAUNCH, _SCALED = 0.96e-6, 3.45e-6  # seconds on a stream of CUDA's; of one that looks for scales, with its wait
_APART = 5.0  # times that results take in memory whose neighbours along w another phase writes
_PHASED = 1.2  # times that a strided data gradient takes channels last: 70 drawn problems, 1.0 to 1.65 by kind
_HIDDEN = 1.72  # 16-bit tensors: 1: products and memory add up; the larger, the more of one the other hides
_NATIVE = 1.03  # times that 16-bit tensors' data directions take, whose operands are not in the cache
_NATIVE_WEIGHTS = 0.86  # times that their weights' gradients take, as 148 problems' timings say
_SUMMED = 1.5  # passes over the parts of a sum, of write and read
_MOST = 40  # choices offered
_STACK_BELOW = 1024  # columns of stacked phases
_WHOLE = 16  # channels of a pixel that phases write whole, channels last: stacked, its parts took four times as long
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_FLUSH_K = 192  # products a tensor core adds, toward zero, before a float32 register does; for "ieee" a slice's
_LONG = 512  # "ieee": longer sums are compensated
_SHORT = 1024  # "ieee": weights' gradients of no more pixels are moved every 16 of k
_MMA_CARRIES = 0.22  # times of an mma's multiplications that carrying takes on top
_NUMBERS = ("bm", "bn", "wm", "wn", "bk", "stages", "split", "flush_every")  # of a tile, that differ among many
_ADDED, _DRAINED = 128.0, 60.0  # float32 additions a cycle; cycles until tensor cores are done and begin again


@dataclass(frozen=True)
class _Cost:
    """Cycles of one tile, by what they wait for."""

    busy: Any
    """Multiplying or copying, whichever is longer: work that tiles on one multiprocessor share."""
    arrival: Any
    """Until copies arrive, where more of them are not in flight: time that tiles spend side by side."""
    output: Any
    stored: Any
    """Of the instructions that write results, which tiles on one multiprocessor share too."""

    def together(self, tiles: Any) -> Any:
        """Cycles of ``tiles`` tiles on one multiprocessor at once."""
        alone = np.maximum(self.busy, self.arrival) + _FILL + self.output
        return np.maximum(alone, tiles * np.hypot(self.busy, self.stored) + np.where(tiles > 1, self.output, 0))


def _resident(tiling: Tiling) -> Any:
    """Work groups of a multiprocessor at a time."""
    t = tiling.tile
    twice = tiling.format.float32_accurate and (t.engine == "wgmma" or t.compensated)
    registers = t.frag_m * t.frag_n * 4 * (2 if twice else 1) + (70 if t.engine == "wgmma" else 100)
    by_registers = 65536 // (np.minimum(255, registers) * t.items)
    by_memory = np.minimum((LOCAL_LIMIT + 1024) // (tiling.local_bytes + 1024), 2048 // t.items)
    return np.maximum(1, np.minimum(by_registers, by_memory))


def _tile_cost(tiling: Tiling) -> _Cost:
    t, planes = tiling.tile, tiling.format.planes
    slices = sum(tiling.slices) / len(tiling.slices) / t.split
    multiply = t.bm * t.bn * t.bk * len(tiling.format.products) * (1 + _THIN[t.engine] * t.wn / t.bn) / _MACS[t.engine]
    source = (
        tiling.window_bytes / tiling.geometry.phases[0].volume
        if t.window
        else tiling.a_bytes * (1 if tiling.data else _TURNED)
    )
    copied = (source + tiling.b_bytes) * planes * np.where(tiling.row_bytes == 64, _HALF_ROWS, 1) / _COPIED
    written = t.bm * t.bn * np.where(tiling.partial, 4, tiling.problem.itemsize)
    scattered = _SCATTERED if t.window and tiling.problem.layout == "nchw" else 1
    moved = multiply * slices * _MMA_CARRIES if t.engine == "mma" and t.compensated else 0.0
    if tiling.format.float32_accurate and t.engine == "wgmma":
        moves = slices * np.where(t.flush_every == 0, t.bk // 16, 1)
        carried = moves * (t.bm * t.bn * (4 if t.compensated else 1) / _ADDED + _DRAINED)
        moved = np.where(tiling.drained, carried, moved)
    if tiling.data and not t.window and tiling.geometry.phases[0].volume > 1:
        slices = slices * _GATHERED
    busy = slices * np.maximum(multiply, copied) + moved
    arrival = slices * (_ARRIVAL + _BEHIND * copied) / tiling.under_way
    stored = t.bm * np.minimum(t.bn, tiling.n) * _stored(tiling)
    return _Cost(busy, arrival, written * scattered / _WRITTEN, stored)


def _stored(tiling: Tiling) -> Any:
    """Cycles of a result, in which a multiprocessor's instructions write it."""
    if not (tiling.data and tiling.target.nhwc):
        return _STORED[8]
    m, wide = tiling.geometry.m, tiling.problem.itemsize // 2
    return np.where(tiling.staged, _STORED[8 if m % 8 == 0 else 1], _STORED[2] / wide if m % 2 == 0 else _STORED[1])


def product_cycles(tiling: Tiling, units: int) -> Any:
    """Predicted cycles of the product on a device of ``units`` multiprocessors."""
    cost, resident = _tile_cost(tiling), _resident(tiling)
    whole, rest = np.divmod(tiling.work_groups, units * resident)
    cycles = whole * cost.together(resident)
    return cycles + np.where(rest > 0, cost.together(-(-rest // units)), 0)


def seconds(tiling: Tiling, units: int, copy: float = COPY) -> Any:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    cycles = product_cycles(tiling, units)
    itemsize, planes = tiling.problem.itemsize, tiling.format.planes
    passes = 2 if tiling.format.scaled else 1  # over the tensors; and two short launches between
    packed, weights = sum(source.bytes for source in tiling.sources), tiling.weights_bytes
    written = math.prod(tiling.problem.out_shape) * itemsize
    multiplied, moved = cycles / _CLOCK, (packed + weights + written) / (_MEMORY * copy)
    if tiling.format.name == "native":
        apart = {tiling.problem.written, *(source.name for source in tiling.sources)}
        sizes = {name: math.prod(getattr(tiling.problem, name + "_shape")) for name in "xwy" if name not in apart}
        if "x" in sizes:
            sizes["x"] *= read_share(tiling.problem)
        read = sum(sizes.values())
        moved = moved + itemsize * read / (_MEMORY * copy)
        total = (multiplied**_HIDDEN + moved**_HIDDEN) ** (1 / _HIDDEN) + _LAUNCH
    else:
        total = np.maximum(multiplied, moved) + _LAUNCH
    read = itemsize / (2 * planes) * passes  # bytes read for a byte written
    before = passes * _LAUNCH + (passes - 1) * 2 * _SCALED + packed * (1 + read) / (_MEMORY * copy)
    before = total + before + weights * (1 + itemsize / (2 * planes)) / (_WEIGHTS * copy)
    total = np.where((packed > 0) | (weights > 0), before, total)
    if tiling.data and not tiling.target.nhwc and not tiling.tile.stacked and tiling.geometry.out_step[2] > 1:
        total = total + written * _APART / (_MEMORY * copy)
    total = np.where(tiling.partial, total + (_LAUNCH + tiling.partial_bytes * _SUMMED / (_MEMORY * copy)), total)
    if tiling.data and tiling.target.nhwc and max(tiling.geometry.out_step) > 1:
        total = total * _PHASED
    if tiling.tile.window and tiling.format.float32_accurate:
        return total * _WINDOWED
    if tiling.format.name == "native":
        return total * (_NATIVE if tiling.data else _NATIVE_WEIGHTS)
    return total


def _widths(columns: int, most: int, step: int) -> list[int]:
    """Tile widths that cover ``columns`` in 1 to 4 more tiles than needed, and the usual ones."""
    least = -(-columns // most)
    even = {-(-columns // tiles // step) * step for tiles in range(least, least + 4)}
    return sorted(width for width in even | {64, 128} if 0 < width <= min(most, -(-columns // step) * step))


def _joinable(problem: ConvProblem) -> bool:
    """Whether the data gradient's phases may be worth joining: few channels, a stride, not many wasted taps."""
    if problem.direction != "bwd_data" or problem.sd * problem.sh * problem.sw == 1:
        return False
    one, many = product_geometry(problem, True), product_geometry(problem)
    if problem.layout == "nhwc" and many.m >= _WHOLE:
        return False
    work = one.m * one.phases[0].volume
    return one.m <= _STACK_BELOW and work <= 4 * many.m * sum(phase.volume for phase in many.phases)


def _shapes(problem: ConvProblem, engine: str, exact: bool, stacked: bool) -> Iterator[tuple[int, int, int, int]]:
    """(bm, bn, wm, wn)."""
    geo = product_geometry(problem, stacked)
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


@functools.lru_cache(maxsize=64)
def _bases(problem: ConvProblem, engine: str, name: str) -> tuple[tuple[Tile, np.ndarray, np.ndarray], ...]:
    """Tiles that fit and whose sums are in one part: those of a window and stacking as ``_NUMBERS``, and their places.

    A place says when a tile is tried: stacked ones after others, a shape's and a depth's beside one another.
    """
    exact = FORMATS[name].float32_accurate
    data, found, before = problem.direction != "bwd_weights", [], 0
    ieee, depths = problem.math == "ieee", ((32, 3), (32, 2))
    if engine == "wgmma":
        depths = ((64, 2), (64, 3), (32, 3), (32, 4)) if ieee else ((64, 3), (64, 4), (32, 4), (32, 5), (32, 6))
    for stacked in (False, True) if _joinable(problem) else (False,):
        geo = product_geometry(problem, stacked)
        shapes = list(_shapes(problem, engine, exact, stacked))
        if not shapes:
            continue
        rows = [(*shape, *depth, 1, _FLUSH_K // depth[0]) for shape, depth in itertools.product(shapes, depths)]
        numbers, compensated = np.array(rows, np.int64), False
        if ieee:
            length = max(phase.volume for phase in geo.phases) * geo.c if data else geo.images * geo.phases[0].places
            numbers[:, -1] = 0 if engine == "wgmma" and not data and length <= _SHORT else 1
            compensated = length > _LONG
        for number, in_window in enumerate((True, False) if data and window(geo) is not None else (False,)):
            plain = Tile(0, 0, 0, 0, name, engine, window=in_window, stacked=stacked, compensated=compensated)
            fit = fitting(Tiling(problem, many(plain, _NUMBERS, numbers)), len(rows))
            found.append((plain, numbers[fit], (before + 2 * np.arange(len(rows)) + number)[fit]))
        before += 2 * len(rows)
    return tuple(found)


def _cut(tiling: Tiling, units: int) -> Iterator[list[int]]:
    """Of each tile, the parts of its sums: one; those that fill the device once, twice, thrice; a few small ones."""
    t, slices = tiling.tile, functools.reduce(np.maximum, tiling.slices)
    if t.window:
        slices = slices // tiling.geometry.phases[0].volume
    rooms, most = units * _resident(tiling), slices // (2 if t.window or tiling.data else 4)  # slices worth a part
    for room, groups, last in zip(rooms.tolist(), tiling.work_groups.tolist(), most.tolist(), strict=True):
        filling = {times * room // groups for times in (1, 2, 3)}
        small = _SPLITS if groups < 2 * room else ()
        yield [1, *sorted(parts for parts in filling.union(small) if 1 < parts <= last and parts <= 512)]


def _tiles(problem: ConvProblem, engine: str, name: str, units: int) -> Iterator[tuple[Tile, np.ndarray, np.ndarray]]:
    """The bases, and what of them fits with sums in several parts."""
    for plain, numbers, places in _bases(problem, engine, name):
        if not len(numbers):
            continue
        tiling = Tiling(problem, many(plain, _NUMBERS, numbers))
        parts = [(row, split) for row, splits in enumerate(_cut(tiling, units)) for split in splits]
        rows, splits = np.array(parts).T
        cut = numbers[rows]
        cut[:, _NUMBERS.index("split")] = splits
        fit = fitting(Tiling(problem, many(plain, _NUMBERS, cut)), len(cut))
        yield plain, cut[fit], places[rows][fit]


@functools.lru_cache(maxsize=1024)
def fits(problem: ConvProblem, engine: str) -> bool:
    """Whether any tile fits; cheaper than ``choices``."""
    return any(len(numbers) for name in formats(problem) for _, numbers, _ in _bases(problem, engine, name))


@functools.lru_cache(maxsize=1024)
def choices(problem: ConvProblem, engine: str, units: int) -> tuple[Tile, ...]:
    """Tiles of the first format, the fastest by prediction first, then the best few of the other formats."""
    result: list[Tile] = []
    for place, name in enumerate(formats(problem)):
        groups = list(_tiles(problem, engine, name, units))
        costs = [seconds(Tiling(problem, many(plain, _NUMBERS, numbers)), units) for plain, numbers, _ in groups]
        if groups:
            kinds = np.repeat(np.arange(len(groups)), [len(numbers) for _, numbers, _ in groups])
            numbers, places = (np.concatenate([group[field] for group in groups]) for field in (1, 2))
            order = np.lexsort((places, np.concatenate(costs)))
            ordered = _different_first(kinds[order], numbers[order], _MOST if place == 0 else 4)
            result += [dataclasses.replace(groups[kind][0], **named) for kind, named in ordered]
    return tuple(result)


def _different_first(kinds: np.ndarray, numbers: np.ndarray, most: int) -> list[tuple[int, dict[str, int]]]:
    """The first ``most`` in order, but those that differ from one before in the stages alone come last."""
    seen: set[tuple[int, ...]] = set()
    first: list[tuple[int, dict[str, int]]] = []
    others: list[tuple[int, dict[str, int]]] = []
    for kind, row in zip(kinds.tolist(), numbers.tolist(), strict=True):
        named = dict(zip(_NUMBERS, row, strict=True))
        alike = (kind, *(value for name, value in named.items() if name != "stages"))
        (others if alike in seen else first).append((kind, named))
        seen.add(alike)
        if len(first) == most:
            break
    return (first + others)[:most]
