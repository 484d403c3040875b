"""Which transforms, tiles and parts to try, in the order of their predicted time; pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from convdispatch.api import ConvProblem, DeviceInfo

from ..transforms import codelet
from .geometry import Axis, Transform
from .plan import Layout

__all__ = ["layouts", "operations", "transforms"]

_SIZES = (8, 10, 12, 14, 16, 18, 20, 24, 28, 30, 32, 36, 40, 42, 48, 54, 56, 60, 64)
"""Points of a transform: a complex row of 64 fills 128 registers."""
_TILES = ((64, 64, 8, 8, 4), (64, 32, 8, 4, 4), (32, 64, 8, 4, 4), (32, 32, 8, 4, 4), (16, 64, 8, 4, 4), (64, 16, 8, 4, 4))
_BYTE = 16.0
"""Operations in the time in which a byte moves: 65 TFLOP/s over 4.2 TB/s on one H200."""
_SHARE = 0.7
"""Share of the multiply-add peak that products reach; transforms, additions mostly, reach half of it."""


def transforms(problem: ConvProblem) -> Iterator[tuple[int, int]]:
    """Sizes (height, width) worth a thought: along each axis, of those with equally many tiles the shortest."""
    choices = {}
    for axis in "hw"[2 - problem.ndim :]:
        found: dict[int, int] = {}
        for size in (1, *_SIZES) if getattr(problem, "k" + axis) == 1 else _SIZES:
            cut = Axis.of(problem, axis, size)
            if cut is not None:
                found.setdefault(cut.tiles, size)
        choices[axis] = sorted(found.values())
    for width in choices["w"]:
        for height in choices.get("h", [1]):
            if width * height > 1:
                yield height, width


def operations(layout: Layout) -> float:
    """Predicted time of a configuration, in operations of the direct sum at the device's peak."""
    problem, transform = layout.problem, layout.transform
    m, n, k = layout.chunks
    m_parts, n_parts, k_parts = map(len, layout.starts)
    bm, bn = layout.tile[:2]
    batch = transform.frequencies * problem.g
    tiles = -(-m // bm) * bm * -(-n // bn) * bn
    products = 8.0 * batch * tiles * k * m_parts * n_parts * k_parts / _SHARE
    left, right, result = (float(size) for size in layout.sizes)
    left_runs = 0 if layout.packs else m_parts * k_parts * (n_parts if k_parts > 1 else 1)
    right_runs = n_parts * k_parts * (m_parts if m_parts * k_parts > 1 else 1)
    result_runs = m_parts * n_parts
    traffic = left * (left_runs + m_parts * n_parts * k_parts) + right * (right_runs + m_parts * n_parts * k_parts)
    traffic += result * result_runs * 2 * k_parts + problem.bytes
    spent = 0.0
    for spectra, runs, given in (
        (m * k, left_runs, (transform.columns.other.given, transform.rows.other.given)),
        (k * n, right_runs, (transform.columns.data.given, transform.rows.data.given)),
    ):
        spent += spectra * problem.g * runs * _forward(transform, *given)
    spent += layout.result_rows * n * problem.g * result_runs * _inverse(transform)
    return products + traffic * _BYTE + spent * 2 / (_SHARE / 2) * 0.5


def _forward(transform: Transform, down: int, right: int) -> float:
    columns, rows = transform.columns.size, transform.rows.size
    real, full = codelet(columns, "real_forward", given=down), codelet(rows, "forward", given=right)
    return right * real.operations + transform.height * full.operations


def _inverse(transform: Transform) -> float:
    columns, rows = transform.columns, transform.rows
    real = codelet(columns.size, "real_inverse", wanted=columns.wanted)
    full = codelet(rows.size, "inverse", wanted=rows.wanted)
    return len(rows.wanted) * real.operations + transform.height * full.operations


def layouts(problem: ConvProblem, device: DeviceInfo) -> Iterator[Layout]:
    """Layouts that fit the device: transforms by predicted time, then their products' variants, then in parts."""
    local = local_bytes(device)
    found = []
    for sizes in transforms(problem):
        transform = Transform.of(problem, sizes)
        if transform is None:
            continue
        for tile in _TILES:
            if tile[0] // tile[3] * (tile[1] // tile[4]) > device.max_work_group_size:
                continue
            layout = Layout(problem, transform, (1, 1, 1), local, tile, False, 8, 256)
            if layout.fits(device):
                found.append((operations(layout) * _slower(tile), len(found), layout))
    if not found:
        return
    found.sort(key=lambda entry: entry[:2])
    best = found[0][2]
    seen = set()
    for cost, _, layout in found:
        shape = (layout.transform.columns.size, layout.transform.rows.size)
        if shape not in seen and cost < 2 * found[0][0]:
            seen.add(shape)
            yield layout
            yield dataclasses.replace(layout, three=True, tile=(64, 64, 8, 8, 8))
    yield from (layout for _, _, layout in found[1:4])
    yield from in_parts(best)
    smallest = min((layout for _, _, layout in found), key=lambda layout: layout.transform.frequencies)
    if smallest.transform != best.transform:
        yield from in_parts(smallest)


def _slower(tile: tuple[int, ...]) -> float:
    """Time of a tile's inner loop over that of the largest: small tiles load more a multiply-add."""
    return 1.0 + 0.15 * math.log2(64 * 64 / (tile[0] * tile[1]))


def local_bytes(device: DeviceInfo) -> int:
    """Local memory that a work group may declare.

    NVIDIA's compiler takes more than the device reports, which is what CUDA takes without asking: up to 99 KB on every
    chip since 2020 (sm_80 and later), 227 on some.
    """
    known = device.vendor == "nvidia" and device.arch[3:].isdigit() and int(device.arch[3:]) >= 80
    return max(device.local_mem_size, 72 * 1024 if known else 0)


def in_parts(layout: Layout) -> Iterator[Layout]:
    """Falling workspace: the sides are cut in two, each time the one that saves most, down to one work group each.

    Images (or what is summed over them) first, where that saves nearly as much: their parts transform nothing twice.
    """
    images = 2 if layout.problem.direction == "bwd_weights" else 1
    while True:
        best = None
        for side in (images, 0, 1, 2):
            parts = list(layout.parts)
            parts[side] = 2 * len(layout.starts[side])
            cut = dataclasses.replace(layout, parts=tuple(parts))
            if cut.chunks[side] < layout.chunks[side]:
                saved = (layout.workspace_size - cut.workspace_size) * (1.5 if side == images else 1)
                if saved > 0 and (best is None or saved > best[0]):
                    best = saved, cut
        if best is None:
            return
        layout = best[1]
        yield layout
