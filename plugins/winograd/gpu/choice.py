"""Configurations of a problem on a device, and their predicted time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, gemm_configs, rates

from ..geometry import ERROR_RATES, TileGeometry
from .work import Work

MAX_TILES = 4
"""Most product tiles that are offered as configurations."""
MIN_PIECE_TILES = 64
"""A piece with fewer tiles is not divided further, because that would only add launches."""
RESIDENT_GROUPS = 3
"""Work groups of a product that a compute unit runs at a time."""

# The constants of the cost model below were fitted on an H200.
SUSTAINED = 0.92
"""Share of the device's multiply-add peak that is sustained: 60 of an H200's 65 TFLOP/s. Other shares multiply it."""
# Share of SUSTAINED that long products reach, by the number of products that a work item computes
SHARES = {128: 0.76, 64: 0.82, 32: 0.65, 16: 0.49}
# Steps of k in the time of a work group's first loads and last stores: product tiles up to 64x128, and larger ones
START_STEPS = (24, 50)
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


def choices(geometry: TileGeometry, device: DeviceInfo) -> Iterator[dict[str, Any]]:
    """Configurations: product tiles over the largest pieces that one allocation holds, then ever smaller pieces."""
    limit = min(device.max_alloc_size or 1 << 62, (device.global_mem_size or 1 << 62) // 4)
    pieces = 1
    while Work(geometry, pieces).areas[3] > limit and Work(geometry, pieces).piece > MIN_PIECE_TILES:
        pieces *= 2
    tiles = _tiles(Work(geometry, pieces), device)
    for tile in tiles:
        yield {**tile, "pieces": pieces}
    while tiles and Work(geometry, pieces).piece > MIN_PIECE_TILES:
        pieces *= 2
        yield {**tiles[0], "pieces": pieces}


@functools.lru_cache(maxsize=4096)
def _traffic(work: Work) -> float:
    """Bytes that the transforms read and write; the product's traffic is hidden by its arithmetic."""
    geometry, problem = work.geometry, work.geometry.problem
    tensors = math.prod(problem.out_shape) * problem.itemsize * (1 + problem.accumulate + problem.residual)
    tensors += math.prod(problem.x_shape if problem.written != "x" else problem.y_shape) * problem.itemsize
    transformed = work.pieces * (work.source_size + work.product_size)
    transformed += 0 if work.constant else 2 * work.second_size
    # NCHW output elements are written a tile apart, so each 32-byte sector is written more than once.
    if not geometry.nhwc and work.inverse.run == 1:
        tensors += math.prod(problem.out_shape) * problem.itemsize
    return tensors + transformed * work.accsize


def seconds(geometry: TileGeometry, config: Mapping[str, Any], device: DeviceInfo) -> float:
    """Return the predicted seconds of one call."""
    work, peaks = Work(geometry, config["pieces"]), rates(device)
    spec = work.product()
    m, n = (spec.n, spec.m) if config["swap"] else (spec.m, spec.n)
    groups = -(-m // config["bm"]) * -(-n // config["bn"]) * spec.batch
    area = config["bm"] * config["bn"]
    group_ops = 2.0 * area * (spec.k + START_STEPS[area > 8192])
    slots = device.compute_units * RESIDENT_GROUPS
    waves = max(math.ceil(groups / slots), groups / slots + 0.3)
    product = waves * slots * group_ops / SHARES.get(config["tm"] * config["tn"], 0.42)
    bandwidth = COPY_SHARE * peaks.bandwidth
    memory_seconds = (work.source_size + work.product_size) * work.accsize / bandwidth
    product = max(product / (SUSTAINED * peaks.flops), memory_seconds)
    return work.pieces * product + _traffic(work) / bandwidth + (work.pieces * 3 + 1) * peaks.launch


TILES = tuple(tile for tile in ERROR_RATES if tile != (7, 3))
"""Tile sizes and kernel sizes that have a solver; F(7, 3) needs short sums."""
MAX_ERROR = 1e-5
"""Relative error that math "float32" allows."""
EXPECTED_SHARE = 0.7
"""Share of ``MAX_ERROR`` that the expected error of a whole tensor may reach: elements near its borders have up to 1.5
times the error."""


def _rate(geometry: TileGeometry) -> float:
    r = max(geometry.taps)
    return ERROR_RATES[geometry.m, r][0 if min(geometry.taps) > 1 else 1]


def expected(geometry: TileGeometry, terms: int) -> float:
    """Relative error of sums of ``terms`` products: channels per group, or tiles of dy."""
    return _rate(geometry) * math.sqrt(max(terms, 16))


def longest(geometry: TileGeometry) -> int | None:
    """Most products that one sum may add under the problem's math; None if there is no limit."""
    problem = geometry.problem
    if problem.dtype != "float32" or problem.math in ("tf32", "fast"):
        return None
    return int((EXPECTED_SHARE * MAX_ERROR / _rate(geometry)) ** 2)


def refusal(geometry: TileGeometry) -> str | None:
    """Why the problem's math does not admit the tile, or None."""
    problem: ConvProblem = geometry.problem
    if problem.dtype == "float32" and problem.math == "ieee" and (geometry.m > 2 or max(geometry.taps) > 5):
        tile = f"F({geometry.m}, {max(geometry.taps)})"
        return f"as exact as a plain sum only in tiles of 2 and kernels of 5 at most, got {tile}"
    max_products = longest(geometry)
    channels = geometry.source.channels // geometry.groups
    if max_products is not None and max_products < 64:
        return f"an error of 1e-5 at most, got {expected(geometry, 64):.1e} for 64 channels"
    if max_products is not None and not geometry.weights and channels > max_products:
        return f"within 1e-5 up to {max_products} channels a group, got {channels}"
    return None
