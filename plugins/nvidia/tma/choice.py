"""Which tiles ``nvidia.tma`` tries, and in which order: tensor cores, waves, memory.

Fitted to 3600 timings of 210 problems on an H200, drawn at random, their operands not in the cache
(0.12 root mean square of the logarithm; on these same timings the tile chosen among those
timed loses 2 %). What work groups beside one another cost was fitted anew to 467 problems in four runs, other solvers'
tiles among them: their choice loses 3.9 % instead of 5.4. Then all but that and the peak was fitted anew to the first
choices of 733 drawn problems on an H100 and an H200, in CUDA graphs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

from convdispatch.api import ConvProblem

from ..hopper import LOCAL_LIMIT
from ..pace import COPY, read_share
from .fold import folded, folds
from .gather import gathered, gathers
from .tiling import TmaTile, TmaTiling

_CLOCK = 1.7e9
_MACS = 2010.0  # multiply-adds a cycle of a multiprocessor, of 16-bit numbers; of TF32 half as many
_COPIED = 71.0  # bytes a cycle from the L2 cache into local memory
_HALF_ROWS = 1.54  # copies of 64-byte rows, in times of those of 128 bytes
_APART = {128: 1.0, 64: 1.25, 32: 1.62, 16: 2.58}  # times of rows whose distance is no multiple of 128 bytes
_SHARED = 0.4  # of a product's time, on top for each further work group beside it: fewer slices are in flight
_SLICE, _TILE = 13.0, 910.0  # cycles of a slice and of a tile beside its products
_WRITTEN = 33.0  # bytes a cycle that leave a multiprocessor
_MEMORY = 1.08  # of a copy's bandwidth: the tensors count once each, and the cache serves the rest
_HIDDEN = 1.48  # 1: products and memory add up; the larger, the more of one the other hides
_START = 2.0e-6  # seconds, on a stream of CUDA's
_SUM, _SUMMED = 0.73e-6, 0.93  # seconds of the parts' sum; of a copy's bandwidth, at which their bytes move
_FIXED, _ADDED = 6700.0, 9.3  # cycles of a tile whose parts work groups add, and its bytes a cycle
_COUNTED, _TAKEN = 1000.0, 1450.0  # cycles until a part is counted, and 32 columns are taken
_FOLDED = 1.5e-6  # seconds of the launch that writes folded, widened or turned weights
_GATHERED = 0.96e-12  # seconds of a number of the source of a first layer, on 132 multiprocessors
_FEW = 4  # parts that work groups add: more wait for each other's counting
_MOST = 24


def _apart(row_bytes: int) -> float:
    """Times that rows take whose distance in memory is no multiple of 128 bytes."""
    return _APART[math.gcd(row_bytes, 128)]


def seconds(tiling: TmaTiling, units: int, copy: float = COPY) -> float:
    """Predicted seconds of all launches on a device of ``units`` multiprocessors."""
    t, problem, size = tiling.tile, tiling.problem, tiling.itemsize
    c, m = problem.ic * size, problem.oc * size
    source, target = (c, m) if problem.direction == "fwd" else (m, c)
    a, b = (source, source if problem.direction == "fwd" else c) if tiling.data else (m, c)
    half_a, half_b = (_HALF_ROWS if bytes_of == 64 else 1 for bytes_of in (tiling.row_bytes, tiling.b_row_bytes))
    copied = (tiling.a_bytes * half_a * _apart(a) + tiling.b_bytes * half_b * _apart(b)) / _COPIED
    macs = t.bm * t.bn * t.bk / _MACS * size / 2
    slice_of = max(macs, copied) + _SLICE
    each = _TILE + t.bm * t.bn * (4 if tiling.partial else size * _apart(target if tiling.data else c)) / _WRITTEN
    if t.fixup:  # where all run at once they count one after another; else a tile's last adds all parts
        waits = _COUNTED * t.split if tiling.tiles <= tiling.groups(units) else _TAKEN * t.bn / 32 / t.split
        each += _FIXED + waits + t.bm * t.bn * 4 / _ADDED
    cycles = begin = 0.0
    for phase in tiling.phases:  # what the first of the work groups does in each
        end = begin + tiling.tiles // len(tiling.phases)
        tiles = math.ceil(end / units) - math.ceil(begin / units)
        product = phase.slices / t.split * slice_of * (1 + _SHARED * (t.resident - 1))
        cycles += tiles * (product + each / t.resident)
        begin = end
    moved = size * (
        math.prod(problem.x_shape) * read_share(problem) + sum(map(math.prod, (problem.w_shape, problem.y_shape)))
    )
    both = (cycles / _CLOCK) ** _HIDDEN + (moved / (_MEMORY * copy)) ** _HIDDEN
    total = both ** (1 / _HIDDEN) + _START
    if tiling.weights_bytes and not problem.constant_weights:
        total += _FOLDED
    total += sum(_FOLDED + _GATHERED * source.bytes / size * 132 / units for source in tiling.sources)
    return total + (_SUM + tiling.partial_bytes / (_SUMMED * copy) if tiling.partial else 0)


def _parts(tiling: TmaTiling, units: int) -> list[int]:
    """Parts of the sum that fill the device's work groups once, twice, three times."""
    room, slices = units * tiling.tile.resident, max(tiling.slices)
    filling = {max(1, times * room // tiling.sums) for times in (1, 2, 3)} | {2, 3, 4, 8}
    return sorted(parts for parts in filling if 1 < parts <= slices // 2 and parts * tiling.sums <= 4 * room)


def _shapes(row_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """(bm, bn, work groups of a multiprocessor, stages): as many stages as local memory holds."""
    for bm in (64, 128, 192, 256):
        for bn in (32, 64, 96, 128, 160, 192, 224, 256):
            for resident in (1, 2, 3, 4):
                stages = (LOCAL_LIMIT + 1024) // resident // ((bm + bn) * row_bytes + 16) - (resident > 1)
                if stages >= 3:
                    yield bm, bn, resident, min(stages, 7 * 128 // row_bytes)


def _tiles(unfolded: ConvProblem, units: int, pixels: int) -> Iterator[TmaTile]:
    taps = gathers(unfolded)
    problem = gathered(unfolded, taps) if taps else folded(unfolded, pixels)
    data, channels = problem.direction != "bwd_weights", problem.oc if problem.direction == "bwd_data" else problem.ic
    whole = 128 // problem.itemsize  # channels of a box; half as many where that saves copies
    widths = (whole, whole // 2) if -(channels // problem.g) % whole >= whole // 2 else (whole,)
    number = "tf32" if problem.dtype == "float32" else problem.dtype
    for width, depth in ((width, width if data else 64) for width in widths):
        for bm, bn, resident, stages in _shapes(depth * problem.itemsize):
            plain = TmaTile(bm, bn, bm // 64, 1, number, "wgmma", depth, stages, resident=resident,
                            block=64 if data else width, pixels=pixels, taps=taps)  # fmt: skip
            fewer = dataclasses.replace(plain, stages=stages - 1)
            tile = next((each for each in (plain, fewer) if TmaTiling(problem, each).misfit is None), None)
            if tile is None:
                continue
            tiling = TmaTiling(problem, tile)
            yield tile
            for split, fixup in itertools.product(_parts(tiling, units), (False, True)):
                if fixup and (split > _FEW or resident > 1):
                    continue
                cut = dataclasses.replace(tile, split=split, fixup=fixup)
                if TmaTiling(problem, cut).misfit is None:
                    yield cut


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[TmaTile, ...]:
    """Tiles, the fastest by prediction first."""
    rated = sorted(
        (
            (seconds(TmaTiling.of(problem, tile), units), number, tile)
            for pixels in folds(problem)
            for number, tile in enumerate(_tiles(problem, units, pixels))
        ),
        key=lambda row: row[:2],
    )
    return tuple(tile for _, _, tile in rated[:_MOST])
