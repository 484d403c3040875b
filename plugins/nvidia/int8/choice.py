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
_MACS = {"mma": 2000.0, "wgmma": 3300.0}
"""Multiply-adds a cycle of a multiprocessor that work groups reach together."""
_COPIED = 55.0  # bytes a cycle from the L2 cache into local memory
_FILL, _WRITTEN = 1800.0, 24.0  # cycles from a tile's first copy to its first product; elements of y a cycle
_MEMORY = 0.75  # of a copy's bandwidth
_START, _PACK = 1.6e-6, 1.6e-6  # seconds of the launch, and of the one that packs weights
_REGISTERS, _MOST = 65536, 16
_SHAPES = {
    "mma": ((32, 64, 2, 2), (64, 32, 4, 1), (64, 64, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 128, 2, 4),
            (128, 128, 4, 2), (128, 256, 2, 4), (256, 128, 4, 2), (256, 64, 4, 2)),
    "wgmma": ((64, 64, 1, 1), (64, 128, 1, 1), (128, 64, 2, 1), (128, 128, 2, 1), (128, 256, 2, 1), (256, 128, 4, 1)),
}  # fmt: skip
"""(bm, bn, wm, wn)."""


def _resident(tiling: Int8Tiling) -> int:
    """Work groups of a multiprocessor at a time."""
    t = tiling.tile
    registers = t.frag_m * t.frag_n * 4 + 72
    return max(1, min(_REGISTERS // (registers * t.items), (LOCAL_LIMIT + 1024) // (tiling.local_bytes + 1024)))


def seconds(tiling: Int8Tiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t, p = tiling.tile, tiling.problem
    resident, depth = _resident(tiling), tiling.row_bytes
    # a warp's fragments are read again by each of its row and column
    share = t.bn * t.bm / (t.bm + t.bn) / 64
    macs = t.bm * t.bn * depth / (_MACS[t.engine] * min(1.0, 0.55 + 0.45 * share))
    copied = (t.bm + t.bn) * depth / _COPIED
    work = max(macs, copied) + t.bm * t.bn / _WRITTEN
    waves, rest = divmod(tiling.work_groups, units * resident)

    def together(count: int) -> float:
        return max(count * work, work + _FILL) + _FILL * 0.25 if count else 0.0

    cycles = waves * together(resident) + together(-(-rest // units))
    moved = math.prod(p.x_shape) * read_share(p) + math.prod(p.w_shape)
    moved += math.prod(p.y_shape) * p.out_itemsize * (2 if p.residual else 1)
    total = math.hypot(cycles / _CLOCK, moved / (_MEMORY * copy)) + _START
    return total if p.constant_weights else total + _PACK + 2 * tiling.packed_size / copy


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int, engines: tuple[str, ...]) -> tuple[Int8Tile, ...]:
    """Tiles, the fastest by prediction first."""
    found = []
    for engine in engines:
        for bm, bn, wm, wn in _SHAPES[engine]:
            for bk in (64, 128):
                for stages in (3, 4):
                    tiling = Int8Tiling(problem, Int8Tile(bm, bn, wm, wn, bk, stages, engine))
                    if tiling.misfit is None and (tiling.slices >= tiling.tile.ahead or stages == 3):
                        found.append(tiling)
    rated = sorted(found, key=lambda tiling: seconds(tiling, units))
    return tuple(tiling.tile for tiling in rated[:_MOST])
