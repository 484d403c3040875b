"""Chooses register tiles, bands and blocks for one pass of the direct kernel, and predicts what they cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from convdispatch.api import DeviceInfo
from convdispatch.api.cpu import cdiv, registers, uneven
from convdispatch.api.cpu import lanes as lanes_of

from .passes import Pass

SLOT_BYTES = 320 * 1024
"""Most bytes of the source rows of one band, which share the second-level cache with a block of weights."""
BLOCK_BYTES = 160 * 1024
"""Most bytes of one block of packed weights."""
MIN_BAND_PLACES = 96
"""Least output pixels of a band: with fewer, the time to read the weights is not hidden."""
MAX_ITEMS = 16
"""Most work items among which the bands are divided."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted by least squares of
# logarithms.

# Operations at peak rate (per operation, per copied element, per written element) of backward layers. The first number
# was lowered after the fit by the gain of tiles without register spills.
BACKWARD_OPS = (1.28, 65.0, 25.0)
# Operations as in BACKWARD_OPS of NHWC layers whose sums are written to the target directly, fitted on 28 layers
STRAIGHT_OPS = (1.0, 52.0, 15.0)
# Operations as in BACKWARD_OPS of strided NCHW layers with 16 channels or more, fitted on 40 layers of 1x1 to 4x4
# kernels
STRIDED_OPS = (1.05, 30.0, 35.0)
WEIGHT_OPS = 65.0  # operations at peak rate per weight that is read from memory
CACHED_BYTES = 6 << 20  # bytes of weights that the caches hold between calls
DILATED_FACTOR = 1.12
"""Measured over predicted time with a dilation, because fewer taps share a cache line."""
LOAD_CYCLES = 1.15
"""Cycles of a vector load, where a multiply-add takes one cycle; tiles of one vector load as often as they multiply."""


def source_width(p: Pass) -> int:
    """Return the number of source columns that a row of output pixels reads."""
    return (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1


def odd_lines(elements: int) -> int:
    """A pitch of an odd number of cache lines for 32 elements or more, so that rows spread over the cache's sets."""
    return elements if elements < 32 else cdiv(elements - 16, 32) * 32 + 16


def _taps(p: Pass, axis: int, start: int, count: int) -> int:
    """Return the number of taps along an axis that read the source for any of ``count`` pixels from ``start`` on."""
    taps, step, spread, size = p.taps[axis], p.step[axis], p.spread[axis], p.source[axis]
    lowest = start * step - p.pad[axis]
    highest = lowest + (count - 1) * step
    begin = 0 if highest >= 0 else cdiv(-highest, spread)
    end = 0 if lowest >= size else min(taps, (size - 1 - lowest) // spread + 1)
    return max(0, end - begin)


def _distinct(p: Pass, axis: int, tile: int) -> Iterator[tuple[int, int]]:
    """Yield (first pixel, number of equal tiles) along an axis. All tiles whose taps read inside the source are one
    entry, however long the axis is; each other tile, and the last one, which may be shorter, is an entry."""
    size, step, pad = p.places[axis], p.step[axis], p.pad[axis]
    full_tiles = size // tile
    first_inside = min(full_tiles, max(0, cdiv(cdiv(pad, step), tile)))
    last_inside = (p.source[axis] - 1 - (p.taps[axis] - 1) * p.spread[axis] + pad) // step // tile
    end = min(full_tiles, max(first_inside, last_inside + 1))
    yield from ((tile_index * tile, 1) for tile_index in range(first_inside))
    if end > first_inside:
        yield first_inside * tile, end - first_inside
    yield from ((tile_index * tile, 1) for tile_index in range(end, cdiv(size, tile)))


@functools.lru_cache(maxsize=4096)
def tile_cycles(p: Pass, nv: int, pr: int, pc: int, lanes: int) -> float:
    """Return the cycles of one source channel over a plane and all target channels, one per multiply-add or load."""
    width = p.places[2]
    rows = sum(count * _taps(p, 1, row, pr) for row, count in _distinct(p, 1, pr))
    steps = 0.0
    for column, count in _distinct(p, 2, pc):
        sums = pr * min(pc, width - column)
        tap = max(sums * nv, LOAD_CYCLES * (sums + nv), 4) + 0.4 * nv + 0.6
        steps += count * _taps(p, 2, column, min(pc, width - column)) * tap
    return rows * steps * p.taps[0] * cdiv(p.n, nv * lanes)


def tiles(p: Pass, device: DeviceInfo) -> Iterator[tuple[float, int, int, int]]:
    """Yield (cycles, nv, pr, pc) of every tile that fits the registers."""
    lanes, register_count = lanes_of(device, p.dtype), registers(device)
    height, width = p.places[1:]
    for nv in range(1, 5):
        if nv > 1 and (nv - 1) * lanes >= p.n:
            break
        for pc in range(1, min(width, register_count) + 1):
            for pr in range(1, (min(height, 8) if pc == width else 1) + 1):
                # Tiles of several vectors spill if their sums take more than three quarters of the registers: 2x14
                # pixels took 1.1 to 1.3 times as long as 2x12, while one vector of 28 or 30 pixels did not.
                if pr * pc * nv + nv + 1 <= register_count and (nv == 1 or pr * pc * nv <= register_count * 3 // 4):
                    yield tile_cycles(p, nv, pr, pc, lanes), nv, pr, pc


def complete(p: Pass, device: DeviceInfo, nv: int, pr: int, pc: int, weights: int = BLOCK_BYTES) -> dict[str, Any]:
    """A configuration of one pass from its tile: bands, blocks of channels, work items."""
    size = p.accumulator_size
    lanes = lanes_of(device, p.dtype)
    height, width = p.places[1:]
    row_bytes = p.c * p.taps[0] * source_width(p) * size
    halo_rows = (p.taps[1] - 1) * p.spread[1] + 1
    rows = max(1, (SLOT_BYTES // max(1, row_bytes) - halo_rows) // p.step[1] + 1)
    rows = max(rows, cdiv(MIN_BAND_PLACES, width))
    planes = p.images * p.groups * p.places[0]
    target_jobs = 8 * device.compute_units
    rows = min(rows, max(cdiv(MIN_BAND_PLACES, width), height * planes // target_jobs), height)
    rows = cdiv(cdiv(height, cdiv(height, rows)), pr) * pr
    bands = planes * cdiv(height, rows)
    blocks = cdiv(p.n, nv * lanes)
    parts = max(1, min(blocks, 4 * device.compute_units // bands))
    # Partial sums between blocks of channels are stored and read again, which costs more than reading four times as
    # many weights.
    channel_bytes = nv * lanes * p.volume * size
    cb = p.c if p.c * channel_bytes <= (4 if straight(p, p.c) else 1) * weights else max(1, weights // channel_bytes)
    cb = cdiv(p.c, cdiv(p.c, cb))
    return {"nv": nv, "pr": pr, "pc": pc, "rows": rows, "cb": cb, "items": min(bands, MAX_ITEMS), "parts": parts}


def default(p: Pass, device: DeviceInfo) -> dict[str, Any]:
    """Return the configuration with the least predicted cost."""
    return next(configs_of(p, device))


def configs_of(p: Pass, device: DeviceInfo) -> Iterator[dict[str, Any]]:
    """Configurations of a pass: the best tile of each width by predicted cost, then other blocks of channels."""
    best: dict[int, tuple[int, int, int]] = {}
    for _, nv, pr, pc in sorted(tiles(p, device), key=lambda choice: (choice[0], -choice[1])):
        best.setdefault(nv, (nv, pr, pc))
    # The predicted cost decides, not the width alone: wide tiles leave few blocks of channels, and cores idle if there
    # are also few bands.
    rated = [(predicted(p, config := complete(p, device, *tile), device), tile, config) for tile in best.values()]
    rated.sort(key=lambda choice: (choice[0], -choice[1][0]))
    for cost, _, config in rated:
        if cost <= 1.25 * rated[0][0]:
            yield config
    for weights in (BLOCK_BYTES // 8, BLOCK_BYTES * 4):
        config = complete(p, device, *rated[0][1], weights=weights)
        if config != rated[0][2]:
            yield config


def straight(p: Pass, cb: int) -> bool:
    """Whether a tile's sums are complete and in the target's order, so that they are written to it directly."""
    return p.nhwc and cb >= p.c and p.fold == 1


def predicted(p: Pass, config: dict[str, Any], device: DeviceInfo) -> float:
    """Return the predicted time of a configuration, in operations at the device's peak rate."""
    lanes = lanes_of(device, p.dtype)
    cycles = tile_cycles(p, config["nv"], config["pr"], config["pc"], lanes)
    work = 2 * lanes * cycles * p.images * p.groups * p.places[0] * p.c
    copied_elements = p.images * math.prod(p.source) * p.groups * p.c * (1 + (p.taps[1] - 1) / max(1, config["rows"]))
    written_elements = p.images * p.groups * p.n * math.prod(p.places)
    weights = p.groups * p.c * p.n * math.prod(p.taps)
    uncached_weights = weights if weights * p.accumulator_size > CACHED_BYTES else 0
    op_cost, copy_cost, write_cost = STRAIGHT_OPS if straight(p, config["cb"]) else BACKWARD_OPS
    if not p.nhwc and max(p.step) > 1 and p.c >= 16:
        op_cost, copy_cost, write_cost = STRIDED_OPS
    if max(p.spread) > 1:
        op_cost *= DILATED_FACTOR
    total = op_cost * work + copy_cost * copied_elements * config["parts"] + write_cost * written_elements
    return uneven(config["items"] * config["parts"], device) * total + WEIGHT_OPS * uncached_weights
