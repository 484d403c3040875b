"""Which tiles ``nvidia.tma`` tries, and their predicted time: tensor cores, waves, memory.

The constants were fitted to timings of random problems on an H100 and an H200, and then again on an H200 to 746 tiles
of 123 layers, most of which cuDNN computed faster, with operands not in the cache, and to the first choices of 298
layers in CUDA graphs (rms error of the logarithm 0.13). Of the half of the layers that were not fitted to, the chosen
tile takes 1.5 % longer than the best timed one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

from convdispatch.api import ConvProblem

from ..instructions import LOCAL_LIMIT
from ..pace import CLOCK, COPY, read_share, sums_seconds
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


def _unaligned(row_bytes: int) -> float:
    """Time of rows with a stride of ``row_bytes`` in memory over that of rows with a stride of a multiple of 128."""
    return UNALIGNED_FACTOR[math.gcd(row_bytes, 128)]


def seconds(tiling: TmaTiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
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
    slice_of = max(macs, copy_cycles, local_cycles, norm_cycles) + SLICE_CYCLES
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
        waits = COUNT_CYCLES * t.split if simultaneous else TAKE_CYCLES * t.bn / 32 / t.split
        tile_cycles += FIXUP_CYCLES + waits + t.bm * t.bn * 4 / FIXUP_BYTES_PER_CYCLE
    cycles = begin = 0.0
    for phase in tiling.phases:  # cycles of the busiest work group, phase by phase
        end = begin + tiling.tiles // len(tiling.phases)
        tiles = math.ceil(end / units) - math.ceil(begin / units)
        product = phase.slices / t.split * slice_of * (1 + SHARING_FACTOR * (t.resident - 1))
        cycles += tiles * (product + tile_cycles / t.resident)
        if t.turns:  # all but the last tile leave while the next one is multiplied
            cycles -= (1 - TURNS_SHARE) * tile_cycles * (tiles - 1)
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
        if problem.normalised:
            total += REWRITE_SECONDS + 2 * source.bytes / copy
        else:
            total += REWRITE_SECONDS + GATHER_SECONDS * source.bytes / size * 132 / units
    total += sums_seconds(tiling, copy, tiling.sums_rows(units))
    return total + (SUM_SECONDS + tiling.partial_bytes / (SUM_MEMORY_SHARE * copy) if tiling.partial else 0)


def _parts(tiling: TmaTiling, units: int) -> list[int]:
    """Numbers of parts of the sum that fill the device with work groups once, twice and three times, and a few more."""
    resident, slices = units * tiling.tile.resident, max(tiling.slices)
    counts = {max(1, times * resident // tiling.sums) for times in (1, 2, 3)} | {2, 3, 4, 8}
    return sorted(parts for parts in counts if 1 < parts <= slices // 2 and parts * tiling.sums <= 4 * resident)


def _shapes(row_bytes: int) -> Iterator[tuple[int, int, bool, int, int]]:
    """(bm, bn, turns, work groups per multiprocessor, stages), with as many stages as local memory holds."""
    for bm in (256, 192, 128, 64):  # of tiles of equal predictions the higher one, which was 1 to 2 % faster
        for bn in (32, 64, 96, 128, 160, 192, 224, 256):
            # Turns of other tiles were as fast as the tiles without, or slower.
            kinds = [(False, resident) for resident in (1, 2, 3, 4)] + [(True, 1)] * (bm == bn == 128)
            for turns, resident in kinds:
                if is_large(bn, 256 if turns else 2 * bm, resident):
                    continue
                stages = (LOCAL_LIMIT + 1024) // resident // ((bm + bn) * row_bytes + 16) - (resident > 1)
                if stages >= 3:
                    yield bm, bn, turns, resident, min(stages, 7 * 128 // row_bytes)


def _tilings(unfolded: ConvProblem, units: int, pixels: int) -> Iterator[TmaTiling]:
    taps = gathers(unfolded)
    problem = gathered(unfolded, taps) if taps else folded(unfolded, pixels)
    data, channels = problem.direction != "bwd_weights", problem.oc if problem.direction == "bwd_data" else problem.ic
    box_channels = 128 // problem.itemsize  # channels of a copied box; half as many where that saves copies
    half = box_channels // 2
    widths = (box_channels, half) if -(channels // problem.g) % box_channels >= half else (box_channels,)
    format_name = "tf32" if problem.dtype == "float32" else problem.dtype

    def fitting(tile: TmaTile, **changes: Any) -> TmaTiling | None:
        tiling = TmaTiling(problem, dataclasses.replace(tile, **changes) if changes else tile)
        return tiling if tiling.misfit is None else None

    for width, depth in ((width, width if data else 64) for width in widths):
        for bm, bn, turns, resident, stages in _shapes(depth * problem.itemsize):
            base = TmaTile(bm, bn, 2 if turns else bm // 64, 1, format_name, "wgmma", depth, stages, resident=resident,
                            block=64 if data else width, pixels=pixels, taps=taps, turns=turns)  # fmt: skip
            tiling = fitting(base) or fitting(base, stages=stages - 1)
            if tiling is None:
                continue
            kinds: list[dict[str, Any]] = [{}]
            for split, fixup in itertools.product(() if turns else _parts(tiling, units), (False, True)):
                if not (fixup and (split > MAX_FIXUP_PARTS or resident > 1)):
                    kinds.append({"split": split, "fixup": fixup})
            in_place = [{"norm_in_place": True}] if problem.normalised and data else []
            for kind in kinds:
                plain = fitting(tiling.tile, **kind) if kind else tiling
                also = (fitting(tiling.tile, **kind, **more) for more in in_place)
                yield from (each for each in (plain, *also) if each is not None)


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[TmaTile, ...]:
    """Tiles, the fastest by prediction first."""
    tilings = (tiling for pixels in folds(problem) for tiling in _tilings(problem, units, pixels))
    return tuple(each.tile for each in sorted(tilings, key=lambda tiling: seconds(tiling, units))[:MAX_CHOICES])
