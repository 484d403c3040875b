"""Which tiles to try for a problem on a device, and in which order: a model of waves, padding, reuse and traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from convdispatch.api import ConvProblem, DeviceInfo, rates, walk_of

from .product import Product, tap_run
from .tile import Tile

__all__ = ["SECTOR", "SUSTAINED", "choices", "fits", "seconds"]

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
_START = 20  # steps of k in the time of a tile's first loads and last stores
_FLAT, _TAPS = 0.7, 0.94  # of a tile's speed where slices hold channels and taps, or taps
SUSTAINED = 0.92
"""Of the device's rate of multiply-adds: 60 of an H200's 65 TFLOP/s, which the model's shares are shares of."""
_COPY = 0.94  # of a copy's bandwidth, at which operands are packed and partial sums move
SECTOR = 1050.0
"""Operations in the time in which a sector of 32 bytes is written, beyond the eighth of one that a result fills."""
_WRITES = {"n": 0.0, "m": 0.125, None: 0.375}  # such sectors that work items touch for a result
_MOST = 64  # choices offered


def _tiles(problem: ConvProblem, device: DeviceInfo) -> Iterator[Tile]:
    geo = walk_of(problem)
    data = problem.direction != "bwd_weights"
    run = tap_run(geo) if data else None
    for bm, bn, tm, tn in _TILES:
        for depth in _DEPTHS:
            walks = [("channels", depth)]
            if not data and geo.c <= 96 and geo.volume > 1:
                walks.append(("flat", depth))
            if run is not None and geo.c < 8 and math.prod(run) > 1 and depth == _DEPTHS[0]:
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


def _splits(product: Product, device: DeviceInfo) -> list[int]:
    """Parts of the sum worth trying: 1, and those that fill the device some whole times."""
    slots = device.compute_units * max(1, _RESIDENT // product.tile.items)
    groups, most = product.work_groups, max(1, min(product.slices) // 4)
    waves = (1, 2, 3, 4) if product.data else (1, 2, 3, 4, 6)
    return sorted({1, *(min(most, max(1, wave * slots // groups)) for wave in waves)})


def _depth_factor(product: Product) -> float:
    """Shallow slices spend more on barriers; but streams that are read once want the registers for more groups."""
    streamed = not product.data and product.geometry.pointwise
    factors = {16: 0.93, 12: 0.85, 8: 0.93, 4: 0.75} if streamed else {16: 1.0, 12: 0.9, 8: 0.9, 4: 0.74}
    return factors.get(product.tile.bk, 0.8)


def seconds(product: Product, device: DeviceInfo) -> float:
    """The predicted time."""
    t, known = product.tile, rates(device)
    shares = _TILES.get((t.bm, t.bn, t.tm, t.tn), (0.5, 0.5))
    share = shares[0 if product.data else 1] * {1: 0.9, 2: 1.0}[t.stages]
    share *= _FLAT if t.walk == "flat" else 1.0
    share *= _TAPS if t.walk == "taps" else _depth_factor(product)
    slices = sum(product.slices) / len(product.slices) / t.split
    work = 2.0 * t.bm * t.bn * (slices * t.bk + _START)
    resident = max(1, _RESIDENT // t.items)
    whole, rest = divmod(product.work_groups, device.compute_units * resident)
    last = math.ceil(rest / device.compute_units) / resident * 3
    low = min(2, int(last))
    tail = (_TAIL[low] + (_TAIL[low + 1] - _TAIL[low]) * (last - low)) / 3 * resident
    cost = (whole * resident + tail) * device.compute_units * work / share
    packs = product.data and not product.problem.constant_weights
    traffic = 2 * t.split * product.out_size * product.accsize if product.partial else 0
    traffic += 3 * product.packed_size if packs else 0
    if product.data:
        cost += _WRITES[product.out_vector] * product.out_size * t.split * SECTOR
    launches = 1 + product.partial + packs
    return cost / (SUSTAINED * known.flops) + traffic / (_COPY * known.bandwidth) + launches * known.launch


def fits(problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether any tile can run the problem on the device."""
    return next(_tiles(problem, device), None) is not None


def choices(problem: ConvProblem, device: DeviceInfo) -> list[Tile]:
    """Tiles that fit, the cheapest predicted first; among them the one of the smallest workspace."""
    ranked = []
    for tile in _tiles(problem, device):
        for split in _splits(Product(problem, tile), device):
            product = Product(problem, replace(tile, split=split))
            if product.misfit is None:
                ranked.append((seconds(product, device), len(ranked), product))
    ranked.sort(key=lambda entry: entry[:2])
    products = [product for _, _, product in ranked]
    smallest = min(products, key=lambda product: product.packed_size + product.partial_size, default=None)
    kept = products[:_MOST]
    return [product.tile for product in (kept if smallest in kept else [*kept, smallest])]
