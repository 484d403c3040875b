"""Which tiles ``nvidia.tma`` tries, and their predicted time: tensor cores, waves, memory.

The constants were fitted to timings of random problems on an H100 and an H200, and then again on an H200 to 746 tiles
of 123 layers, most of which cuDNN computed faster, with operands not in the cache, and to the first choices of 298
layers in CUDA graphs (rms error of the logarithm 0.13). Of the half of the layers that were not fitted to, the chosen
tile takes 1.5 % longer than the best timed one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem
from convdispatch.api.matrix import fitting, largest, many, usual

from ..instructions import LOCAL_LIMIT
from ..pace import CLOCK, COPY, read_share, sums_seconds
from ..usual import usual_tiles
from .rewriting import folded, folds, gathered, gathers
from .tiling import TmaTile, TmaTiling, is_large

MACS = 2030.0  # multiply-adds per cycle of a multiprocessor, of 16-bit numbers; TF32 reaches half as many
COPY_BYTES_PER_CYCLE = 71.5  # bytes per cycle from the L2 cache into local memory
SHORT_ROW_FACTOR = 1.51  # time of copying 64-byte rows over that of rows of 128 bytes
UNALIGNED_FACTOR = {128: 1.0, 64: 1.25, 32: 1.62, 16: 2.58}
"""Time of rows, relative to aligned ones, by the largest power of two up to 128 that divides their pitch in bytes."""
LOCAL_BYTES_PER_CYCLE = 139.0  # bytes per cycle into and out of local memory
# Fraction by which products slow down per further work group of a multiprocessor: fewer slices are in flight.
SHARING_FACTOR = 1.21
SLICE_CYCLES = 16.3  # cycles of a K-slice beyond its products
TILE_CYCLES = 752.0  # cycles of a tile beyond its products
STORE_BYTES_PER_CYCLE = 32.4  # bytes of results that a multiprocessor stores per cycle
TURNS_SHARE = 0.72  # share of a tile's cycles beyond its products that multiplying another one does not hide
MEMORY_SHARE = 1.0  # memory bandwidth relative to a copy's, if each tensor is counted once
OVERLAP = 2.84  # exponent that joins the times of products and memory: 1 adds them, a large one takes the longer
START_SECONDS = 2.0e-6  # seconds of a launch on a CUDA stream
SUM_SECONDS = 0.73e-6  # seconds of the launch that adds partial sums
SUM_MEMORY_SHARE = 0.53  # memory bandwidth of writing and adding partial sums, relative to a copy's
FIXUP_CYCLES = 6700.0  # cycles that a tile takes longer if work groups of the product add its partial sums
FIXUP_BYTES_PER_CYCLE = 9.3  # bytes of results per cycle, if work groups of the product add partial sums
COUNT_CYCLES = 1000.0  # cycles until a work group has counted its part of a tile
TAKE_CYCLES = 1450.0  # cycles until 32 columns of partial sums are taken over
REWRITE_SECONDS = 1.5e-6  # seconds of the launch that writes folded, widened or transposed weights
TURN_SHARE = {2: 0.39, 4: 0.59}
"""Memory bandwidth of turning tensors of so many bytes an element, relative to a copy's: of 40 layers in CUDA graphs on
an H200, by single elements; since then four at once are read and written."""
GATHER_SECONDS = 0.96e-12  # seconds per element of a first layer's rewritten source, on 132 multiprocessors
SUMS_CYCLES = {False: 450.0, True: 700.0}
"""Cycles in which a warp sums 32 columns of a tile as it stores them, by whether a norm's gradient is taken. The first
of ResNet-50's layers in a training step on an H200, the second counted (273 instructions, of two warps in turns) and
found there."""
MERGE_CYCLES = 600.0  # cycles in which the warps of a work group merge their sums of channels, between two barriers
NORM_CYCLES = 0.12
"""Cycles of a number of x that is normalised in registers: 0.063 are its instructions. 512 to 128 channels at 28x28
took 26 us on an H200, 19 without a norm and 65 with a launch that normalises before."""
MAX_FIXUP_PARTS = 4  # most partial sums that work groups of the product add: more wait for each other's counters
MAX_CHOICES = 24  # most tiles that are offered to a search
NUMBERS = ("bm", "bn", "wm", "stages", "resident", "split", "turns")
"""Fields of a TmaTile that are arrays when many tiles are rated together."""


def _unaligned(row_bytes: int) -> float:
    """Time of rows with a stride of ``row_bytes`` in memory over that of rows with a stride of a multiple of 128."""
    return UNALIGNED_FACTOR[math.gcd(row_bytes, 128)]


def seconds(tiling: TmaTiling, units: int, copy: float = COPY) -> Any:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors, for one tile or for many."""
    t, problem, size = tiling.tile, tiling.problem, tiling.itemsize
    c, m = problem.ic * size, problem.oc * size
    source, target = (c, m) if problem.direction == "fwd" else (m, c)
    a, b = (source, source if problem.direction == "fwd" else c) if tiling.data else (m, c)
    half_a, half_b = (SHORT_ROW_FACTOR if bytes_of == 64 else 1 for bytes_of in (tiling.row_bytes, tiling.b_row_bytes))
    copied = tiling.a_bytes * half_a * _unaligned(a) + tiling.b_bytes * half_b * _unaligned(b)
    copy_cycles = copied / COPY_BYTES_PER_CYCLE
    macs = t.bm * t.bn * t.bk / MACS * size / 2
    # Each group of four warps reads its rows of A and all of B from local memory, after they have been written there.
    read = tiling.a_bytes + t.bm // 64 * tiling.b_bytes
    local_cycles = (tiling.a_bytes + tiling.b_bytes + read) / LOCAL_BYTES_PER_CYCLE
    norm_cycles = NORM_CYCLES * t.bk * t.bm if t.norm_in_place else 0.0
    slice_of = functools.reduce(largest, (macs, copy_cycles, local_cycles, norm_cycles)) + SLICE_CYCLES
    tile_cycles = (
        TILE_CYCLES
        + t.bm
        * t.bn
        * (4 if tiling.partial else size * _unaligned(target if tiling.data else c))
        / STORE_BYTES_PER_CYCLE
    )
    if tiling.summed:
        tile_cycles += SUMS_CYCLES[problem.masked] * t.bn / 32
        tile_cycles += MERGE_CYCLES * tiling.sums_rows(units) / tiling.sums_parts
    # If all tiles run simultaneously, parts are counted one after another; otherwise a tile's last work group adds
    # them.
    if t.fixup:
        simultaneous = tiling.tiles <= tiling.groups(units)
        waits = np.where(simultaneous, COUNT_CYCLES * t.split, TAKE_CYCLES * t.bn / 32 / t.split)
        tile_cycles = tile_cycles + (FIXUP_CYCLES + waits + t.bm * t.bn * 4 / FIXUP_BYTES_PER_CYCLE)
    cycles, begin = 0.0, 0
    for phase in tiling.phases:  # cycles of the busiest work group, phase by phase
        end = begin + tiling.tiles // len(tiling.phases)
        tiles = -(-end // units) - -(-begin // units)
        product = phase.slices / t.split * slice_of * (1 + SHARING_FACTOR * (t.resident - 1))
        cycles = cycles + tiles * (product + tile_cycles / t.resident)
        # In turns all but the last tile leave while the next one is multiplied.
        cycles = cycles - (t.turns != 0) * ((1 - TURNS_SHARE) * tile_cycles * (tiles - 1))
        begin = end
    bytes_moved = size * (
        math.prod(problem.x_shape) * read_share(problem) + sum(map(math.prod, (problem.w_shape, problem.y_shape)))
    )
    bytes_moved += size * math.prod(problem.x_shape) * problem.masked
    joined = (cycles / CLOCK) ** OVERLAP + (bytes_moved / (MEMORY_SHARE * copy)) ** OVERLAP
    total = joined ** (1 / OVERLAP) + START_SECONDS
    if tiling.weights_bytes and not problem.constant_weights:
        total += REWRITE_SECONDS
    for source in tiling.sources:
        if problem.normalised or t.turned:
            share = TURN_SHARE[size] if t.turned else 1.0
            total += REWRITE_SECONDS + 2 * source.bytes / (share * copy)
        else:
            total += REWRITE_SECONDS + GATHER_SECONDS * source.bytes / size * 132 / units
    if t.turned:
        total += REWRITE_SECONDS + 2 * tiling.result_bytes / (TURN_SHARE[size] * copy)
    total += sums_seconds(tiling, copy, tiling.sums_rows(units))
    return total + (SUM_SECONDS + tiling.partial_bytes / (SUM_MEMORY_SHARE * copy) if tiling.partial else 0)


@functools.lru_cache(maxsize=16)
def _shapes(row_bytes: int) -> np.ndarray:
    """One row of ``NUMBERS`` a shape of tiles, with as many stages as local memory holds."""
    shapes = []
    for bm in (256, 192, 128, 64):  # of tiles of equal predictions the higher one, which was 1 to 2 % faster
        for bn in (32, 64, 96, 128, 160, 192, 224, 256):
            # Turns of other tiles were as fast as the tiles without, or slower.
            kinds = [(False, resident) for resident in (1, 2, 3, 4)] + [(True, 1)] * (bm == bn == 128)
            for turns, resident in kinds:
                if is_large(bn, 256 if turns else 2 * bm, resident):
                    continue
                stages = (LOCAL_LIMIT + 1024) // resident // ((bm + bn) * row_bytes + 16) - (resident > 1)
                if stages >= 3:
                    stages = min(stages, 7 * 128 // row_bytes)
                    shapes.append((bm, bn, 2 if turns else bm // 64, stages, resident, 1, turns))
    return np.array(shapes, np.int64)


def _parts(tiling: TmaTiling, units: int) -> np.ndarray:
    """Rows of (number of a tile, parts of its sum): parts that fill the device with work groups once, twice and three
    times, and a few more."""
    sums, resident = tiling.sums[:, None], units * tiling.tile.resident[:, None]
    few = np.broadcast_to((2, 3, 4, 8), (len(sums), 4))
    counts = np.sort(np.concatenate([*(times * resident // sums for times in (1, 2, 3)), few], axis=1), axis=1)
    tried = (counts > 1) & (counts <= max(tiling.slices) // 2) & (counts * sums <= 4 * resident)
    tried &= tiling.tile.turns[:, None] == 0
    tried[:, 1:] &= counts[:, 1:] != counts[:, :-1]
    return np.stack([tried.nonzero()[0], counts[tried]], axis=1)


_Rated = tuple[TmaTile, np.ndarray, np.ndarray, np.ndarray]
"""The fields that tiles share, and for each tile a row of ``NUMBERS``, its predicted seconds, and its rank: of equal
predictions that of the lower rank goes first."""


def _rated(problem: ConvProblem, base: TmaTile, units: int) -> Iterator[_Rated]:
    """The tiles that fit."""

    def tilings(tile: TmaTile, rows: np.ndarray) -> TmaTiling:
        return TmaTiling(problem, many(tile, NUMBERS, rows))

    whole = _shapes(base.bk * problem.itemsize).copy()
    misfits = ~fitting(tilings(base, whole), len(whole))
    whole[misfits, NUMBERS.index("stages")] -= 1
    fewer = whole[misfits]
    misfits[misfits] = ~fitting(tilings(base, fewer), len(fewer))
    whole = whole[~misfits]
    if not len(whole):
        return
    tiling = tilings(base, whole)
    yield base, whole, seconds(tiling, units), np.arange(len(whole)) << 40
    parts = _parts(tiling, units)
    split = whole[parts[:, 0]]
    split[:, NUMBERS.index("split")] = parts[:, 1]
    by_groups = (parts[:, 1] <= MAX_FIXUP_PARTS) & (split[:, NUMBERS.index("resident")] == 1)
    in_place = (False, True) if problem.normalised and problem.direction == "fwd" else (False,)
    kinds = [(False, normed, whole, np.arange(len(whole))) for normed in in_place[1:]]
    kinds += [(False, normed, split, parts[:, 0]) for normed in in_place]
    kinds += [(True, normed, split[by_groups], parts[by_groups, 0]) for normed in in_place]
    for fixup, normed, rows, numbers in kinds:
        if len(rows):
            tile = dataclasses.replace(base, fixup=fixup, norm_in_place=normed)
            tiling = tilings(tile, rows)
            fits = fitting(tiling, len(rows))
            if fits.any():
                ranks = (numbers << 40) + 4 * rows[:, NUMBERS.index("split")] + 2 * fixup + normed
                yield tile, rows[fits], seconds(tiling, units)[fits], ranks[fits]


def tile_of(shared: TmaTile, row: np.ndarray) -> TmaTile:
    """The tile of one row of ``NUMBERS``."""
    fields = dict(zip(NUMBERS, row.tolist(), strict=True))
    return dataclasses.replace(shared, **fields | {"turns": bool(fields["turns"])})


def _bases(unfolded: ConvProblem) -> Iterator[tuple[ConvProblem, TmaTile]]:
    """Problems of folded pixels or gathered taps, each with the fields that its tiles share."""
    taps, turned = gathers(unfolded), unfolded.layout == "nchw"
    for pixels in folds(unfolded):
        problem = gathered(unfolded, taps) if taps else folded(unfolded, pixels)
        problem = problem.replace(layout="nhwc") if turned else problem
        data = problem.direction != "bwd_weights"
        channels = problem.oc if problem.direction == "bwd_data" else problem.ic
        box_channels = 128 // problem.itemsize  # channels of a copied box; half as many where that saves copies
        half = box_channels // 2
        widths = (box_channels, half) if -(channels // problem.g) % box_channels >= half else (box_channels,)
        name = "tf32" if problem.dtype == "float32" else problem.dtype
        for width, depth in ((width, width if data else 64) for width in widths):
            block = 64 if data else width
            yield (
                problem,
                TmaTile(0, 0, 0, 1, name, "wgmma", depth, block=block, pixels=pixels, taps=taps, turned=turned),
            )


def rated(problem: ConvProblem, units: int) -> tuple[list[TmaTile], np.ndarray, np.ndarray]:
    """Tiles, the fastest by prediction first: (the fields that each shares, rows of ``NUMBERS``, predicted seconds)."""
    kinds = [(place, kind) for place, each in enumerate(_bases(problem)) for kind in _rated(*each, units)]
    if not kinds:
        return [], *(np.zeros(0),) * 2
    rows, costs = (np.concatenate([kind[part] for _, kind in kinds]) for part in (1, 2))
    ranks = np.concatenate([ranks + (place << 48) for place, (*_, ranks) in kinds])
    tiles = [tile for _, (tile, each, *_) in kinds for _ in each]
    order = np.lexsort((ranks, costs))
    return [tiles[place] for place in order], rows[order], costs[order]


def name_of(tile: TmaTile) -> str:
    """A tile's name in ``USUAL``."""
    numbers = (tile.bm, tile.bn, tile.bk, tile.stages, tile.resident, tile.block, tile.pixels, tile.taps)
    return "x".join(map(str, numbers)) + "t" * tile.turns + "f" * tile.fixup + "+" * (tile.split > 1)


def choices(problem: ConvProblem, units: int) -> Iterator[TmaTile]:
    """A usual tile, then the fastest by prediction."""
    tiles, rows, costs = rated(problem, units)
    if not tiles:
        return
    names = (name_of(tile_of(*each)) for each in zip(tiles, rows, strict=True))
    first = usual(costs, names, usual_tiles(f"tma {problem.direction} {problem.itemsize}"))
    others = [place for place in range(min(len(tiles), MAX_CHOICES)) if place != first]
    for place in (first, *others[: MAX_CHOICES - 1]):
        yield tile_of(tiles[place], rows[place])
