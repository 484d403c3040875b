"""Which tiles to try for a problem on a device, and in which order: a model of waves, padding, reuse and traffic."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem, DeviceInfo, Geometry, geometry_of, rates

from .product import Product, tap_run
from .tile import Tile

# (bm, bn, tm, tn): share of SUSTAINED times the device's rate that a busy device reaches, forward and in the weights'
# gradient; fitted on an H200.
_TILES = {
    (64, 128, 8, 8): (0.78, 0.74),
    (128, 64, 8, 8): (0.78, 0.75),
    (128, 128, 16, 8): (0.77, 0.65),
    (64, 256, 8, 16): (0.74, 0.70),
    (96, 128, 12, 8): (0.72, 0.72),
    (64, 64, 8, 8): (0.69, 0.74),
    (48, 128, 12, 8): (0.63, 0.63),
    (32, 128, 8, 8): (0.68, 0.63),
    (128, 128, 8, 8): (0.65, 0.59),
    (32, 128, 8, 4): (0.49, 0.57),
    (64, 64, 8, 4): (0.55, 0.65),
    (32, 64, 4, 4): (0.41, 0.44),
    (16, 128, 4, 4): (0.41, 0.35),
    (32, 32, 4, 4): (0.33, 0.41),
    (16, 32, 4, 4): (0.22, 0.31),
    (8, 16, 4, 4): (0.07, 0.07),
}
_DEPTHS = (16, 8, 12, 4)
_RESIDENT = 384  # of 8x8 tiles: work items that a compute unit holds at once; their registers are what bounds it
# What a compute unit spends on its last r groups of 128 items, in times of one at full speed: fewer hide less.
_TAIL = (0.0, 2.2, 2.6, 3.0)
_START = 10  # steps of k in the time of a tile's first loads and last stores
_ALONE = 15e3
"""Operations of a unit's peak in the time in which a work group takes a k, however few others there are: 40 to 60
cycles of small tiles in 20 products of less than a group a unit, on an H100 and an H200."""
_FLAT, _TAPS = 0.7, 0.94  # of a tile's speed where slices hold channels and taps, or taps
SUSTAINED = 0.92
"""Of the device's rate of multiply-adds: 60 of an H200's 65 TFLOP/s, which the model's shares are shares of."""
_COPY = 0.94  # of a copy's bandwidth, at which operands are packed and partial sums move
SECTOR = 1050.0
"""Operations in the time in which a sector of 32 bytes is written, beyond the eighth of one that a result fills."""
_WRITES = {"n": 0.0, "m": 0.125, None: 0.375}  # such sectors that work items touch for a result
_TAPS_APART = 0.65  # sectors that a weight's gradient touches, channels first, whose neighbours are other taps' tiles
_LINE, _QUEUED = 128, 0.25  # bytes of a line, all banks of the first cache once; what a line takes of one bank's turn
_TURN = 190.0
"""Operations in the time in which a bank of the first cache gives one number, which neighbours' numbers a multiple of
a line apart wait for in turn: 47 products of slices of taps, channels last, 1.22 apart, on an H100 and an H200."""
_MOST = 64  # choices offered
_LARGE = 1 << 48  # bytes of a tensor, beyond which numbers may need more than 64 bits


@dataclass(frozen=True)
class _Alike:
    """A problem, equal to every other whose tiles are the same."""

    problem: ConvProblem = field(compare=False)
    key: tuple[Any, ...]

    @classmethod
    def of(cls, problem: ConvProblem) -> _Alike:
        """A problem with what the geometry of its slices, misfits and local memory follow from."""
        geo, data = geometry_of(problem), problem.direction != "bwd_weights"
        loads = (geo.pointwise, *(each.pixels % 4 == 0 for each in (geo.source, geo.target)))
        places = geo.source.nhwc, geo.target.nhwc, geo.c % 4 == 0, geo.m % 4 == 0
        return cls(problem, (data, problem.dtype == "float64", _taps(geo, data), _is_flat(geo, data), *loads, *places))


def _taps(geo: Geometry, data: bool) -> tuple[int, int, int] | None:
    """The taps that a slice may hold, where there are few channels."""
    run = tap_run(geo) if data else None
    return run if run is not None and geo.c < 8 and math.prod(run) > 1 else None


def _is_flat(geo: Geometry, data: bool) -> bool:
    """Whether columns that run over channels and taps are worth trying."""
    return not data and geo.c <= 96 and geo.volume > 1


@functools.lru_cache(maxsize=256)
def _tiles(alike: _Alike, device: DeviceInfo) -> tuple[Tile, ...]:
    """The tiles that fit, each in one part."""
    return tuple(_fitting(alike.problem, device))


def _fitting(problem: ConvProblem, device: DeviceInfo) -> Iterator[Tile]:
    geo = geometry_of(problem)
    data = problem.direction != "bwd_weights"
    run, flat = _taps(geo, data), _is_flat(geo, data)
    for bm, bn, tm, tn in _TILES:
        for depth in _DEPTHS:
            walks = [("channels", depth)]
            if flat:
                walks.append(("flat", depth))
            if run is not None and depth == _DEPTHS[0]:
                walks.insert(0, ("taps", math.prod(run)))
            for walk, bk in walks:
                for stages in (2, 1):
                    # Tiles of 16 rows need every register, and this order keeps the fewest values alive.
                    order = "rows" if tm * tn > 96 else "parity"
                    tile = Tile(bm, bn, bk, tm, tn, stages=stages, walk=walk, order=order)
                    product = Product(problem, tile)
                    if product.misfit or product.local_size > device.local_mem_size:
                        continue
                    if tile.items <= min(device.max_work_group_size, device.max_work_item_sizes[0]):
                        yield tile
                        break


def _splits(product: Product, device: DeviceInfo) -> list[list[int]]:
    """For each of many tiles, the parts of the sum worth trying: 1, and those that fill the device some whole times."""
    slots = device.compute_units * np.maximum(1, _RESIDENT // product.tile.items)
    groups, most = product.work_groups, np.maximum(1, functools.reduce(np.minimum, product.slices) // 4)
    waves = (1, 2, 3, 4) if product.data else (1, 2, 3, 4, 6)
    found = np.stack([np.minimum(most, np.maximum(1, wave * slots // groups)) for wave in waves], axis=1)
    return [sorted({1, *parts}) for parts in found.tolist()]


def _depth_factor(product: Product) -> float:
    """Shallow slices spend more on barriers; but streams that are read once want the registers for more groups."""
    streamed = not product.data and product.geometry.pointwise
    factors = {16: 0.93, 12: 0.85, 8: 0.93, 4: 0.75} if streamed else {16: 1.0, 12: 0.9, 8: 0.9, 4: 0.74}
    return _each(lambda bk: factors.get(bk, 0.8), product.tile.bk)


def _each(function: Callable[..., Any], *values: Any) -> Any:
    """``function`` of numbers; of arrays, element by element."""
    if not isinstance(values[0], np.ndarray):
        return function(*values)
    return np.array([function(*each) for each in zip(*(value.tolist() for value in values), strict=True)])


def _tail(last: float) -> float:
    """What the last, partly filled round costs, in thirds of a full one's time."""
    low = min(2, int(last))
    return _TAIL[low] + (_TAIL[low + 1] - _TAIL[low]) * (last - low)


def seconds(product: Product, device: DeviceInfo) -> Any:
    """The predicted time; of a product whose tile's numbers are arrays, an array."""
    t, known = product.tile, rates(device)
    way = 0 if product.data else 1
    share = _each(lambda *tile: _TILES.get(tile, (0.5, 0.5))[way], t.bm, t.bn, t.tm, t.tn)
    share = share * _each({1: 0.9, 2: 1.0}.__getitem__, t.stages)
    share = share * (_FLAT if t.walk == "flat" else 1.0)
    share = share * (_TAPS if t.walk == "taps" else _depth_factor(product))
    slices = sum(product.slices) / len(product.slices) / t.split
    work = 2.0 * t.bm * t.bn * (slices * t.bk + _START)
    resident = _each(lambda items: max(1, _RESIDENT // items), t.items)
    whole = product.work_groups // (device.compute_units * resident)
    rest = product.work_groups - whole * (device.compute_units * resident)
    last = -(-rest // device.compute_units) / resident * 3
    cost = (whole * resident + _each(_tail, last) / 3 * resident) * device.compute_units * work / share
    packs = product.data and not product.problem.constant_weights
    traffic = 2 * product.partial_size
    traffic = traffic + (3 * product.packed_size if packs else 0)
    if product.data:
        cost = cost + _WRITES[product.out_vector] * product.out_size * t.split * SECTOR
    elif t.walk == "channels" and product.problem.layout == "nchw" and product.geometry.volume > 1:
        cost = cost + _TAPS_APART * math.prod(product.problem.w_shape) * SECTOR
    launches = 1 + product.partial + packs
    cost = cost + _waits(product) * _TURN
    cost = np.maximum(cost, (slices * t.bk + _START) * _ALONE * max(1, device.compute_units))
    return cost / (SUSTAINED * known.flops) + traffic / (_COPY * known.bandwidth) + launches * known.launch


def _waits(product: Product) -> Any:
    """Turns of a bank that loads of taps wait for, whose neighbours' numbers lie a pixel of all channels apart."""
    geo, t = product.geometry, product.tile
    if not (product.taps_in_slice and geo.source.nhwc):
        return 0.0
    apart = geo.source.axes[2] * geo.step[2] * product.problem.itemsize
    each = max(math.gcd(apart, _LINE) / _LINE, _QUEUED * min(1.0, apart / _LINE))
    return each * geo.groups * product.m_tiles * product.n_tiles * t.bn * sum(product.slices) * t.bk


def fits(problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether any tile can run the problem on the device."""
    return bool(_tiles(_Alike.of(problem), device))


def choices(problem: ConvProblem, device: DeviceInfo) -> list[Tile]:
    """Tiles that fit, the cheapest predicted first; among them the one of the smallest workspace."""
    tiles, ranked = _tiles(_Alike.of(problem), device), []
    for walk in dict.fromkeys(tile.walk for tile in tiles):
        numbers = [number for number, tile in enumerate(tiles) if tile.walk == walk]
        splits = _splits(_many(problem, [(tiles[number], 1) for number in numbers]), device)
        turns = [(number, split) for number, parts in zip(numbers, splits, strict=True) for split in parts]
        product = _many(problem, [(tiles[number], split) for number, split in turns])
        sizes = product.packed_size + product.partial_size
        ranked += zip(seconds(product, device).tolist(), turns, sizes.tolist(), strict=True)
    ranked.sort(key=lambda entry: entry[:2])
    smallest = min(ranked, key=lambda entry: entry[2], default=None)
    offered = ranked[:_MOST]
    if smallest is not None and smallest not in offered:
        offered.append(smallest)
    return [dataclasses.replace(tiles[number], split=split) for _, (number, split), _ in offered]


def _many(problem: ConvProblem, tiles: Sequence[tuple[Tile, int]]) -> Product:
    """The products of tiles of one walk, each with its parts, as one whose tile's numbers are arrays."""
    nbytes = max(math.prod(getattr(problem, f"{name}_shape")) for name in "xwy") * problem.itemsize
    kind = np.int64 if nbytes < _LARGE else object  # of which no device holds the tensors; the numbers stay right
    rows = np.array([(t.bm, t.bn, t.bk, t.tm, t.tn, t.stages, split) for t, split in tiles], kind)
    names = ("bm", "bn", "bk", "tm", "tn", "stages", "split")
    return Product(problem, dataclasses.replace(tiles[0][0], **dict(zip(names, rows.T, strict=True))))
