"""Which tiles ``nvidia.int8`` tries, and in which order: tensor cores, waves, memory."""

from __future__ import annotations

import dataclasses
import functools
import math

from convdispatch.api import ConvProblem

from ..hopper import LOCAL_LIMIT
from ..pace import COPY, read_share
from .stream import tiling_of
from .tiling import Int8Tile, Int8Tiling

__all__ = ["choices", "seconds"]

_CLOCK = 1.7e9
_MACS = {"mma": 1800.0, "wgmma": 2800.0, "tma": 3200.0}
"""Multiply-adds a cycle of a multiprocessor."""
_COPIED = 60.0  # bytes a cycle from the L2 cache into local memory
_LATENCY = 1000.0  # cycles of a copy
_SLICE, _TILE, _FIRST, _SHARED = 10.0, 800.0, 1500.0, 0.4  # ``tma``: cycles beside a slice's and a tile's products
_FILL, _WRITTEN = 2200.0, 12.0  # cycles of a tile before and after its slices; elements of y a cycle
_MEMORY = 0.75  # of a copy's bandwidth
_HIDDEN = 2.0  # 1: products and memory add up; the larger, the more of one the other hides
_START, _PACK = 1.6e-6, 1.6e-6  # seconds of the launch, and of the one that packs weights
_MOST, _DEEPEST = 16, 8
_SHAPES = {
    "mma": ((32, 64, 2, 2), (64, 32, 4, 1), (64, 64, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 128, 2, 4),
            (128, 128, 4, 2), (128, 256, 2, 4), (256, 128, 4, 2), (256, 64, 4, 2)),
    "wgmma": ((64, 64, 1, 1), (64, 128, 1, 1), (128, 64, 2, 1), (128, 128, 2, 1), (128, 256, 2, 1), (256, 128, 4, 1)),
    "tma": ((64, 64, 1, 1), (64, 128, 1, 1), (64, 256, 1, 1), (128, 64, 2, 1), (128, 96, 2, 1), (128, 128, 2, 1),
            (128, 192, 2, 1), (128, 256, 2, 1), (192, 128, 3, 1), (256, 64, 4, 1), (256, 128, 4, 1)),
}  # fmt: skip
"""(bm, bn, wm, wn)."""


def seconds(tiling: Int8Tiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t, p = tiling.tile, tiling.problem
    resident = tiling.resident
    work = max(t.bm * t.bn * t.bk / _MACS[t.engine], (t.bm + t.bn) * t.bk / _COPIED)
    leaving = t.bm * t.bn / _WRITTEN

    def together(count: int) -> float:
        return tiling.slices * max(count * work, _LATENCY / t.ahead) + _FILL + count * leaving if count else 0.0

    if t.engine == "tma":  # work groups stay, and what they copy next is on its way
        turns = math.ceil(tiling.work_groups / units)
        product = tiling.slices * (work + _SLICE) * (1 + _SHARED * (resident - 1))
        cycles = turns * (product + _TILE + leaving / resident) + _FIRST
    else:
        waves, rest = divmod(tiling.work_groups, units * resident)
        cycles = waves * together(resident) + together(-(-rest // units))
    moved = math.prod(p.x_shape) * read_share(p) + math.prod(p.w_shape)
    moved += math.prod(p.y_shape) * p.out_itemsize * (2 if p.residual else 1)
    total = ((cycles / _CLOCK) ** _HIDDEN + (moved / (_MEMORY * copy)) ** _HIDDEN) ** (1 / _HIDDEN) + _START
    return total if p.constant_weights else total + _PACK + 2 * tiling.packed_size / copy


def _stages(tiling: Int8Tiling) -> set[int]:
    """As many as local memory holds of one to four work groups, and no more than a sum has slices."""
    t = tiling.tile
    beside = tiling.local_bytes - t.stages * tiling.stage_bytes if t.engine == "tma" else 8 * t.bn
    rooms = [(LOCAL_LIMIT + 1024) // resident - 1024 - beside for resident in (1, 2, 3, 4)]
    most = _DEEPEST if t.engine == "tma" else min(_DEEPEST, tiling.slices + 2)
    return {min(room // (tiling.stage_bytes + 16), most) for room in rooms} - {0, 1, 2}


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int, engines: tuple[str, ...]) -> tuple[Int8Tile, ...]:
    """Tiles, the fastest by prediction first."""
    found = []
    for engine in engines:
        for shape in _SHAPES[engine]:
            for bk in (64, 128):
                tile = Int8Tile(*shape, bk, 3, engine)
                each = [dataclasses.replace(tile, stages=most) for most in _stages(tiling_of(problem, tile))]
                found += [tiling for t in each if (tiling := tiling_of(problem, t)).misfit is None]
    rated = sorted(found, key=lambda tiling: seconds(tiling, units))
    return tuple(tiling.tile for tiling in rated[:_MOST])
