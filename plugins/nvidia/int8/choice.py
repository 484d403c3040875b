"""Which tiles ``nvidia.int8`` tries, and in which order: tensor cores, waves, memory.

Fitted to 323 tiles of ResNet-50's layers in CUDA graphs on an H200 (rms error of the logarithm 0.15); the first by
prediction takes 1.03 times as long as the fastest, 1.11 at most.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from convdispatch.api import ConvProblem

from ..configured import CLOCK
from ..instructions import LOCAL_LIMIT
from ..pace import COPY, read_share
from .tiling import Int8Tile, Int8Tiling, tiling_of

MACS = {"mma": 1350.0, "wgmma": 2440.0, "tma": 2520.0, "halo": 2520.0}
"""Multiply-adds a cycle of a multiprocessor."""
COPY_BYTES_PER_CYCLE = 53.0  # from the L2 cache, of one multiprocessor
SHARED_BYTES_PER_CYCLE = 26.7  # from the L2 cache, of each multiprocessor where all copy
SHORT_ROW_FACTOR = 1.5  # time of copying 64-byte rows by the copy engine over that of rows of 128 bytes
COPY_LATENCY_CYCLES = 1230.0
SLICE_CYCLES = 7.0  # of a slice beside its products, ``tma``
TILE_CYCLES = 205.0  # of a tile beside its products, ``tma``
OVERLAPPED_END_FACTOR = 1.28  # time of a tile's end where several work groups take turns, ``tma``
LAUNCH_CYCLES = {"mma": 1630.0, "wgmma": 1630.0, "tma": 180.0, "halo": 180.0}
FILL_CYCLES = 540.0  # of a tile before and after its slices
RESULTS_PER_CYCLE = 10.9  # elements of y
RESIDUAL_RESULTS_PER_CYCLE = 4.8  # elements of y with a residual
MEMORY_SHARE = 0.8  # of a copy's bandwidth
WIDE_STORE_FACTOR = 1.3  # time that a tile's sums take to leave where a work item holds 128 of them
OVERLAP = 4.4  # 1: products and memory add up; the larger, the more of one the other hides
START_SECONDS = 2.2e-6  # of the launch
PACK_SECONDS = 1.6e-6  # of the launch that packs weights
MAX_CHOICES = 16  # tiles offered
MAX_STAGES = 8
STAYING_ENGINES = ("tma", "halo")
"""Engines whose work groups stay and compute one tile after another."""
SHAPES = {
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
    copied = tiling.copied * (SHORT_ROW_FACTOR if t.engine in STAYING_ENGINES and t.bk == 64 else 1.0)
    work = max(t.bm * t.bn * tiling.row_bytes / MACS[t.engine], copied / COPY_BYTES_PER_CYCLE)  # of a tile
    added = min(RESIDUAL_RESULTS_PER_CYCLE, resident * t.items / 64)  # few warps wait for what they add
    leaving = t.bm * t.bn / (added if p.residual and p.out_itemsize == 1 else RESULTS_PER_CYCLE)

    leaving *= WIDE_STORE_FACTOR if t.engine in STAYING_ENGINES and t.bn == 256 else 1.0

    def together(count: int) -> float:
        return (
            max(count * work, tiling.slices * COPY_LATENCY_CYCLES / t.ahead) + FILL_CYCLES + count * leaving
            if count
            else 0.0
        )

    if t.engine in STAYING_ENGINES:  # work groups stay, and what they copy next is on its way
        turns = math.ceil(groups / units)
        product = work + tiling.slices * SLICE_CYCLES
        product = max(product, tiling.slices * COPY_LATENCY_CYCLES / (t.ahead * max(1, min(resident, turns))))
        cycles = turns * (product + (TILE_CYCLES + leaving) * (1.0 if resident == 1 else OVERLAPPED_END_FACTOR))
    else:
        waves, rest = divmod(groups, units * resident)
        cycles = waves * together(resident) + together(-(-rest // units))
    cycles = max(
        cycles + LAUNCH_CYCLES[t.engine], groups * copied / (SHARED_BYTES_PER_CYCLE * units) + LAUNCH_CYCLES["tma"]
    )
    moved = math.prod(p.x_shape) * read_share(p) + math.prod(p.w_shape)
    moved += math.prod(p.y_shape) * p.out_itemsize * (2 if p.residual else 1)
    total = ((cycles / CLOCK) ** OVERLAP + (moved / (MEMORY_SHARE * copy)) ** OVERLAP) ** (1 / OVERLAP) + START_SECONDS
    return total if p.constant_weights else total + PACK_SECONDS + 2 * tiling.packed_size / copy


def _stages(tiling: Int8Tiling) -> set[int]:
    """As many as local memory holds of one to four work groups, and no more than a sum has slices."""
    t = tiling.tile
    fixed_bytes = tiling.local_bytes - t.stages * tiling.stage_bytes if t.engine in STAYING_ENGINES else 8 * t.bn
    rooms = [(LOCAL_LIMIT + 1024) // resident - 1024 - fixed_bytes for resident in (1, 2, 3, 4)]
    most = min(MAX_STAGES, tiling.slices + 2)
    return {stages for room in rooms if (stages := min(room // (tiling.stage_bytes + 16), most)) > 2}


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int, engines: tuple[str, ...]) -> tuple[Int8Tile, ...]:
    """Tiles, the fastest by prediction first."""
    found = []
    for engine in engines:
        for shape in SHAPES[engine]:
            for bk in (64, 128):
                tile = Int8Tile(*shape, bk, 3, engine)
                for stages in _stages(tiling_of(problem, tile)):
                    tiling = tiling_of(problem, dataclasses.replace(tile, stages=stages))
                    found += [tiling] if tiling.misfit is None else []
    rated = sorted(found, key=lambda each: (seconds(each, units), -each.tile.bk, -each.tile.stages))
    return tuple(tiling.tile for tiling in rated[:MAX_CHOICES])
