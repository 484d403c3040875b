"""Chooses register tiles, bands and blocks for one pass of the direct kernel; counts what they cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from convdispatch.api import DeviceInfo
from convdispatch.api.cpu import cdiv, registers, uneven
from convdispatch.api.cpu import lanes as lanes_of

from .passes import Pass

_SLOT = 320 * 1024  # bytes of a band's source rows: they share the second-level cache with a block of weights
_WEIGHTS = 160 * 1024  # bytes of one block of weights
_PLACES = 96  # a band should have so many places, or reading the weights shows
_ITEMS = 16
# Operations of the peak in the time of one that is counted, and of an element that is copied for a band or written;
# least squares of logarithms over backward layers, the first less
# what tiles without spills gained.
_WORK, _STAGED, _STORED = 1.28, 65.0, 25.0
_STRAIGHT = 1.0, 52.0, 15.0
"""The same where sums go straight to the target: least squares over 28 layers with channels last, for a rate which
tiles here exceed by a fifth."""
_STRIDED = 1.05, 30.0, 35.0
"""The same of a forward stride and 16 channels and more: least squares over 40 layers with kernels of 1x1 to 4x4."""
_STREAMED, _CACHED = 65.0, 6 << 20
"""Operations in the time of a weight's way from memory, for weights of more bytes than caches keep between calls."""
_SPREAD = 1.12
"""What taps apart take beside this count: the same lines come for fewer of them."""
_LOAD = 1.15  # cycles of a load beside multiply-adds: tiles of one vector load as often as they multiply


def _taps(p: Pass, axis: int, start: int, count: int) -> int:
    """Taps along an axis that read more than zeros for ``count`` places from ``start`` on: what the kernel runs."""
    taps, step, spread, size = p.taps[axis], p.step[axis], p.spread[axis], p.source[axis]
    first = start * step - p.pad[axis]
    last = first + (count - 1) * step
    begin = 0 if last >= 0 else cdiv(-last, spread)
    end = 0 if first >= size else min(taps, (size - 1 - first) // spread + 1)
    return max(0, end - begin)


def _distinct(p: Pass, axis: int, tile: int) -> Iterator[tuple[int, int]]:
    """(first place, how many tiles are alike) of tiles along an axis: those whose taps all read inside are, and are
    counted as one, however long the axis; the others, and the last, which may be cut off, stand for themselves."""
    size, step, pad = p.places[axis], p.step[axis], p.pad[axis]
    whole = size // tile
    first = min(whole, max(0, cdiv(cdiv(pad, step), tile)))
    last = (p.source[axis] - 1 - (p.taps[axis] - 1) * p.spread[axis] + pad) // step // tile
    end = min(whole, max(first, last + 1))
    yield from ((place * tile, 1) for place in range(first))
    if end > first:
        yield first * tile, end - first
    yield from ((place * tile, 1) for place in range(end, cdiv(size, tile)))


@functools.lru_cache(maxsize=4096)
def tile_cycles(p: Pass, nv: int, pr: int, pc: int, lanes: int) -> float:
    """Cycles of one source channel over a whole plane of places and all channels: a multiply-add or a load each."""
    width = p.places[2]
    rows = sum(count * _taps(p, 1, row, pr) for row, count in _distinct(p, 1, pr))
    steps = 0.0
    for column, count in _distinct(p, 2, pc):
        sums = pr * min(pc, width - column)
        tap = max(sums * nv, _LOAD * (sums + nv), 4) + 0.4 * nv + 0.6
        steps += count * _taps(p, 2, column, min(pc, width - column)) * tap
    return rows * steps * p.taps[0] * cdiv(p.n, nv * lanes)


def tiles(p: Pass, device: DeviceInfo) -> Iterator[tuple[float, int, int, int]]:
    """(cycles, nv, pr, pc) of every tile that fits the registers."""
    lanes, room = lanes_of(device, p.dtype), registers(device)
    height, width = p.places[1:]
    for nv in range(1, 5):
        if nv > 1 and (nv - 1) * lanes >= p.n:
            break
        for pc in range(1, min(width, room) + 1):
            for pr in range(1, (min(height, 8) if pc == width else 1) + 1):
                # Several vectors of channels with more sums than three quarters of the registers spill: 2x14 took 1.1
                # to 1.3 times 2x12, while one vector of 28 or 30 did not.
                if pr * pc * nv + nv + 1 <= room and (nv == 1 or pr * pc * nv <= room * 3 // 4):
                    yield tile_cycles(p, nv, pr, pc, lanes), nv, pr, pc


def complete(p: Pass, device: DeviceInfo, nv: int, pr: int, pc: int, weights: int = _WEIGHTS) -> dict[str, Any]:
    """A configuration of one pass from its tile: bands, blocks of channels, work items."""
    size = 8 if p.dtype == "float64" else 4
    lanes = lanes_of(device, p.dtype)
    height, width = p.places[1:]
    row_bytes = p.c * p.taps[0] * ((width - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1) * size
    extra = (p.taps[1] - 1) * p.spread[1] + 1
    rows = max(1, (_SLOT // max(1, row_bytes) - extra) // p.step[1] + 1)
    rows = max(rows, cdiv(_PLACES, width))
    outer = p.images * p.groups * p.places[0]
    want = 8 * device.compute_units
    rows = min(rows, max(cdiv(_PLACES, width), height * outer // want), height)
    rows = cdiv(cdiv(height, cdiv(height, rows)), pr) * pr
    bands = outer * cdiv(height, rows)
    blocks = cdiv(p.n, nv * lanes)
    parts = max(1, min(blocks, 4 * device.compute_units // bands))
    # Sums that wait between blocks are stored and read once more: weights in four times the room cost less than that.
    each = nv * lanes * p.volume * size
    cb = p.c if p.c * each <= (4 if straight(p, p.c) else 1) * weights else max(1, weights // each)
    cb = cdiv(p.c, cdiv(p.c, cb))
    return {"nv": nv, "pr": pr, "pc": pc, "rows": rows, "cb": cb, "items": min(bands, _ITEMS), "parts": parts}


def default(p: Pass, device: DeviceInfo) -> dict[str, Any]:
    """The configuration that the counts favour."""
    return next(spaces(p, device))


def spaces(p: Pass, device: DeviceInfo) -> Iterator[dict[str, Any]]:
    """Configurations, the default first: each width's best tile by what it costs, then other blocks of channels."""
    best: dict[int, tuple[int, int, int]] = {}
    for _, nv, pr, pc in sorted(tiles(p, device), key=lambda choice: (choice[0], -choice[1])):
        best.setdefault(nv, (nv, pr, pc))
    # Wide tiles leave few blocks of channels, and cores idle where there are few bands.
    rated = [(predicted(p, config := complete(p, device, *tile), device), tile, config) for tile in best.values()]
    rated.sort(key=lambda choice: (choice[0], -choice[1][0]))
    for cost, _, config in rated:
        if cost <= 1.25 * rated[0][0]:
            yield config
    for weights in (_WEIGHTS // 8, _WEIGHTS * 4):
        config = complete(p, device, *rated[0][1], weights=weights)
        if config != rated[0][2]:
            yield config


def straight(p: Pass, cb: int) -> bool:
    """Whether a tile's sums are complete and lie as the target does: nothing waits in the slot."""
    return p.nhwc and cb >= p.c and p.fold == 1


def predicted(p: Pass, config: dict[str, Any], device: DeviceInfo) -> float:
    """FLOPs at the peak that a configuration's time amounts to."""
    lanes = lanes_of(device, p.dtype)
    cycles = tile_cycles(p, config["nv"], config["pr"], config["pc"], lanes)
    work = 2 * lanes * cycles * p.images * p.groups * p.places[0] * p.c
    staged = p.images * math.prod(p.source) * p.groups * p.c * (1 + (p.taps[1] - 1) / max(1, config["rows"]))
    stored = p.images * p.groups * p.n * math.prod(p.places)
    weights = p.groups * p.c * p.n * math.prod(p.taps)
    streamed = weights if weights * (8 if p.dtype == "float64" else 4) > _CACHED else 0
    each, copied, written = _STRAIGHT if straight(p, config["cb"]) else (_WORK, _STAGED, _STORED)
    if not p.nhwc and max(p.step) > 1 and p.c >= 16:
        each, copied, written = _STRIDED
    if max(p.spread) > 1:
        each *= _SPREAD
    spent = each * work + copied * staged * config["parts"] + written * stored
    return uneven(config["items"] * config["parts"], device) * spent + _STREAMED * streamed
