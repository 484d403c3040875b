"""Which tiles to try for a problem on a device, and their predicted time: waves, padding, reuse and traffic."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem, DeviceInfo, Geometry, geometry_of, least_products, rates

from .product import Product, Tile, tap_run

# Share of the sustained multiply-add rate that a busy device reaches with a tile (bm, bn, tm, tn): (in forward products
# and data gradients, in weights' gradients). Fitted on an H200.
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
DEPTHS = (16, 8, 12, 4)
"""Depths (steps of k) of a slice that are tried."""
MAX_CONFIGS = 64
LARGE_BYTES = 1 << 48
"""Bytes of a tensor beyond which the cost model's numbers may need more than 64 bits."""
LINE_BYTES = 128
"""Bytes of a cache line, which has one number in each bank of the first-level cache."""
RESIDENT_ITEMS = 384
"""Work items of 8x8 tiles that are resident on a compute unit together, limited by their registers."""

# The constants of the cost model are shares of a rate, or numbers of operations at the device's multiply-add peak.
SUSTAINED = 0.92
"""Share of the device's multiply-add peak that is sustained: 60 of an H200's 65 TFLOP/s. Other shares multiply it."""
TAIL_TIMES = (0.0, 2.2, 2.6, 3.0)
"""Time of a compute unit's last 0 to 3 groups of 128 work items, relative to one group at full speed: few groups hide
less latency."""
START_STEPS = 10  # steps of k in the time of a tile's first loads and last stores
FLAT_SHARE = 0.7  # share of a tile's speed that is left if its columns run over channels and taps
TAPS_SHARE = 0.94  # share of a tile's speed that is left if its slices hold the taps of one channel
COPY_SHARE = 0.94  # share of the measured bandwidth of a copy that packing weights and adding partial sums reach
ALONE_OPS = 15e3
"""Least time of a step of k of one work group, in operations of a compute unit: 40 to 60 cycles of small tiles, in 20
products with less than one work group per compute unit, on an H100 and an H200."""
SECTOR_OPS = 1050.0
"""Operations at peak rate per 32-byte sector that is written, beyond the eighth of a sector that a result fills."""
RESULT_SECTORS = {"n": 0.0, "m": 0.125, None: 0.375}
"""Additional sectors written per result, by the side of the tile along which four results form a vector."""
TAP_SECTORS = 0.65
"""Additional sectors written per element of an NCHW weights' gradient, whose neighbours are in other taps' tiles."""
BANK_OPS = 190.0
"""Operations at peak rate per number that one bank of the first-level cache serves; numbers whole cache lines apart
share a bank and wait for each other. Fitted on 47 NHWC products of slices of taps on an H100 and an H200, within a
factor of 1.22."""
BANK_SHARE = 0.25
"""Share of ``BANK_OPS`` that a number costs if adjacent work items read the same cache line."""

SUMS_OPS = 10.0
"""Operations of a result whose channel is summed: four of the sums, and those of reading it again and of merging."""


@dataclass(frozen=True)
class _TileKey:
    """A cache key: a problem that compares equal to every problem with the same fitting tiles."""

    problem: ConvProblem = field(compare=False)
    key: tuple[Any, ...]

    @classmethod
    def of(cls, problem: ConvProblem) -> _TileKey:
        """The key of a problem: all that its slices, rejected tiles and local memory depend on."""
        geo, data = geometry_of(problem), problem.direction != "bwd_weights"
        vector_loads = (geo.pointwise, *(layout.pixels % 4 == 0 for layout in (geo.source, geo.target)))
        layouts = geo.source.nhwc, geo.target.nhwc, geo.c % 4 == 0, geo.m % 4 == 0
        walks = _taps(geo, data), _is_flat(geo, data)
        sums = problem.sums, problem.masked
        return cls(problem, (data, problem.dtype == "float64", *walks, *vector_loads, *layouts, *sums))


def _taps(geo: Geometry, data: bool) -> tuple[int, int, int] | None:
    """Return the taps that a slice may hold if there are few channels; None if there are many."""
    run = tap_run(geo) if data else None
    return run if run is not None and geo.c < 8 and math.prod(run) > 1 else None


def _is_flat(geo: Geometry, data: bool) -> bool:
    """Whether columns that run over channels and taps are worth trying."""
    return not data and geo.c <= 96 and geo.volume > 1


@functools.lru_cache(maxsize=256)
def _tiles(alike: _TileKey, device: DeviceInfo) -> tuple[Tile, ...]:
    """Return the tiles that fit the device, each with an unsplit sum."""
    return tuple(_fitting(alike.problem, device))


def _fitting(problem: ConvProblem, device: DeviceInfo) -> Iterator[Tile]:
    geo = geometry_of(problem)
    data = problem.direction != "bwd_weights"
    run, flat = _taps(geo, data), _is_flat(geo, data)
    for bm, bn, tm, tn in _TILES:
        for depth in DEPTHS:
            walks = [("channels", depth)]
            if flat:
                walks.append(("flat", depth))
            if run is not None and depth == DEPTHS[0]:
                walks.insert(0, ("taps", math.prod(run)))
            for walk, bk in walks:
                for stages in (2, 1):
                    # A tile with 16 rows per work item needs every register; the order ``rows`` has the fewest live
                    # values.
                    order = "rows" if tm * tn > 96 else "parity"
                    tile = Tile(bm, bn, bk, tm, tn, stages=stages, walk=walk, order=order)
                    product = Product(problem, tile)
                    if product.misfit or product.local_size > device.local_mem_size:
                        continue
                    if tile.items <= min(device.max_work_group_size, device.max_work_item_sizes[0]):
                        yield tile
                        break


def _splits(product: Product, device: DeviceInfo) -> list[list[int]]:
    """For each of many tiles the parts of the sum to try: 1, and those that fill the device a whole number of times."""
    slots = device.compute_units * np.maximum(1, RESIDENT_ITEMS // product.tile.items)
    groups, max_parts = product.work_groups, np.maximum(1, functools.reduce(np.minimum, product.slices) // 4)
    waves = (1, 2, 3, 4) if product.data else (1, 2, 3, 4, 6)
    part_counts = np.stack([np.minimum(max_parts, np.maximum(1, wave * slots // groups)) for wave in waves], axis=1)
    return [sorted({1, *parts}) for parts in part_counts.tolist()]


def _depth_factor(product: Product) -> float:
    """Share of a tile's speed by the depth of its slices: shallow slices spend more time on barriers, but operands that
    are read once gain from more work groups."""
    streamed = not product.data and product.geometry.pointwise
    factors = {16: 0.93, 12: 0.85, 8: 0.93, 4: 0.75} if streamed else {16: 1.0, 12: 0.9, 8: 0.9, 4: 0.74}
    return _elementwise(lambda bk: factors.get(bk, 0.8), product.tile.bk)


def _elementwise(function: Callable[..., Any], *values: Any) -> Any:
    """Return ``function(*values)`` for numbers, or an array of its results for each element of arrays."""
    if not isinstance(values[0], np.ndarray):
        return function(*values)
    return np.array([function(*arguments) for arguments in zip(*(value.tolist() for value in values), strict=True)])


def _last_round(last: float) -> float:
    """Return the time of the last, partly filled round of work groups, in thirds of a full round's time."""
    index = min(2, int(last))
    return TAIL_TIMES[index] + (TAIL_TIMES[index + 1] - TAIL_TIMES[index]) * (last - index)


def seconds(product: Product, device: DeviceInfo) -> Any:
    """Return the predicted seconds; an array if the tile's numbers are arrays."""
    t, peaks = product.tile, rates(device)
    direction_index = 0 if product.data else 1
    share = _elementwise(lambda *tile: _TILES.get(tile, (0.5, 0.5))[direction_index], t.bm, t.bn, t.tm, t.tn)
    share = share * _elementwise({1: 0.9, 2: 1.0}.__getitem__, t.stages)
    share = share * (FLAT_SHARE if t.walk == "flat" else 1.0)
    share = share * (TAPS_SHARE if t.walk == "taps" else _depth_factor(product))
    slices = sum(product.slices) / len(product.slices) / t.split
    work = 2.0 * t.bm * t.bn * (slices * t.bk + START_STEPS)
    resident = _elementwise(lambda items: max(1, RESIDENT_ITEMS // items), t.items)
    full_rounds = product.work_groups // (device.compute_units * resident)
    rest_groups = product.work_groups - full_rounds * (device.compute_units * resident)
    thirds = -(-rest_groups // device.compute_units) / resident * 3
    rounds = full_rounds * resident + _elementwise(_last_round, thirds) / 3 * resident
    cost = rounds * device.compute_units * work / share
    packs = product.data and not product.problem.constant_weights
    traffic = 2 * product.partial_size
    traffic = traffic + (3 * product.packed_size if packs else 0)
    if product.data:
        cost = cost + RESULT_SECTORS[product.out_vector] * product.out_size * t.split * SECTOR_OPS
    elif t.walk == "channels" and product.problem.layout == "nchw" and product.geometry.volume > 1:
        cost = cost + TAP_SECTORS * math.prod(product.problem.w_shape) * SECTOR_OPS
    launches = 1 + product.partial + packs
    if product.problem.sums:
        parts, problem = product.sums_parts, product.problem
        launches = launches + np.where(product.sums, 1 + (parts > 64) + (parts > 64**2), 3)
        passes = np.where(product.sums, 0, 1) * (1 + problem.masked) + problem.masked
        traffic = traffic + passes * math.prod(problem.out_shape) * problem.itemsize
        cost = cost + SUMS_OPS * product.out_size
    cost = cost + _bank_waits(product) * BANK_OPS
    cost = np.maximum(cost, (slices * t.bk + START_STEPS) * ALONE_OPS * max(1, device.compute_units))
    return cost / (SUSTAINED * peaks.flops) + traffic / (COPY_SHARE * peaks.bandwidth) + launches * peaks.launch


def least_seconds(problem: ConvProblem, device: DeviceInfo) -> float:
    """Return seconds below which no tile is predicted: of the operations, at the largest share of the peak."""
    best_share = max(shares[problem.direction == "bwd_weights"] for shares in (*_TILES.values(), (0.5, 0.5)))
    return 2 * least_products(problem) / (best_share * SUSTAINED * rates(device).flops)


def _bank_waits(product: Product) -> Any:
    """Accesses of a bank that loads of taps wait for: in NHWC adjacent items' numbers are a pixel of channels apart."""
    geo, t = product.geometry, product.tile
    if not (product.taps_in_slice and geo.source.nhwc):
        return 0.0
    pixel_bytes = geo.source.axes[2] * geo.step[2] * product.problem.itemsize
    lines = pixel_bytes / LINE_BYTES
    turns = max(math.gcd(pixel_bytes, LINE_BYTES) / LINE_BYTES, BANK_SHARE * min(1.0, lines))
    return turns * geo.groups * product.m_tiles * product.n_tiles * t.bn * sum(product.slices) * t.bk


def fits(problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether any tile can run the problem on the device."""
    return bool(_tiles(_TileKey.of(problem), device))


def choices(problem: ConvProblem, device: DeviceInfo) -> list[Tile]:
    """Tiles that fit, the fastest by prediction first; the one with the smallest workspace is among them."""
    tiles, ranked = _tiles(_TileKey.of(problem), device), []
    for walk in dict.fromkeys(tile.walk for tile in tiles):
        numbers = [index for index, tile in enumerate(tiles) if tile.walk == walk]
        splits = _splits(_stacked(problem, [(tiles[index], 1) for index in numbers]), device)
        index_and_split = [(index, split) for index, parts in zip(numbers, splits, strict=True) for split in parts]
        product = _stacked(problem, [(tiles[index], split) for index, split in index_and_split])
        sizes = product.packed_size + product.partial_size
        ranked += zip(seconds(product, device).tolist(), index_and_split, sizes.tolist(), strict=True)
    ranked.sort(key=lambda entry: entry[:2])
    smallest = min(ranked, key=lambda entry: entry[2], default=None)
    offered = ranked[:MAX_CONFIGS]
    if smallest is not None and smallest not in offered:
        offered.append(smallest)
    return [dataclasses.replace(tiles[index], split=split) for _, (index, split), _ in offered]


def _stacked(problem: ConvProblem, tiles: Sequence[tuple[Tile, int]]) -> Product:
    """The products of (tile, parts of the sum), whose tiles have the same walk, as one product of arrays."""
    nbytes = max(math.prod(getattr(problem, f"{name}_shape")) for name in "xwy") * problem.itemsize
    # Python integers serve tensors that exceed 64-bit arithmetic: no device holds them, but the predictions stay exact.
    number_type = np.int64 if nbytes < LARGE_BYTES else object
    rows = np.array([(t.bm, t.bn, t.bk, t.tm, t.tn, t.stages, split) for t, split in tiles], number_type)
    names = ("bm", "bn", "bk", "tm", "tn", "stages", "split")
    return Product(problem, dataclasses.replace(tiles[0][0], **dict(zip(names, rows.T, strict=True))))
