"""Which tiles to try for a problem, and their predicted time: tensor cores, local copies, waves and memory traffic.

Times are cycles of one multiprocessor. The constants were fitted to 2500 timings on an H200 (rms error of the logarithm
0.17; the chosen tile takes 1 to 9 % longer than the best of a problem's timed tiles, by kind of problem). The costs of
frequent moves of sums (rms 0.16 on 658 timings of "ieee") and of scattered results were then added by hand; those of
stores, launches, copies and waits were fitted again to the first choices of 733 random problems on an H100 and an H200,
in CUDA graphs; how products and memory of packed values overlap, the first wait of a tile and the weights' gradients
of 16 bits to the first choices of 280 layers of nets there.

Hundreds of tiles are rated together: a tiling here is of one tile, or of many tiles whose numbers are arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem, least_products
from convdispatch.api.matrix import (
    FORMATS,
    fitting,
    formats,
    in_waves,
    many,
    part_counts,
    product_geometry,
    usual,
    window,
)

from ..instructions import LOCAL_LIMIT
from ..pace import CLOCK, COPY, read_share, sums_seconds
from ..usual import usual_tiles
from .tiling import Tile, Tiling

MACS = {"wgmma": 2530, "mma": 1340}
"""Multiply-adds per cycle of a busy multiprocessor, for a product of unlimited columns, by engine."""
THIN_COLUMNS = {"wgmma": 93, "mma": 37}
"""Fixed cost of a product in columns, by engine: a narrow product reads as much of A as a wide one."""
FP32_WINDOW_FACTOR = 0.89  # measured over predicted time of float32 kernels with windows: 63 layers, rms error 0.07
GATHER_FACTOR = 1.07  # time of K-slices whose rows are gathered for several taps, relative to a 1x1 kernel's
COPY_BYTES_PER_CYCLE = 49.6  # bytes per cycle from the L2 cache into local memory
SHORT_ROW_FACTOR = 1.66  # time of copying 64-byte rows over that of rows of 128 bytes
DY_COPY_FACTOR = 2.66  # time of copying dy for the weight gradient, relative to a packed slice
COPY_LATENCY_CYCLES = 1140.0  # cycles until the first bytes of a K-slice's copies arrive
COPY_WAIT_FACTOR = 1.12  # latency of a K-slice also grows by this many times the duration of its copies
RESULT_CYCLES = {8: 0.3, 2: 0.85, 1: 1.5}
"""Cycles of a multiprocessor per result, by the number of results that one store of a work item writes."""
STORE_BYTES_PER_CYCLE = 18.8  # bytes of results that a multiprocessor stores per cycle
PLAIN_STORE_FACTOR = 1.7  # time of storing NCHW results of 1x1 kernels and of those with windows, relative to others
MEMORY_SHARE = 0.85  # memory bandwidth of packing, relative to a copy's
WEIGHTS_MEMORY_SHARE = 0.28  # memory bandwidth of packing weights, relative to a copy's
FILL_CYCLES = 270  # cycles of the prologue and the epilogue of one tile
LAUNCH_SECONDS = 0.96e-6  # seconds of a launch on a CUDA stream
SCALES_LAUNCH_SECONDS = 3.45e-6  # seconds of a launch that searches operands for their scales, with its wait
PHASE_STORE_FACTOR = 5.0  # memory time of results whose neighbours along w another phase writes
PHASES_FACTOR = 1.2  # measured over predicted time of strided NHWC data gradients: 70 problems, 1.0 to 1.65
# Exponents that join times of products and memory, of 16-bit tensors and of values that are packed: 1 adds them, a
# large one takes the longer.
NATIVE_OVERLAP, PACKED_OVERLAP = 1.72, 1.5
NATIVE_FACTOR = 1.03  # measured over predicted time of 16-bit forward and data gradient, operands not cached
NATIVE_WEIGHTS_FACTOR = {"wgmma": (0.7, 1.03), "mma": (0.86, 0.86)}
"""Measured over predicted time of 16-bit weights' gradients of one tap and of several, by engine: 20 layers, and 148
problems."""
PART_PASSES = 1.5  # passes over the partial sums that writing and adding them takes
CARRY_FACTOR = 0.22  # time of compensated summation, relative to that of ``mma``'s products
ADDITIONS_PER_CYCLE = 128.0  # float32 additions per cycle of a multiprocessor
DRAIN_CYCLES = 60.0  # cycles until the tensor cores have finished and start again
SUMS_CYCLES = {False: 0.3, True: 0.6}
"""Cycles of a result whose channel is summed, by whether a norm's gradient is taken, which has twice the instructions.
Of ResNet-50's first layer in a training step on an H200."""
NORM_CYCLES = 0.17
"""Cycles of a 16-bit number of x that is normalised in local memory, three times those of its instructions, as in
``tma``."""
MERGE_CYCLES = 400.0  # cycles in which the work items of a tile merge their sums of channels: three barriers
MAX_CHOICES = 40  # most tiles that are offered to a search
MAX_STACKED_COLUMNS = 1024
"""Most columns of a product of stacked phases (all phases of a strided data gradient in one product)."""
MIN_WHOLE_CHANNELS = 16
"""NHWC phases of so many channels or more are not stacked: writing parts of a pixel takes four times as long."""
FLUSH_DEPTH = 192
"""Products that tensor cores add, toward zero, before a float32 register does (``math="ieee"``: one K-slice)."""
COMPENSATED_FROM = 512
"""With ``math="ieee"``, sums of more products than this are compensated."""
SHORT_GRADIENT = 1024
"""With ``math="ieee"``, weight gradients of at most so many pixels add sums to float32 registers every 16 of k."""
NUMBERS = ("bm", "bn", "wm", "wn", "bk", "stages", "split", "flush_every")
"""Fields of a Tile that are arrays when many tiles are rated together."""


@dataclass(frozen=True)
class _Cost:
    """Predicted cycles of one tile, by what the multiprocessor waits for."""

    busy: Any
    """Cycles of multiplying or copying, whichever is longer; tiles on one multiprocessor share them."""
    arrival: Any
    """Cycles until copies arrive, if no more are in flight; tiles on one multiprocessor wait simultaneously."""
    output: Any
    stored: Any
    """Cycles of the instructions that store results, which tiles on one multiprocessor share too."""

    def together(self, tiles: Any) -> Any:
        """Cycles of ``tiles`` tiles that run simultaneously on one multiprocessor."""
        alone = np.maximum(self.busy, self.arrival) + FILL_CYCLES + self.output
        return np.maximum(alone, tiles * np.hypot(self.busy, self.stored) + np.where(tiles > 1, self.output, 0))


def _resident(tiling: Tiling) -> Any:
    """Work groups that are resident on a multiprocessor."""
    t = tiling.tile
    doubled_sums = tiling.format.float32_accurate and (t.engine == "wgmma" or t.compensated)
    registers = t.frag_m * t.frag_n * 4 * (2 if doubled_sums else 1) + (70 if t.engine == "wgmma" else 100)
    by_registers = 65536 // (np.minimum(255, registers) * t.items)
    by_memory = np.minimum((LOCAL_LIMIT + 1024) // (tiling.local_bytes + 1024), 2048 // t.items)
    return np.maximum(1, np.minimum(by_registers, by_memory))


def _tile_cost(tiling: Tiling) -> _Cost:
    t, planes = tiling.tile, tiling.format.planes
    slices = sum(tiling.slices) / len(tiling.slices) / t.split
    multiply = (
        t.bm * t.bn * t.bk * len(tiling.format.products) * (1 + THIN_COLUMNS[t.engine] * t.wn / t.bn) / MACS[t.engine]
    )
    source = (
        tiling.window_bytes / tiling.geometry.phases[0].volume
        if t.window
        else tiling.a_bytes * (1 if tiling.data else DY_COPY_FACTOR)
    )
    copy_cycles = (
        (source + tiling.b_bytes)
        * planes
        * np.where(tiling.row_bytes == 64, SHORT_ROW_FACTOR, 1)
        / COPY_BYTES_PER_CYCLE
    )
    result_bytes = t.bm * t.bn * np.where(tiling.partial, 4, tiling.problem.itemsize)
    one_tap = tiling.data and tiling.geometry.phases[0].volume == 1
    store_factor = PLAIN_STORE_FACTOR if tiling.problem.layout == "nchw" and (t.window or one_tap) else 1
    sum_cycles = multiply * slices * CARRY_FACTOR if t.engine == "mma" and t.compensated else 0.0
    if tiling.format.float32_accurate and t.engine == "wgmma":
        flushes = slices * np.where(t.flush_every == 0, t.bk // 16, 1)
        flush_cycles = flushes * (t.bm * t.bn * (4 if t.compensated else 1) / ADDITIONS_PER_CYCLE + DRAIN_CYCLES)
        sum_cycles = np.where(tiling.drained, flush_cycles, sum_cycles)
    if t.norm_in_place:
        normalise = NORM_CYCLES * t.bm * t.bk
        multiply = np.maximum(multiply, normalise) if t.engine == "wgmma" else multiply + normalise
    if tiling.data and not t.window and tiling.geometry.phases[0].volume > 1:
        slices = slices * GATHER_FACTOR
    busy = slices * np.maximum(multiply, copy_cycles) + sum_cycles
    # The first wait of a tile is not in the constants that float32's formats were fitted with.
    waits = slices / tiling.under_way + (not tiling.format.float32_accurate)
    arrival = waits * (COPY_LATENCY_CYCLES + COPY_WAIT_FACTOR * copy_cycles)
    stored = t.bm * np.minimum(t.bn, tiling.n) * _store_cycles(tiling)
    if tiling.problem.sums:
        stored = stored + tiling.summed * (MERGE_CYCLES + SUMS_CYCLES[tiling.problem.masked] * t.bm * t.bn)
    return _Cost(busy, arrival, result_bytes * store_factor / STORE_BYTES_PER_CYCLE, stored)


def _store_cycles(tiling: Tiling) -> Any:
    """Cycles of a multiprocessor's store instructions per result."""
    if not (tiling.data and tiling.target.nhwc):
        return RESULT_CYCLES[8]
    m, stores = tiling.geometry.m, tiling.problem.itemsize // 2
    return np.where(
        tiling.staged,
        RESULT_CYCLES[8 if m % 8 == 0 else 1],
        RESULT_CYCLES[2] / stores if m % 2 == 0 else RESULT_CYCLES[1],
    )


def product_cycles(tiling: Tiling, units: int) -> Any:
    """Predicted cycles of the product on a device of ``units`` multiprocessors."""
    return in_waves(tiling, units, _resident(tiling), _tile_cost(tiling).together)


def seconds(tiling: Tiling, units: int, copy: float = COPY) -> Any:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    cycles = product_cycles(tiling, units)
    itemsize, planes = tiling.problem.itemsize, tiling.format.planes
    passes = 2 if tiling.format.scaled else 1  # passes over the operands: one searches for scales, one packs
    packed, weights = sum(source.bytes for source in tiling.sources), tiling.weights_bytes
    written = math.prod(tiling.problem.out_shape) * itemsize
    multiply, memory = cycles / CLOCK, (packed + weights + written) / (MEMORY_SHARE * copy)
    if tiling.format.name == "native":
        counted = {tiling.problem.written, *(source.name for source in tiling.sources)}
        sizes = {name: math.prod(getattr(tiling.problem, name + "_shape")) for name in "xwy" if name not in counted}
        if "x" in sizes:
            sizes["x"] *= read_share(tiling.problem)
        read_bytes = sum(sizes.values())
        memory = memory + itemsize * read_bytes / (MEMORY_SHARE * copy)
        total = (multiply**NATIVE_OVERLAP + memory**NATIVE_OVERLAP) ** (1 / NATIVE_OVERLAP) + LAUNCH_SECONDS
    elif tiling.format.float32_accurate:
        total = np.maximum(multiply, memory) + LAUNCH_SECONDS
    else:
        total = (multiply**PACKED_OVERLAP + memory**PACKED_OVERLAP) ** (1 / PACKED_OVERLAP) + LAUNCH_SECONDS
    read_bytes = itemsize / (2 * planes) * passes  # bytes that packing reads per byte that it writes
    with_packing = (
        passes * LAUNCH_SECONDS
        + (passes - 1) * 2 * SCALES_LAUNCH_SECONDS
        + packed * (1 + read_bytes) / (MEMORY_SHARE * copy)
    )
    with_packing = total + with_packing + weights * (1 + itemsize / (2 * planes)) / (WEIGHTS_MEMORY_SHARE * copy)
    total = np.where((packed > 0) | (weights > 0), with_packing, total)
    if tiling.data and not tiling.target.nhwc and not tiling.tile.stacked and tiling.geometry.out_step[2] > 1:
        total = total + written * PHASE_STORE_FACTOR / (MEMORY_SHARE * copy)
    total = np.where(
        tiling.partial, total + (LAUNCH_SECONDS + tiling.partial_bytes * PART_PASSES / (MEMORY_SHARE * copy)), total
    )
    if tiling.data and tiling.target.nhwc and max(tiling.geometry.out_step) > 1:
        total = total * PHASES_FACTOR
    if tiling.problem.masked:
        total = total + written / (MEMORY_SHARE * copy)
    total = total + sums_seconds(tiling, copy, tiling.sums_parts)
    if tiling.tile.window and tiling.format.float32_accurate:
        return total * FP32_WINDOW_FACTOR
    if tiling.format.name == "native":
        of_weights = NATIVE_WEIGHTS_FACTOR[tiling.tile.engine][tiling.geometry.phases[0].volume > 1]
        return total * (NATIVE_FACTOR if tiling.data else of_weights)
    return total


def least(problem: ConvProblem, engine: str, units: int, copy: float) -> float:
    """Seconds below which no tile is predicted, for tensors of 16 bits: of the products of the widest tile, of the
    widest stores, and of each tensor moved once. 0.0 for others."""
    if problem.itemsize != 2:
        return 0.0
    thinnest = {"wgmma": 1 / 256, "mma": 1 / 32}[engine]  # the least ratio of wn to bn
    macs_per_cycle = MACS[engine] / (1 + THIN_COLUMNS[engine] * thinnest)
    stored = math.prod(problem.out_shape) * min(RESULT_CYCLES.values())
    multiply = math.hypot(least_products(problem) / macs_per_cycle, stored) / units / CLOCK
    numbers = {name: math.prod(getattr(problem, name + "_shape")) for name in "xwy"}
    if problem.written != "x":
        numbers["x"] *= read_share(problem)
    memory = problem.itemsize * sum(numbers.values()) / (MEMORY_SHARE * copy)
    total = (multiply**NATIVE_OVERLAP + memory**NATIVE_OVERLAP) ** (1 / NATIVE_OVERLAP) + LAUNCH_SECONDS
    return total * (NATIVE_WEIGHTS_FACTOR if problem.direction == "bwd_weights" else NATIVE_FACTOR)


def _widths(columns: int, most: int, step: int) -> list[int]:
    """Tile widths that cover ``columns`` evenly with at most 3 tiles more than necessary, and the usual widths."""
    min_tiles = -(-columns // most)
    even_widths = {-(-columns // tiles // step) * step for tiles in range(min_tiles, min_tiles + 4)}
    return sorted(width for width in even_widths | {64, 128} if 0 < width <= min(most, -(-columns // step) * step))


def _joinable(problem: ConvProblem) -> bool:
    """Whether the data gradient's phases may be worth joining: few channels, a stride, not many wasted taps."""
    if problem.direction != "bwd_data" or problem.sd * problem.sh * problem.sw == 1:
        return False
    joined, separate = product_geometry(problem, True), product_geometry(problem)
    if problem.layout == "nhwc" and separate.m >= MIN_WHOLE_CHANNELS:
        return False
    joined_work = joined.m * joined.phases[0].volume
    separate_work = separate.m * sum(phase.volume for phase in separate.phases)
    return joined.m <= MAX_STACKED_COLUMNS and joined_work <= 4 * separate_work


def _shapes(problem: ConvProblem, engine: str, exact: bool, stacked: bool) -> Iterator[tuple[int, int, int, int]]:
    """(bm, bn, wm, wn) of the tiles that are tried for an engine."""
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
def _unsplit_tiles(problem: ConvProblem, engine: str, name: str) -> tuple[tuple[Tile, np.ndarray, np.ndarray], ...]:
    """Tiles that fit and whose sums are not split: (a tile's common fields, one row of ``NUMBERS`` per tile, ranks).

    Among tiles of equal cost the lower rank comes first: stacked tiles after others, tiles of one shape together.
    """
    exact = FORMATS[name].float32_accurate
    data, bases, rank = problem.direction != "bwd_weights", [], 0
    ieee, depths = problem.math == "ieee", ((32, 3), (32, 2))
    if engine == "wgmma":
        depths = ((64, 2), (64, 3), (32, 3), (32, 4)) if ieee else ((64, 3), (64, 4), (32, 4), (32, 5), (32, 6))
    for stacked in (False, True) if _joinable(problem) else (False,):
        geo = product_geometry(problem, stacked)
        shapes = list(_shapes(problem, engine, exact, stacked))
        if not shapes:
            continue
        rows = [(*shape, *depth, 1, FLUSH_DEPTH // depth[0]) for shape, depth in itertools.product(shapes, depths)]
        numbers, compensated = np.array(rows, np.int64), False
        if ieee:
            length = max(phase.volume for phase in geo.phases) * geo.c if data else geo.images * geo.phases[0].places
            numbers[:, -1] = 0 if engine == "wgmma" and not data and length <= SHORT_GRADIENT else 1
            compensated = length > COMPENSATED_FROM
        for window_rank, in_window in enumerate((True, False) if data and window(geo) is not None else (False,)):
            base = Tile(0, 0, 0, 0, name, engine, window=in_window, stacked=stacked, compensated=compensated)
            for in_place in (False, True) if problem.normalised else (False,):
                base = dataclasses.replace(base, norm_in_place=in_place)
                fits_tile = fitting(Tiling(problem, many(base, NUMBERS, numbers)), len(rows))
                bases.append((base, numbers[fits_tile], (rank + 2 * np.arange(len(rows)) + window_rank)[fits_tile]))
        rank += 2 * len(rows)
    return tuple(bases)


def _part_counts(tiling: Tiling, units: int) -> Iterator[list[int]]:
    """For each tile the numbers of parts of its sums that are worth trying."""
    t, slices = tiling.tile, functools.reduce(np.maximum, tiling.slices)
    if t.window:
        slices = slices // tiling.geometry.phases[0].volume
    # A sum has at most so many parts that each has at least 2 or 4 K-slices.
    max_parts = slices // (2 if t.window or tiling.data else 4)
    numbers = ((units * _resident(tiling)).tolist(), tiling.work_groups.tolist(), max_parts.tolist())
    for numbers_of_tile in zip(*numbers, strict=True):
        yield [1, *part_counts(*numbers_of_tile)]


def _tiles(problem: ConvProblem, engine: str, name: str, units: int) -> Iterator[tuple[Tile, np.ndarray, np.ndarray]]:
    """The tiles of ``_unsplit_tiles`` with sums in one part and in several parts, as far as they fit."""
    for base, numbers, ranks in _unsplit_tiles(problem, engine, name):
        if not len(numbers):
            continue
        tiling = Tiling(problem, many(base, NUMBERS, numbers))
        parts = [(row, split) for row, splits in enumerate(_part_counts(tiling, units)) for split in splits]
        rows, splits = np.array(parts).T
        divided = numbers[rows]
        divided[:, NUMBERS.index("split")] = splits
        fits_tile = fitting(Tiling(problem, many(base, NUMBERS, divided)), len(divided))
        yield base, divided[fits_tile], ranks[rows][fits_tile]


@functools.lru_cache(maxsize=1024)
def fits(problem: ConvProblem, engine: str) -> bool:
    """Whether any tile fits; cheaper than ``choices``."""
    return any(len(numbers) for name in formats(problem) for _, numbers, _ in _unsplit_tiles(problem, engine, name))


def rated(
    problem: ConvProblem, engine: str, name: str, units: int
) -> tuple[list[Tile], np.ndarray, np.ndarray, np.ndarray]:
    """Tiles of a format, the fastest by prediction first: (common fields, for each tile the index of its own, rows of
    ``NUMBERS``, predicted seconds)."""
    groups = list(_tiles(problem, engine, name, units))
    if not groups:
        return [], *(np.zeros(0, np.int64),) * 3
    costs = [seconds(Tiling(problem, many(plain, NUMBERS, numbers)), units) for plain, numbers, _ in groups]
    kinds = np.repeat(np.arange(len(groups)), [len(numbers) for _, numbers, _ in groups])
    numbers, ranks = (np.concatenate([group[field] for group in groups]) for field in (1, 2))
    all_costs = np.concatenate(costs)
    order = np.lexsort((ranks, all_costs))
    return [plain for plain, _, _ in groups], kinds[order], numbers[order], all_costs[order]


def name_of(base: Tile, row: Sequence[int], problem: ConvProblem) -> str:
    """The name in ``USUAL`` of a row of ``NUMBERS``; empty for windows, whose programs serve one geometry each."""
    kind = "weights" if problem.direction == "bwd_weights" else "stacked" if base.stacked else "data"
    return "" if base.window else f"{kind}:{'x'.join(map(str, row[:6]))}{'+' * (row[6] > 1)}"


def choices(problem: ConvProblem, engine: str, units: int) -> Iterator[Tile]:
    """Tiles of the first format, a usual one first, then the fastest by prediction, then the best few of the other
    formats."""
    for index, name in enumerate(formats(problem)):
        bases, kinds, numbers, costs = rated(problem, engine, name, units)
        if bases:
            places = usual_tiles(f"{engine} {FORMATS[name].name} {problem.layout}")
            rows = zip(kinds.tolist(), numbers.tolist(), strict=True)
            first = usual(costs, (name_of(bases[kind], row, problem) for kind, row in rows), places)
            order = np.r_[first, np.delete(np.arange(len(costs)), first)]
            for kind, row in _different_first(kinds[order], numbers[order], MAX_CHOICES if index == 0 else 4):
                yield dataclasses.replace(bases[kind], **dict(zip(NUMBERS, row, strict=True)))


def _different_first(kinds: np.ndarray, numbers: np.ndarray, most: int) -> Iterator[tuple[int, Sequence[int]]]:
    """The first ``most`` tiles in order, but tiles that differ from an earlier one only in their stages come last."""
    shapes_taken: set[tuple[int, ...]] = set()
    repeated: list[tuple[int, Sequence[int]]] = []
    stages = NUMBERS.index("stages")
    for kind, row in zip(kinds.tolist(), numbers.tolist(), strict=True):
        if len(shapes_taken) == most:
            return
        shape = (kind, *row[:stages], *row[stages + 1 :])
        if shape in shapes_taken:
            repeated.append((kind, row))
        else:
            shapes_taken.add(shape)
            yield kind, row
    yield from repeated[: most - len(shapes_taken)]
