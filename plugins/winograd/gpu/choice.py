"""Configurations of a problem on a device, and their predicted time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import DeviceInfo, gemm_configs, rates

from ..geometry import TileGeometry
from .error import longest
from .plan import work_of
from .work import Work

MAX_TILES = 4
"""Most product tiles that are offered as configurations."""
MIN_PIECE_TILES = 64
"""A piece with fewer tiles is not divided further, because that would only add launches."""
UNIT_REGISTERS = 65536
"""Registers of a compute unit; a work item needs some 70 in addition to those of its products."""
RESIDENT_GROUPS = 3
"""Work groups of a product that a compute unit runs at a time."""

# The constants of the cost model below were fitted on an H200.
SUSTAINED = 0.92
"""Share of the device's multiply-add peak that is sustained: 60 of an H200's 65 TFLOP/s. Other shares multiply it."""
# Share of SUSTAINED that long products reach, by the number of products that a work item computes
SHARES = {128: 0.76, 64: 0.82, 32: 0.65, 16: 0.49}
# Steps of k in the time of a work group's first loads and last stores: product tiles up to 64x128, and larger ones
START_STEPS = (24, 50)
# Steps of k in the time of a work group's first loads and last stores, if both operands are transposed on their way to
# local memory
WEIGHTS_START_STEPS = 55
COPY_SHARE = 0.94
"""Share of the measured bandwidth of a copy that the transform kernels reach."""


def _tiles(work: Work, device: DeviceInfo) -> list[dict[str, Any]]:
    """Product tiles that fit the device, the one expected to be fastest first."""
    tiles: list[dict[str, Any]] = []
    for config in gemm_configs(work.product(), device):
        tile = {name: value for name, value in config.items() if name not in ("kind", "split", "ks")}
        if tile not in tiles:
            tiles.append(tile)
    return tiles[:MAX_TILES]


def _sum_parts(geometry: TileGeometry, tile: Mapping[str, Any], device: DeviceInfo, pieces: int) -> int:
    """Return the number of parts of a weights' gradient's sums that fills the GPU with whole waves of work groups."""
    if not geometry.weights:
        return 1
    work = Work(geometry, pieces)
    groups = -(-work.mp // tile["bm"]) * -(-work.kp // tile["bn"]) * geometry.points * geometry.groups
    items = tile["bm"] * tile["bn"] // (tile["tm"] * tile["tn"])
    slots = device.compute_units * max(1, UNIT_REGISTERS // (items * (tile["tm"] * tile["tn"] + 70)))
    longest_sum = longest(geometry)
    min_parts = 1 if longest_sum is None else -(-work.piece // longest_sum)
    max_parts = max(min_parts, 1, min(64, work.piece // 256))

    def waste(parts: int) -> float:
        waves = math.ceil(groups * parts / slots)
        return waves * slots / (groups * parts) + 0.02 * parts * (1 if groups >= slots else 0.2)

    return min(range(min_parts, max_parts + 1), key=waste)


def choices(geometry: TileGeometry, device: DeviceInfo) -> Iterator[dict[str, Any]]:
    """Configurations: product tiles over the largest pieces that one allocation holds, then ever smaller pieces."""
    limit = min(device.max_alloc_size or 1 << 62, (device.global_mem_size or 1 << 62) // 4)
    pieces = 1
    while Work(geometry, pieces).areas[3] > limit and Work(geometry, pieces).piece > MIN_PIECE_TILES:
        pieces *= 2
    tiles = _tiles(Work(geometry, pieces), device)
    for tile in tiles:
        yield {**tile, "pieces": pieces, "parts": _sum_parts(geometry, tile, device, pieces)}
    while tiles and Work(geometry, pieces).piece > MIN_PIECE_TILES:
        pieces *= 2
        yield {**tiles[0], "pieces": pieces, "parts": _sum_parts(geometry, tiles[0], device, pieces)}


@functools.lru_cache(maxsize=4096)
def _traffic(work: Work) -> float:
    """Bytes that the transforms read and write; the product's traffic is hidden by its arithmetic."""
    geometry, problem = work.geometry, work.geometry.problem
    tensors = math.prod(problem.out_shape) * problem.itemsize * (1 + problem.accumulate + problem.residual)
    tensors += math.prod(problem.x_shape if problem.written != "x" else problem.y_shape) * problem.itemsize
    if geometry.weights:
        tensors += math.prod(problem.y_shape) * problem.itemsize
        transformed = work.source_size + work.second_size + work.product_size
    else:
        transformed = work.pieces * (work.source_size + work.product_size)
        transformed += 0 if work.constant else 2 * work.second_size
        # NCHW output elements are written a tile apart, so each 32-byte sector is written more than once.
        if not geometry.nhwc and work.inverse.run == 1:
            tensors += math.prod(problem.out_shape) * problem.itemsize
    return tensors + transformed * work.accsize


def seconds(geometry: TileGeometry, config: Mapping[str, Any], device: DeviceInfo) -> float:
    """Return the predicted seconds of one call."""
    work, peaks = work_of(geometry, config), rates(device)
    spec = work.product()
    m, n = (spec.n, spec.m) if config["swap"] else (spec.m, spec.n)
    groups = -(-m // config["bm"]) * -(-n // config["bn"]) * spec.batch
    area = config["bm"] * config["bn"]
    group_ops = 2.0 * area * (spec.k + (WEIGHTS_START_STEPS if geometry.weights else START_STEPS[area > 8192]))
    slots = device.compute_units * RESIDENT_GROUPS
    waves = max(math.ceil(groups / slots), groups / slots + 0.3)
    product = waves * slots * group_ops / SHARES.get(config["tm"] * config["tn"], 0.42)
    bandwidth = COPY_SHARE * peaks.bandwidth
    memory_seconds = (work.source_size + work.product_size) * work.accsize / bandwidth
    product = max(product / (SUSTAINED * peaks.flops), memory_seconds)
    launches = work.pieces * 3 + 1 + (work.parts > 1)
    return work.pieces * product + _traffic(work) / bandwidth + launches * peaks.launch
