"""Which tiles nvidia.direct tries for a problem, and their predicted time.

Times are cycles of one multiprocessor. The constants of formats with three products were fitted to 280 timings of first
choices on an H200 (rms error of the logarithm 0.09), and their products and memory again to 119 in CUDA graphs (0.15);
those of formats with one to 375 tiles of 51 layers on which cuDNN was faster (0.19; the chosen tile takes 5 % longer
than the best timed one) and to the first choices of 123 layers in CUDA graphs (0.16). The longest part of a tile's time
hides the others only partly, so they are added as squares.

Hundreds of tiles are rated together: a tiling here is of one tile, or of many tiles whose numbers are arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem
from convdispatch.api.matrix import fitting, in_waves, many, part_counts

from ..instructions import LOCAL_LIMIT
from ..pace import COPY
from .tiling import DirectTile, DirectTiling

CLOCK = 1.62e9  # clock of a multiprocessor, in cycles per second
MMA_MACS = {8: 500, 16: 1000}
"""Multiply-adds per cycle of a multiprocessor by mma.sync, by a product's depth in k: 8 of TF32, 16 of bfloat16."""
NARROW_COPY_FACTOR = {4: 1.0, 2: 2.2, 1: 2.5}
"""Time of copies relative to copies of 16 bytes, by the float32 numbers of one copy."""
SHORT_ROW_FACTOR = 1.25  # time of copying rows of 64 bytes, relative to rows of 128
STORE_BYTES_PER_CYCLE = 30.0  # bytes of results that a multiprocessor stores per cycle
SCATTERED_STORE_FACTOR = 2.0  # time of storing single results with zeros between them, relative to runs
PART_PASSES = 1.35  # passes over the partial sums that writing and adding them takes
MAX_CHOICES = 32  # most tiles that are offered to a search
MIN_CHOICES = 4  # best tiles of each number format that are always offered to a search
SHAPES = (
    (128, 128, 2, 4), (128, 128, 4, 2), (64, 128, 2, 2), (64, 128, 2, 4), (128, 64, 4, 2), (128, 64, 2, 2),
    (64, 64, 2, 2), (64, 256, 2, 4), (48, 128, 1, 4), (32, 64, 1, 4), (32, 128, 1, 4), (32, 256, 1, 8), (16, 128, 1, 4),
    (16, 256, 1, 8), (64, 32, 4, 1), (128, 32, 4, 1), (256, 32, 8, 1), (128, 16, 4, 1), (256, 16, 8, 1), (32, 32, 2, 2),
    (256, 64, 4, 2), (96, 128, 2, 4), (96, 64, 2, 2), (192, 64, 4, 2), (112, 64, 1, 4), (112, 128, 1, 8),
    (144, 64, 1, 4), (160, 64, 2, 2), (80, 128, 1, 4), (160, 128, 2, 4),
)  # fmt: skip
"""(bm, bn, wm, wn) of the tiles that are tried."""
WIDE_SHAPES = ((128, 128, 2, 2), (256, 128, 4, 2), (128, 256, 2, 4), (64, 128, 1, 2))
"""(bm, bn, wm, wn) of more tiles for formats with one product per multiplication: warps of 64 x 64."""
DEPTHS = ((32, 3), (32, 4), (16, 4))
"""(depth of a K-slice, pipeline stages) that are tried."""


@dataclass(frozen=True)
class Rates:
    """Constants of formats with three products per multiplication, or with one. They were fitted with operands in the
    cache (three), and with operands in memory (one)."""

    copied: float
    """Bytes per cycle from the L2 cache into local memory, in copies of 16 bytes."""
    read: float
    """Cycles of local memory per read of a warp's 32 numbers."""
    issued: float
    """Instructions per cycle that the four schedulers of a multiprocessor issue."""
    arrival: float
    """Cycles from issuing the copies of a K-slice until its first bytes arrive."""
    launch: float
    """Seconds of a kernel launch, including the pause before it."""
    multiply: float
    """Time of products over the time that ``MMA_MACS`` gives."""
    slice: float
    """Cycles of the barriers of one K-slice."""
    fill: float
    """Cycles of the prologue and the epilogue of one tile."""
    memory: float
    """Memory bandwidth relative to a copy's; above 1 if some reads hit the cache."""
    alone: float
    """What a multiprocessor with a single warp would take longer, as a share: few warps do not hide their waits."""


RATES = {
    1: Rates(31.6, 0.325, 5.7, 3290, 0.9e-6, 0.872, 143, 2660, 0.903, 0.285),
    3: Rates(46.0, 1.2, 2.7, 900, 1.5e-6, 1.36, 60, 770, 0.88, 0.0),
}
FORMATS_OF_MATH = {
    "float32": ("tf32x3", "bf16x3"),
    "ieee": ("tf32x3",),
    "tf32": ("tf32", "tf32x3"),
    "fast": ("tf32", "tf32x3"),
}
"""Formats that have the accuracy that each ``math`` promises, the preferred one first."""
COMPENSATED_FROM = 512
"""With ``math="ieee"``, sums of more products than this are compensated."""
NUMBERS = ("bm", "bn", "wm", "wn", "bk", "stages", "split", "flush_every")
"""Fields of a DirectTile that are arrays when many tiles are rated together."""


def _root_of_squares(*parts: Any) -> Any:
    """The elementwise root of the sum of squares, rounded as ``math.hypot`` rounds it."""
    return np.array([math.hypot(*terms) for terms in zip(*(part.tolist() for part in np.broadcast_arrays(*parts)))])


def _resident(tiling: DirectTiling) -> Any:
    """Estimated work groups that are resident on a multiprocessor, by registers and local memory."""
    t = tiling.tile
    sums = t.frag_m * t.frag_n * 4
    fragments = (t.frag_n * 2 + 4) * (2 if t.products == 3 else 1)
    buffered_sums = 0 if t.products == 1 else np.where((t.flush_every > 0) | t.compensated, sums, t.frag_n * 4)
    registers = np.minimum(255, -(-(sums + fragments + buffered_sums // 2 + 36) // 8) * 8)
    by_memory = np.minimum((LOCAL_LIMIT + 1024) // (tiling.local_bytes + 1024), 2048 // t.items)
    return np.maximum(1, np.minimum(65536 // (registers * t.items), by_memory))


def _tile_cycles(tiling: DirectTiling) -> tuple[Any, Any, Any]:
    """Cycles of a tile: (shared by the tiles on a multiprocessor, of waits, of its output)."""
    t, pace = tiling.tile, RATES[tiling.tile.products]
    slices = tiling.slices / t.split
    warps, steps = t.wm * t.wn, slices * (t.bk // t.depth)
    loads = (t.frag_m * 4 + t.frag_n * 2) * t.depth // 8
    multiplied = t.frag_m * t.frag_n * t.products
    additions = (16 if t.compensated else 4) * (t.flush_every == 0) if t.products == 3 else 0
    issued = loads * (4 if t.depth == 16 else 3 if t.products == 3 else 2)
    issued = issued + multiplied + t.frag_m * t.frag_n * additions
    multiply = steps * t.bm * t.bn * t.depth * t.products / MMA_MACS[t.depth] * pace.multiply
    copied = slices * sum(_slice_bytes(tiling, number) for number in (0, 1)) / pace.copied
    warp_steps = steps * warps
    shared_cycles = _root_of_squares(
        multiply, warp_steps * loads * pace.read, warp_steps * issued / pace.issued, copied
    ) * (1 + pace.alone / (warps * _resident(tiling)))
    problem = tiling.problem
    result_count = t.bm * t.bn * (problem.sd * problem.sh * problem.sw * SCATTERED_STORE_FACTOR if tiling.gaps else 1)
    arrival = slices * pace.arrival / (t.stages - 1)
    return (
        shared_cycles,
        np.maximum(arrival - shared_cycles, 0) + slices * pace.slice + pace.fill,
        result_count * 4 / STORE_BYTES_PER_CYCLE,
    )


def _slice_bytes(tiling: DirectTiling, number: int) -> Any:
    """Bytes of an operand's K-slice, weighted by the time of their copies relative to 16-byte copies of long rows."""
    operand = tiling.operands[number]
    rows = np.where(tiling.tile.bk == 16, SHORT_ROW_FACTOR, 1) if operand.along_k else 1
    return tiling.extent[number] * tiling.tile.bk * 4 * NARROW_COPY_FACTOR[operand.width] * rows


def _seconds(tiling: DirectTiling, units: int, copy: float) -> np.ndarray:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors, for each tile."""
    shared_cycles, wait_cycles, output_cycles = _tile_cycles(tiling)

    def together(tiles: Any) -> Any:
        """Cycles of ``tiles`` tiles that run simultaneously on one multiprocessor."""
        return np.maximum(shared_cycles + wait_cycles, tiles * shared_cycles) + output_cycles

    cycles = in_waves(tiling, units, _resident(tiling), together)
    pace, partial_bytes = RATES[tiling.tile.products], tiling.partial_bytes
    memory = pace.memory * copy
    total = _root_of_squares(cycles / CLOCK, (tiling.problem.bytes + partial_bytes) / memory) + pace.launch
    return np.where(partial_bytes > 0, total + (pace.launch + partial_bytes * PART_PASSES / memory), total)


def seconds(tiling: DirectTiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    row = np.array([[getattr(tiling.tile, name) for name in NUMBERS]], np.int64)
    return float(_seconds(DirectTiling(tiling.problem, many(tiling.tile, NUMBERS, row)), units, copy)[0])


def _tiles(problem: ConvProblem, name: str, units: int) -> tuple[DirectTile, np.ndarray]:
    """(a tile with the fields that all have in common, one row of ``NUMBERS`` per tile that fits the problem)."""
    base = DirectTile(16, 16, 1, 1, name)
    untiled = DirectTiling(problem, base)
    base = dataclasses.replace(base, compensated=problem.math == "ieee" and untiled.k > COMPENSATED_FROM)
    shapes = SHAPES + WIDE_SHAPES if name == "tf32" else SHAPES
    numbers = np.array(
        [
            (*shape, bk, stages, 1, flush_every)
            for shape, (bk, stages) in itertools.product(shapes, DEPTHS)
            for flush_every in ((0, 64 // bk) if name != "tf32" and problem.math != "ieee" else (0,))
        ],
        np.int64,
    )
    oversized = (numbers[:, 0] >= 2 * max(32, untiled.m)) | (numbers[:, 1] >= 2 * max(32, untiled.n))
    numbers = numbers[fitting(DirectTiling(problem, many(base, NUMBERS, numbers)), len(numbers)) & ~oversized]
    if not len(numbers):
        return base, numbers
    tiling = DirectTiling(problem, many(base, NUMBERS, numbers))
    sizes = ((units * _resident(tiling)).tolist(), tiling.work_groups.tolist(), (tiling.slices // 2).tolist())
    counts = [[1, *part_counts(*each)] for each in zip(*sizes, strict=True)]
    numbers = np.repeat(numbers, list(map(len, counts)), axis=0)
    numbers[:, NUMBERS.index("split")] = list(itertools.chain.from_iterable(counts))
    return base, numbers[fitting(DirectTiling(problem, many(base, NUMBERS, numbers)), len(numbers))]


@functools.lru_cache(maxsize=1024)
def choices(problem: ConvProblem, units: int) -> tuple[DirectTile, ...]:
    """The fastest tiles by prediction of all formats, then the best few tiles of each format."""
    rated: list[tuple[float, DirectTile, tuple[int, ...]]] = []
    best_of_formats = []
    for name in FORMATS_OF_MATH[problem.math]:
        base, numbers = _tiles(problem, name, units)
        if not len(numbers):
            continue
        costs = _seconds(DirectTiling(problem, many(base, NUMBERS, numbers)), units, COPY)
        order = np.argsort(costs, kind="stable")[:MAX_CHOICES]
        best = [(cost, base, tuple(row)) for cost, row in zip(costs[order].tolist(), numbers[order].tolist())]
        rated += best
        best_of_formats += best[:MIN_CHOICES]
    rated.sort(key=lambda each: each[0])  # a stable sort: of equal costs the first format's tile stays first
    offered = ((base, dict(zip(NUMBERS, row))) for _, base, row in (*rated[:MAX_CHOICES], *best_of_formats))
    return tuple(dict.fromkeys(dataclasses.replace(base, **fields) for base, fields in offered))
