"""Which tiles nvidia.grouped tries, and their predicted time.

The constants of Costs were fitted to 418 timings on an H200 (rms error of the logarithm 0.20), those of SumsCosts to
268 timings (0.18).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

from convdispatch.api import ConvProblem

from ..instructions import LOCAL_LIMIT
from ..pace import CLOCK, COPY
from .tiling import GroupedSums, GroupedTile, GroupedTiling, SumsTile


class Costs:
    """Constants of the cost model of forward and data gradient."""

    ISSUE_RATE = 1.95  # instructions per cycle that the four schedulers of a multiprocessor issue
    COPY_INSTRUCTIONS = 13  # instructions per 16-byte copy of a work item
    FILL_INSTRUCTIONS = 97  # instructions that fill two registers with weights
    RESULT_INSTRUCTIONS = 11.5  # instructions that store the results of an output pixel
    LDMATRIX_CYCLES = 1.0  # cycles of local memory per ``ldmatrix``
    WEIGHT_CYCLES = 1.9  # cycles of local memory per two registers of weights
    MMA_CYCLES = 2.8  # cycles of tensor cores per ``mma``
    ARRIVAL_CYCLES = 2500  # cycles from the first copy of a region to its first product
    MEMORY_SHARE = 0.47  # memory bandwidth of the kernel, relative to a copy's
    LAUNCH_SECONDS = 0.9e-6
    FILL_SECONDS = 0.7e-6  # seconds from the first read of a tile to its last write


class SumsCosts:
    """Constants of the cost model of the weight gradient."""

    ISSUE_RATE = 2.6  # instructions per cycle that the four schedulers of a multiprocessor issue
    COPY_INSTRUCTIONS = 34  # instructions per 16-byte copy of a work item
    RESULT_INSTRUCTIONS = 36  # instructions that store a sum
    LDMATRIX_CYCLES = 0.34  # cycles of local memory per ``ldmatrix``
    MMA_CYCLES = 2.9  # cycles of tensor cores per ``mma``
    ARRIVAL_CYCLES = 2900  # cycles from the first copy of a region to its first product
    MEMORY_SHARE = 0.53  # memory bandwidth of the kernel, relative to a copy's
    LAUNCH_SECONDS = 2.2e-6  # seconds of both launches: the products, and the sum of their parts
    FILL_SECONDS = 1.5e-6  # seconds from the first read of a part to its last write


def _resident(tiling: GroupedTiling) -> int:
    """Work groups that are resident on a multiprocessor."""
    registers = 40 + 16 * tiling.tile.frag_m + 6 * tiling.tile.frag_m
    return max(1, min(65536 // (registers * tiling.tile.items), LOCAL_LIMIT // (tiling.local_bytes + 1024), 24))


def seconds(tiling: GroupedTiling | GroupedSums, units: int, copy: float = COPY) -> float:
    """Predicted seconds on a device of ``units`` multiprocessors."""
    return (_sums_seconds if isinstance(tiling, GroupedSums) else _seconds)(tiling, units, copy)  # type: ignore


def least(problem: ConvProblem, copy: float) -> float:
    """Seconds below which no tile is predicted: each tensor moved once."""
    costs = SumsCosts if problem.direction == "bwd_weights" else Costs
    return problem.bytes / (costs.MEMORY_SHARE * copy) + costs.LAUNCH_SECONDS + costs.FILL_SECONDS


def _seconds(tiling: GroupedTiling, units: int, copy: float) -> float:
    t, pairs, resident = tiling.tile, len(tiling.pairs), _resident(tiling)
    taps = tiling.taps * tiling.sources
    copies = -(-tiling.region.pixels * tiling.sources * 4 // t.items)
    products = taps * (2 * t.frag_m + pairs * (1 + t.frag_m))
    results = len(tiling.geometry.phases) * 2 * t.frag_m * Costs.RESULT_INSTRUCTIONS
    issued = t.warps * (copies * Costs.COPY_INSTRUCTIONS + products + results) / Costs.ISSUE_RATE
    local_cycles = t.warps * (copies * 8 + taps * (2 * t.frag_m * Costs.LDMATRIX_CYCLES + pairs * Costs.WEIGHT_CYCLES))
    group_cycles = math.hypot(issued, local_cycles, t.warps * taps * pairs * t.frag_m * Costs.MMA_CYCLES)
    fill_cycles = taps * pairs * Costs.FILL_INSTRUCTIONS / Costs.ISSUE_RATE
    groups = -(-tiling.work_groups // units)
    waves, last_wave = divmod(groups, resident)

    def together(count: int) -> float:
        """Cycles of ``count`` work groups that run simultaneously on one multiprocessor."""
        return t.turns * max(count * group_cycles, group_cycles + Costs.ARRIVAL_CYCLES) + count * fill_cycles

    cycles = waves * together(resident) + (together(last_wave) if last_wave else 0)
    total = math.hypot(cycles / CLOCK, tiling.problem.bytes / (Costs.MEMORY_SHARE * copy))
    return total + Costs.LAUNCH_SECONDS + Costs.FILL_SECONDS


def _sums_seconds(tiling: GroupedSums, units: int, copy: float) -> float:
    columns, pairs, warps, runs = tiling.geometry.kernel[2], len(tiling.pairs), tiling.items // 32, tiling.runs
    sums = columns * pairs * 4
    resident = max(
        1, min(65536 // ((48 + sums) * tiling.items), LOCAL_LIMIT // (tiling.local_bytes + 1024), 2048 // tiling.items)
    )
    copies = -(-(tiling.region.pixels + runs * 16) * 4 // tiling.items)
    turns = -(-runs // tiling.tile.split)
    issued = (
        warps * (copies * SumsCosts.COPY_INSTRUCTIONS + turns * (12 + columns * (2 + pairs))) / SumsCosts.ISSUE_RATE
    )
    local_cycles = warps * (copies * 8 + turns * SumsCosts.LDMATRIX_CYCLES * (2 + 2 * columns))
    region_cycles = math.hypot(issued, local_cycles, warps * turns * columns * pairs * SumsCosts.MMA_CYCLES)
    waves, last_wave = divmod(-(-tiling.work_groups // units), resident)
    cycles = sum(
        tiling.per * max(count * region_cycles, region_cycles + SumsCosts.ARRIVAL_CYCLES)
        + count * warps * sums * SumsCosts.RESULT_INSTRUCTIONS / SumsCosts.ISSUE_RATE
        for count in [resident] * waves + [last_wave] * (last_wave > 0)
    )
    total = math.hypot(cycles / CLOCK, tiling.problem.bytes / (SumsCosts.MEMORY_SHARE * copy))
    return total + SumsCosts.LAUNCH_SECONDS + SumsCosts.FILL_SECONDS + 2 * tiling.workspace_size / copy


def _tilings(problem: ConvProblem, units: int) -> Iterator[GroupedTiling]:
    for frag_m, warps in itertools.product((1, 2, 4), (4, 8)):
        tiling = GroupedTiling(problem, GroupedTile(frag_m, warps))
        if tiling.misfit is None:
            resident = units * _resident(tiling)
            for turns in {1, -(-tiling.work_groups // resident), -(-2 * tiling.work_groups // resident)}:
                yield dataclasses.replace(tiling, tile=GroupedTile(frag_m, warps, turns))


def _sums_tilings(problem: ConvProblem, units: int) -> Iterator[GroupedSums]:
    for split, pixels in itertools.product((1, 2, 3), (64, 128, 256)):
        tiling = GroupedSums(problem, SumsTile(1, split, pixels))
        if tiling.misfit is None:
            counts = {max(1, min(tiling.regions, units * n // tiling.slab_pairs)) for n in (1, 2, 3, 4, 6, 8)}
            for parts in sorted(counts):
                yield GroupedSums(problem, SumsTile(parts, split, pixels))


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[GroupedTile | SumsTile, ...]:
    """Tiles, the fastest by prediction first."""
    tilings = (_sums_tilings if problem.direction == "bwd_weights" else _tilings)(problem, units)
    return tuple(tiling.tile for tiling in sorted(tilings, key=lambda tiling: seconds(tiling, units)))
