"""Which tiles ``nvidia.int8`` tries, and their predicted time: tensor cores, waves, memory.

The constants were fitted to 323 tiles of ResNet-50's layers in CUDA graphs on an H200 (rms error of the logarithm
0.15); the first tile by prediction takes 1.03 times as long as the fastest, at most 1.11 times.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from convdispatch.api import ConvProblem

from ..instructions import LOCAL_LIMIT
from ..pace import CLOCK, COPY, read_share
from .tiling import Int8Tile, Int8Tiling, tiling_of

MACS = {"mma": 1350.0, "wgmma": 2440.0, "tma": 2520.0, "halo": 2520.0}
"""Multiply-adds per cycle of one multiprocessor, by engine."""
FLOAT8_MACS = {"mma": 600.0, "wgmma": 2440.0, "tma": 3400.0, "halo": 2620.0}
"""The same of float8: ``tma`` and ``halo`` from five tiles of four layers on an H200 (29 November), ``wgmma`` as of
integers; ``mma.sync`` is an assumption, since Hopper has no tensor cores for it."""
PROMOTED_PER_CYCLE = 128.0
"""Sums of float8 that a multiprocessor adds to float32 registers per cycle: its float32 lanes. With persistent work
groups, products of other warps hide this."""
FLOAT8_SHARED_BYTES_PER_CYCLE = {"mma": 23.5, "wgmma": 23.5, "tma": 40.0, "halo": 40.0}
"""``SHARED_BYTES_PER_CYCLE`` of float8 by engine: tiles of 128x192 and 128x256 on the same layers."""
COPY_BYTES_PER_CYCLE = 53.0  # bytes per cycle from the L2 cache into one multiprocessor
SHARED_BYTES_PER_CYCLE = 26.7  # bytes per cycle from the L2 cache into each multiprocessor, while all copy
SHORT_ROW_FACTOR = 1.5  # time of copying 64-byte rows by the copy engine over that of rows of 128 bytes
COPY_LATENCY_CYCLES = 1230.0
SLICE_CYCLES = 7.0  # cycles of a K-slice beyond its products, with the engine ``tma``
TILE_CYCLES = 205.0  # cycles of a tile beyond its products, with the engine ``tma``
OVERLAPPED_END_FACTOR = 1.28  # time of a tile's epilogue if several work groups alternate, relative to one (``tma``)
LAUNCH_CYCLES = {"mma": 1630.0, "wgmma": 1630.0, "tma": 180.0, "halo": 180.0}
FILL_CYCLES = 540.0  # cycles of a tile before its first and after its last K-slice
RESULTS_PER_CYCLE = 10.9  # elements of y that a multiprocessor stores per cycle
RESIDUAL_RESULTS_PER_CYCLE = 4.8  # elements of y that a multiprocessor stores per cycle, if a residual is added
MEMORY_SHARE = 0.8  # memory bandwidth of the kernel, relative to a copy's
WIDE_STORE_FACTOR = 1.3  # time of storing a tile's sums if a work item has 128 of them, relative to fewer
OVERLAP = 4.4  # exponent that joins the times of products and memory: 1 adds them, a large one takes the longer
START_SECONDS = 2.2e-6  # seconds of the launch of the product
PACK_SECONDS = 1.6e-6  # seconds of the launch that packs weights
MAX_CHOICES = 16  # most tiles that are offered to a search
MAX_STAGES = 8
STAYING_ENGINES = ("tma", "halo")
"""Engines with persistent work groups, which compute one tile after another."""
SHAPES = {
    "mma": ((32, 64, 2, 2), (64, 32, 4, 1), (64, 64, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 128, 2, 4),
            (128, 128, 4, 2), (128, 256, 2, 4), (256, 128, 4, 2), (256, 64, 4, 2)),
    "wgmma": ((64, 64, 1, 1), (64, 128, 1, 1), (128, 64, 2, 1), (128, 128, 2, 1), (128, 256, 2, 1), (256, 128, 4, 1)),
    "tma": ((64, 64, 1, 1), (64, 128, 1, 1), (64, 256, 1, 1), (128, 64, 2, 1), (128, 96, 2, 1), (128, 128, 2, 1),
            (128, 192, 2, 1), (128, 256, 2, 1), (192, 128, 3, 1), (256, 64, 4, 1), (256, 128, 4, 1)),
    "halo": ((64, 64, 1, 1), (64, 128, 1, 1), (128, 64, 2, 1), (128, 128, 2, 1), (192, 64, 3, 1), (192, 128, 3, 1),
             (256, 64, 4, 1)),
}  # fmt: skip
"""(bm, bn, wm, wn) of the tiles that are tried, by engine."""


def seconds(tiling: Int8Tiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t, p = tiling.tile, tiling.problem
    resident, groups = tiling.resident, tiling.work_groups
    copied = tiling.copied * (SHORT_ROW_FACTOR if t.engine in STAYING_ENGINES and t.bk == 64 else 1.0)
    # Cycles of a tile's products or copies, whichever are longer.
    macs, shared = MACS[t.engine], SHARED_BYTES_PER_CYCLE
    if tiling.float8:
        macs, shared = FLOAT8_MACS[t.engine], FLOAT8_SHARED_BYTES_PER_CYCLE[t.engine]
    busy = max(t.bm * t.bn * tiling.row_bytes / macs, copied / COPY_BYTES_PER_CYCLE)
    if tiling.float8 and t.engine not in STAYING_ENGINES:
        busy += tiling.slices * t.bm * t.bn / PROMOTED_PER_CYCLE
    # Elements of y per cycle: few warps wait longer for the residual.
    result_rate = min(RESIDUAL_RESULTS_PER_CYCLE, resident * t.items / 64)
    stores = t.bm * t.bn / (result_rate if p.residual and p.out_itemsize == 1 else RESULTS_PER_CYCLE)

    stores *= WIDE_STORE_FACTOR if t.engine in STAYING_ENGINES and t.bn == 256 else 1.0

    def together(count: int) -> float:
        return (
            max(count * busy, tiling.slices * COPY_LATENCY_CYCLES / t.ahead) + FILL_CYCLES + count * stores
            if count
            else 0.0
        )

    if t.engine in STAYING_ENGINES:  # persistent work groups copy the next tile's slices during this one
        rounds = math.ceil(groups / units)
        product = busy + tiling.slices * SLICE_CYCLES
        product = max(product, tiling.slices * COPY_LATENCY_CYCLES / (t.ahead * max(1, min(resident, rounds))))
        cycles = rounds * (product + (TILE_CYCLES + stores) * (1.0 if resident == 1 else OVERLAPPED_END_FACTOR))
    else:
        waves, rest_groups = divmod(groups, units * resident)
        cycles = waves * together(resident) + together(-(-rest_groups // units))
    cycles = max(cycles + LAUNCH_CYCLES[t.engine], groups * copied / (shared * units) + LAUNCH_CYCLES["tma"])
    nbytes = math.prod(p.x_shape) * read_share(p) + math.prod(p.w_shape)
    nbytes += math.prod(p.y_shape) * p.out_itemsize * (2 if p.residual else 1)
    total = ((cycles / CLOCK) ** OVERLAP + (nbytes / (MEMORY_SHARE * copy)) ** OVERLAP) ** (1 / OVERLAP) + START_SECONDS
    return total if p.constant_weights else total + PACK_SECONDS + 2 * tiling.packed_size / copy


def _stages(tiling: Int8Tiling) -> set[int]:
    """Pipeline stages that fill local memory with one to four work groups, limited by the K-slices of a sum."""
    t = tiling.tile
    fixed_bytes = tiling.local_bytes - t.stages * tiling.stage_bytes if t.engine in STAYING_ENGINES else 8 * t.bn
    stage_room = [(LOCAL_LIMIT + 1024) // resident - 1024 - fixed_bytes for resident in (1, 2, 3, 4)]
    max_stages = min(MAX_STAGES, tiling.slices + 2)
    return {stages for room in stage_room if (stages := min(room // (tiling.stage_bytes + 16), max_stages)) > 2}


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int, engines: tuple[str, ...]) -> tuple[Int8Tile, ...]:
    """Tiles, the fastest by prediction first."""
    candidates = []
    for engine in engines:
        for shape in SHAPES[engine]:
            for bk in (64, 128):
                tile = Int8Tile(*shape, bk, 3, engine)
                for stages in _stages(tiling_of(problem, tile)):
                    tiling = tiling_of(problem, dataclasses.replace(tile, stages=stages))
                    candidates += [tiling] if tiling.misfit is None else []
    rated = sorted(candidates, key=lambda each: (seconds(each, units), -each.tile.bk, -each.tile.stages))
    return tuple(tiling.tile for tiling in rated[:MAX_CHOICES])
