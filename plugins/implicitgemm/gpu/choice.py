"""Which tiles to try for a problem on a device, and in which order: a model of waves, padding and reuse."""

from __future__ import annotations

import math
from collections.abc import Iterator

from convdispatch.api import ConvProblem, DeviceInfo

from .geometry import geometry
from .product import Product, tap_run
from .tile import Tile

__all__ = ["choices", "predicted"]

# (bm, bn, tm, tn, share of the peak that the inner loop reaches)
_TILES = (
    (64, 128, 8, 8, 0.75),
    (128, 128, 8, 8, 0.74),
    (128, 64, 8, 8, 0.74),
    (96, 128, 12, 8, 0.74),
    (64, 64, 8, 8, 0.66),
    (48, 128, 12, 8, 0.66),
    (32, 128, 8, 8, 0.68),
    (32, 128, 8, 4, 0.60),
    (64, 64, 8, 4, 0.60),
    (32, 64, 4, 4, 0.40),
    (16, 128, 4, 4, 0.40),
    (32, 32, 4, 4, 0.35),
    (16, 32, 4, 4, 0.25),
    (8, 16, 4, 4, 0.1),
)
_DEPTHS = (16, 8, 12, 4)
_GROUPS_AT_ONCE = 3  # work groups of 128 items that a compute unit needs to be busy


def _tiles(problem: ConvProblem, device: DeviceInfo) -> Iterator[tuple[Tile, float]]:
    geo = geometry(problem)
    data = problem.direction != "bwd_weights"
    run = tap_run(geo) if data else None
    few = geo.c < 8
    for bm, bn, tm, tn, share in _TILES:
        for depth in _DEPTHS:
            walks = [("channels", depth)]
            if not data and geo.c <= 64:
                walks.insert(0 if geo.c < 32 else 1, ("flat", depth))
            if few and run is not None and math.prod(run) > 1 and depth == _DEPTHS[0]:
                walks.insert(0, ("taps", math.prod(run)))
            for walk, bk in walks:
                for stages in (2, 1):
                    tile = Tile(bm, bn, bk, tm, tn, stages=stages, walk=walk)
                    product = Product(problem, tile)
                    if product.misfit or product.local_size > device.local_mem_size:
                        continue
                    if tile.items > min(device.max_work_group_size, device.max_work_item_sizes[0]):
                        continue
                    yield tile, share * (0.97 if bk < 16 else 1) * (0.9 if stages == 1 else 1)
                    break


def _splits(product: Product, device: DeviceInfo) -> list[int]:
    """Parts of the sum worth trying: 1, and as many as fill the device once, twice, three times."""
    slices = min(product.slices)
    slots = device.compute_units * max(1, 512 // product.tile.items)
    groups = product.work_groups
    tried = {1}
    if product.data and groups >= 4 * device.compute_units:
        return [1]
    for waves in (0.5, 1, 2):
        split = int(waves * slots / groups)
        tried.add(max(1, min(split, slices // 4, 1024)))
    return sorted(tried)


def predicted(product: Product, device: DeviceInfo) -> float:
    """Operations, in units of one at the device's peak."""
    t = product.tile
    share = next((s for *shape, s in _TILES if shape == [t.bm, t.bn, t.tm, t.tn]), 0.5)
    return _cost(product, device, share)


def _cost(product: Product, device: DeviceInfo, share: float) -> float:
    t, geo = product.tile, product.geometry
    slices = sum(product.slices) / len(product.slices) / t.split
    work = 2.0 * t.bm * t.bn * (slices * t.bk + 24)  # 24: the prologue and epilogue, in k's
    groups = product.work_groups
    waves = math.ceil(groups / device.compute_units)
    together = min(1.0, groups / device.compute_units * t.items / (128 * _GROUPS_AT_ONCE))
    cost = waves * work * device.compute_units / share / max(together, 0.3)
    # The reduction's and the packing's traffic, at some 15 operations a byte, and a launch each.
    bytes_moved = 0
    if product.partial:
        bytes_moved += (t.split + 1) * product.out_size * product.accsize * (1 if t.split > 1 else 2) + (1 << 23)
    if product.data and not product.problem.constant_weights:
        bytes_moved += 2 * product.packed_size + (1 << 23)
    return cost + 15.0 * bytes_moved


def choices(problem: ConvProblem, device: DeviceInfo) -> Iterator[Tile]:
    """Tiles that fit, the cheapest predicted first; then the rest in order."""
    from dataclasses import replace

    ranked = []
    for tile, share in _tiles(problem, device):
        for split in _splits(Product(problem, tile), device):
            cut = replace(tile, split=split)
            ranked.append((_cost(Product(problem, cut), device, share), len(ranked), cut))
    ranked.sort(key=lambda entry: entry[:2])
    for _, _, tile in ranked:
        yield tile
