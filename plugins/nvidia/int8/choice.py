"""Which tiles ``nvidia.int8`` tries, and in which order: tensor cores, waves, memory."""

from __future__ import annotations

import dataclasses
import functools
import math

from convdispatch.api import ConvProblem

from ..instructions import LOCAL_LIMIT
from ..pace import COPY, read_share
from .tiling import Int8Tile, Int8Tiling, tiling_of

_CLOCK = 1.7e9
# Fitted to 323 tiles of ResNet-50's layers in CUDA graphs on an H200: 0.15 root mean square of the logarithm; the first
# by prediction takes 1.03 times as long as the fastest, 1.11 at most.
_MACS = {"mma": 1350.0, "wgmma": 2440.0, "tma": 2520.0, "halo": 2520.0}
"""Multiply-adds a cycle of a multiprocessor."""
_COPIED, _SHARED = 53.0, 26.7  # bytes a cycle from the L2 cache: of one multiprocessor, and of each where all copy
_HALF_ROWS = 1.5  # copies of 64-byte rows by the copy engine, in times of those of 128 bytes
_LATENCY = 1230.0  # cycles of a copy
_SLICE, _TILE = 7.0, 205.0  # ``tma``: cycles beside a slice's and a tile's products
_OVERLAPPED = 1.28  # ``tma``: what a tile's end costs where several work groups take turns
_BEGIN = {"mma": 1630.0, "wgmma": 1630.0, "tma": 180.0, "halo": 180.0}  # cycles of a launch
_FILL = 540.0  # cycles of a tile before and after its slices
_WRITTEN, _ADDED = 10.9, 4.8  # elements of y a cycle; with a residual
_MEMORY = 0.8  # of a copy's bandwidth
_WIDE = 1.3  # times that a tile's sums take to leave where a work item holds 128 of them
_HIDDEN = 4.4  # 1: products and memory add up; the larger, the more of one the other hides
_START, _PACK = 2.2e-6, 1.6e-6  # seconds of the launch, and of the one that packs weights
_MOST, _DEEPEST = 16, 8
_STAYING = ("tma", "halo")
_SHAPES = {
    "mma": ((32, 64, 2, 2), (64, 32, 4, 1), (64, 64, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 128, 2, 4),
            (128, 128, 4, 2), (128, 256, 2, 4), (256, 128, 4, 2), (256, 64, 4, 2)),
    "wgmma": ((64, 64, 1, 1), (64, 128, 1, 1), (128, 64, 2, 1), (128, 128, 2, 1), (128, 256, 2, 1), (256, 128, 4, 1)),
    "tma": ((64, 64, 1, 1), (64, 128, 1, 1), (64, 256, 1, 1), (128, 64, 2, 1), (128, 96, 2, 1), (128, 128, 2, 1),
            (128, 192, 2, 1), (128, 256, 2, 1), (192, 128, 3, 1), (256, 64, 4, 1), (256, 128, 4, 1)),
    "halo": ((64, 64, 1, 1), (64, 128, 1, 1), (128, 64, 2, 1), (128, 128, 2, 1), (192, 64, 3, 1), (192, 128, 3, 1),
             (256, 64, 4, 1)),
}  # fmt: skip
"""(bm, bn, wm, wn)."""


def seconds(tiling: Int8Tiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t, p = tiling.tile, tiling.problem
    resident, groups = tiling.resident, tiling.work_groups
    copied = tiling.copied * (_HALF_ROWS if t.engine in _STAYING and t.bk == 64 else 1.0)
    work = max(t.bm * t.bn * tiling.row_bytes / _MACS[t.engine], copied / _COPIED)  # of a tile
    added = min(_ADDED, resident * t.items / 64)  # few warps wait for what they add
    leaving = t.bm * t.bn / (added if p.residual and p.out_itemsize == 1 else _WRITTEN)

    leaving *= _WIDE if t.engine in _STAYING and t.bn == 256 else 1.0

    def together(count: int) -> float:
        return max(count * work, tiling.slices * _LATENCY / t.ahead) + _FILL + count * leaving if count else 0.0

    if t.engine in _STAYING:  # work groups stay, and what they copy next is on its way
        turns = math.ceil(groups / units)
        product = work + tiling.slices * _SLICE
        product = max(product, tiling.slices * _LATENCY / (t.ahead * max(1, min(resident, turns))))
        cycles = turns * (product + (_TILE + leaving) * (1.0 if resident == 1 else _OVERLAPPED))
    else:
        waves, rest = divmod(groups, units * resident)
        cycles = waves * together(resident) + together(-(-rest // units))
    cycles = max(cycles + _BEGIN[t.engine], groups * copied / (_SHARED * units) + _BEGIN["tma"])
    moved = math.prod(p.x_shape) * read_share(p) + math.prod(p.w_shape)
    moved += math.prod(p.y_shape) * p.out_itemsize * (2 if p.residual else 1)
    total = ((cycles / _CLOCK) ** _HIDDEN + (moved / (_MEMORY * copy)) ** _HIDDEN) ** (1 / _HIDDEN) + _START
    return total if p.constant_weights else total + _PACK + 2 * tiling.packed_size / copy


def _stages(tiling: Int8Tiling) -> set[int]:
    """As many as local memory holds of one to four work groups, and no more than a sum has slices."""
    t = tiling.tile
    beside = tiling.local_bytes - t.stages * tiling.stage_bytes if t.engine in _STAYING else 8 * t.bn
    rooms = [(LOCAL_LIMIT + 1024) // resident - 1024 - beside for resident in (1, 2, 3, 4)]
    most = min(_DEEPEST, tiling.slices + 2)
    return {stages for room in rooms if (stages := min(room // (tiling.stage_bytes + 16), most)) > 2}


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int, engines: tuple[str, ...]) -> tuple[Int8Tile, ...]:
    """Tiles, the fastest by prediction first."""
    found = []
    for engine in engines:
        for shape in _SHAPES[engine]:
            for bk in (64, 128):
                tile = Int8Tile(*shape, bk, 3, engine)
                for stages in _stages(tiling_of(problem, tile)):
                    tiling = tiling_of(problem, dataclasses.replace(tile, stages=stages))
                    found += [tiling] if tiling.misfit is None else []
    rated = sorted(found, key=lambda each: (seconds(each, units), -each.tile.bk, -each.tile.stages))
    return tuple(tiling.tile for tiling in rated[:_MOST])
