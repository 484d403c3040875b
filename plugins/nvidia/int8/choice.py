"""Which tiles ``nvidia.int8`` tries, and in which order: tensor cores, waves, memory."""

from __future__ import annotations

import functools
import math

from convdispatch.api import ConvProblem

from ..hopper import LOCAL_LIMIT
from ..pace import COPY, read_share
from .tiling import Int8Tile, Int8Tiling

__all__ = ["choices", "seconds"]

_CLOCK = 1.7e9
_MACS = {"mma": 2300.0, "wgmma": 3700.0}
"""Multiply-adds a cycle of a multiprocessor."""
_COPIED = 50.0  # bytes a cycle from the L2 cache into local memory
_LATENCY = 1000.0  # cycles of a copy
_FILL, _WRITTEN = 2200.0, 24.0  # cycles of a tile before and after its slices; elements of y a cycle
_MEMORY = 0.75  # of a copy's bandwidth
_START, _PACK = 1.6e-6, 1.6e-6  # seconds of the launch, and of the one that packs weights
_REGISTERS, _ITEMS, _MOST, _DEEPEST = 65536, 2048, 16, 8
_SHAPES = {
    "mma": ((32, 64, 2, 2), (64, 32, 4, 1), (64, 64, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 128, 2, 4),
            (128, 128, 4, 2), (128, 256, 2, 4), (256, 128, 4, 2), (256, 64, 4, 2)),
    "wgmma": ((64, 64, 1, 1), (64, 128, 1, 1), (128, 64, 2, 1), (128, 128, 2, 1), (128, 256, 2, 1), (256, 128, 4, 1)),
}  # fmt: skip
"""(bm, bn, wm, wn)."""


def _resident(tiling: Int8Tiling) -> int:
    """Work groups of a multiprocessor at a time."""
    t = tiling.tile
    registers = t.frag_m * t.frag_n * 4 + (72 if t.engine == "mma" else 56)
    room = (LOCAL_LIMIT + 1024) // (tiling.local_bytes + 1024)
    return max(1, min(_REGISTERS // (registers * t.items), room, _ITEMS // t.items))


def seconds(tiling: Int8Tiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t, p = tiling.tile, tiling.problem
    resident = _resident(tiling)
    work = max(t.bm * t.bn * t.bk / _MACS[t.engine], (t.bm + t.bn) * t.bk / _COPIED)
    leaving = t.bm * t.bn / _WRITTEN

    def together(count: int) -> float:
        return tiling.slices * max(count * work, _LATENCY / t.ahead) + _FILL + count * leaving if count else 0.0

    waves, rest = divmod(tiling.work_groups, units * resident)
    cycles = waves * together(resident) + together(-(-rest // units))
    moved = math.prod(p.x_shape) * read_share(p) + math.prod(p.w_shape)
    moved += math.prod(p.y_shape) * p.out_itemsize * (2 if p.residual else 1)
    total = math.hypot(cycles / _CLOCK, moved / (_MEMORY * copy)) + _START
    return total if p.constant_weights else total + _PACK + 2 * tiling.packed_size / copy


def _stages(p: ConvProblem, bm: int, bn: int, bk: int) -> set[int]:
    """As many as local memory holds of one to four work groups, and no more than a sum has slices."""
    slices = -(-p.ic // p.g * p.kd * p.kh * p.kw // bk)
    each = [(LOCAL_LIMIT + 1024) // resident // ((bm + bn) * bk) - (resident > 1) for resident in (1, 2, 3, 4)]
    return {min(most, slices + 2, _DEEPEST) for most in each if most >= 3}


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int, engines: tuple[str, ...]) -> tuple[Int8Tile, ...]:
    """Tiles, the fastest by prediction first."""
    found = []
    for engine in engines:
        for bm, bn, wm, wn in _SHAPES[engine]:
            for bk in (64, 128):
                found += [
                    tiling
                    for stages in _stages(problem, bm, bn, bk)
                    if (tiling := Int8Tiling(problem, Int8Tile(bm, bn, wm, wn, bk, stages, engine))).misfit is None
                ]
    rated = sorted(found, key=lambda tiling: seconds(tiling, units))
    return tuple(tiling.tile for tiling in rated[:_MOST])
