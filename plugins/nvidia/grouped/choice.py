"""Which tiles nvidia.grouped tries, and in which order."""

from __future__ import annotations

import dataclasses
import functools
import math

from convdispatch.api import ConvProblem

from ..hopper import LOCAL_LIMIT
from ..pace import COPY
from .tiling import GroupedTile, GroupedTiling

_CLOCK = 1.7e9
# Fitted to 418 timings on an H200, 0.20 root mean square of the logarithm.
_ISSUED = 1.95  # instructions a cycle that four schedulers reach together
_COPIED, _FILLED, _WRITTEN = 13, 97, 11.5  # instructions of a copy, of two registers of weights, of a place's results
_READ, _WEIGHTS, _PRODUCT = 1.0, 1.9, 2.8  # cycles of ldmatrix, of two registers of weights, of tensor cores
_ARRIVAL = 2500  # cycles from a region's first copy to its first product
_MEMORY = 0.47  # of a copy's bandwidth
_LAUNCH, _FILL = 0.9e-6, 0.7e-6  # seconds: of a launch, and from a tile's first read to its last write
_TILES = [(frag_m, warps) for frag_m in (1, 2, 4) for warps in (4, 8)]


def _resident(tiling: GroupedTiling) -> int:
    """Work groups of a multiprocessor at a time."""
    registers = 40 + 16 * tiling.tile.frag_m + 6 * tiling.tile.frag_m
    return max(1, min(65536 // (registers * tiling.tile.items), LOCAL_LIMIT // (tiling.local_bytes + 1024), 24))


def seconds(tiling: GroupedTiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds on a device of ``units`` multiprocessors."""
    t, pairs, resident = tiling.tile, len(tiling.pairs), _resident(tiling)
    taps = tiling.taps * tiling.sources
    copies = -(-tiling.region.pixels * tiling.sources * 4 // t.items)
    products = taps * (2 * t.frag_m + pairs * (1 + t.frag_m))
    results = len(tiling.geometry.phases) * 2 * t.frag_m * _WRITTEN
    issued = t.warps * (copies * _COPIED + products + results) / _ISSUED
    read = t.warps * (copies * 8 + taps * (2 * t.frag_m * _READ + pairs * _WEIGHTS))
    work = math.hypot(issued, read, t.warps * taps * pairs * t.frag_m * _PRODUCT)
    filled = taps * pairs * _FILLED / _ISSUED
    groups = -(-tiling.work_groups // units)
    waves, rest = divmod(groups, resident)

    def together(count: int) -> float:
        return t.turns * max(count * work, work + _ARRIVAL) + count * filled

    cycles = waves * together(resident) + (together(rest) if rest else 0)
    return math.hypot(cycles / _CLOCK, tiling.problem.bytes / (_MEMORY * copy)) + _LAUNCH + _FILL


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[GroupedTile, ...]:
    """Tiles, the fastest by prediction first."""
    tilings = []
    for frag_m, warps in _TILES:
        one = GroupedTiling(problem, GroupedTile(frag_m, warps))
        if one.misfit is not None:
            continue
        room = units * _resident(one)
        for turns in {1, -(-one.work_groups // room), -(-2 * one.work_groups // room)}:
            tilings.append(dataclasses.replace(one, tile=GroupedTile(frag_m, warps, turns)))
    return tuple(tiling.tile for tiling in sorted(tilings, key=lambda tiling: seconds(tiling, units)))
