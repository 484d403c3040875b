"""Which tiles to try for a problem on a device, and in which order: a model of waves, padding, reuse and traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from convdispatch.api import ConvProblem, DeviceInfo, walk_of

from .product import Product, tap_run
from .tile import Tile

__all__ = ["choices", "fits", "predicted"]

# (bm, bn, tm, tn): share of the multiply-add peak that a busy device reaches, forward and in the weights' gradient.
# Measured on an H200; what counts is their order.
_TILES = {
    (64, 128, 8, 8): (0.72, 0.68),
    (128, 64, 8, 8): (0.72, 0.69),
    (128, 128, 16, 8): (0.71, 0.60),
    (64, 256, 8, 16): (0.68, 0.64),
    (96, 128, 12, 8): (0.66, 0.66),
    (64, 64, 8, 8): (0.63, 0.68),
    (48, 128, 12, 8): (0.58, 0.58),
    (32, 128, 8, 8): (0.62, 0.58),
    (128, 128, 8, 8): (0.60, 0.54),
    (32, 128, 8, 4): (0.45, 0.52),
    (64, 64, 8, 4): (0.50, 0.60),
    (32, 64, 4, 4): (0.38, 0.40),
    (16, 128, 4, 4): (0.38, 0.32),
    (32, 32, 4, 4): (0.30, 0.38),
    (16, 32, 4, 4): (0.20, 0.28),
    (8, 16, 4, 4): (0.06, 0.06),
}
_DEPTHS = (16, 8, 12, 4)
_RESIDENT = 384  # of 8x8 tiles: work items that a compute unit holds at once; their registers are what bounds it
# What a compute unit spends on its last r groups of 128 items, in times of one at full speed: fewer hide less.
_TAIL = (0.0, 2.2, 2.6, 3.0)
_DRAIN = 0.2  # waves that filling and emptying the device cost
_FLOPS_A_BYTE = 15.0  # multiply-add operations in the time of moving a byte
_MOST = 64  # choices offered
_LAUNCH = 1 << 23  # bytes moved in the time between two launches


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


def predicted(product: Product, device: DeviceInfo) -> float:
    """Operations that would take as long at the device's multiply-add peak."""
    t = product.tile
    shares = _TILES.get((t.bm, t.bn, t.tm, t.tn), (0.5, 0.5))
    share = shares[0 if product.data else 1] * {1: 0.9, 2: 1.0}[t.stages]
    if t.walk == "flat":
        share *= 0.85
    if t.walk != "taps":
        share *= _depth_factor(product)
    slices = sum(product.slices) / len(product.slices) / t.split
    work = 2.0 * t.bm * t.bn * (slices * t.bk + 32)  # 32: the first loads and the last stores, in steps of k
    resident = max(1, _RESIDENT // t.items)
    whole, rest = divmod(product.work_groups, device.compute_units * resident)
    last = math.ceil(rest / device.compute_units) / resident * 3
    low = min(2, int(last))
    tail = (_TAIL[low] + (_TAIL[low + 1] - _TAIL[low]) * (last - low)) / 3 * resident
    cost = (whole * resident + tail + _DRAIN * resident) * device.compute_units * work / share
    traffic = 0
    if product.partial:
        traffic += 2 * t.split * product.out_size * product.accsize + _LAUNCH
    if product.data and not product.problem.constant_weights:
        traffic += 3 * product.packed_size + _LAUNCH
    return cost + _FLOPS_A_BYTE * traffic


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
                ranked.append((predicted(product, device), len(ranked), product))
    ranked.sort(key=lambda entry: entry[:2])
    products = [product for _, _, product in ranked]
    smallest = min(products, key=lambda product: product.packed_size + product.partial_size, default=None)
    kept = products[:_MOST]
    return [product.tile for product in (kept if smallest in kept else [*kept, smallest])]
