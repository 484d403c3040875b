"""The solver ``fft.gpu``: which problems it accepts, which configurations it offers, and their predicted time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan, rates

from ..tiling import unsuited
from .geometry import Transform, TransformAxis
from .plan import Layout, Tile, make_plan


class Spectra(Solver):
    """Stride 1, 1-D and 2-D, every direction, group, dilation and padding, on devices with local memory."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject strides and kernels of one tap."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ndim == 3:
            return "1-D and 2-D only, got 3-D"
        reason = unsuited(problem)
        if reason is not None:
            return reason
        if next(fitting(problem, device), None) is None:
            return f"no transform of 64 points or fewer holds a kernel of {problem.kh}x{problem.kw} and fits the device"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Transforms and product tiles, the fastest by prediction first; then the same in ever more parts."""
        return (layout.config() for layout in layouts(problem, device))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of the spectra of one part."""
        return Layout.of(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted time of products, transforms and the traffic of spectra."""
        return seconds(Layout.of(problem, config), device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        return make_plan(context, problem, config)


SIZES = (8, 10, 12, 14, 16, 18, 20, 24, 28, 30, 32, 36, 40, 42, 48, 54, 56, 60, 64)
"""Transform lengths, in points, that are tried: a complex row of 64 points fills 128 registers."""
MAX_PARTS = 256
"""Most parts that a layout is cut into."""
# (Tile of a product, percent of a compute unit's peak that it reaches); a complex product counts as four real ones.
TILES = (
    (Tile(64, 64, 8, 8, 4, 4), 79),
    (Tile(64, 64, 8, 4, 4, 8), 78),
    (Tile(32, 64, 8, 4, 4, 8), 78),
    (Tile(64, 32, 8, 4, 4, 8), 77),
    (Tile(32, 32, 8, 4, 4, 8), 76),
    (Tile(16, 64, 8, 4, 4, 8), 60),
    (Tile(64, 16, 8, 4, 4, 8), 60),
    (Tile(16, 16, 8, 4, 4, 8), 42),
)
SHARES = dict(TILES)

# The cost model was fitted to 155 configurations on an H200, with an rms error of the logarithm of 0.06 in NCHW and
# 0.14 in NHWC, except for four configurations that took two to seven times as long as predicted.
COPY_SHARE = 0.85  # share of the measured bandwidth of a copy that the transform kernels reach
INSTRUCTION_OPS = 2.0  # operations at peak rate per instruction of a transform
START_STEPS = 6  # steps of k in the time of a product tile's first loads and last stores
ALONE_OPS = 39e3
"""Least time of a step of k of one work group, in operations of a compute unit: 120 to 160 cycles, in 40 products with
at most two work groups per compute unit, on an H100 and an H200."""
# Time of one launch over the device's launch interval; a launch takes 6 us on an H200, most of a small layer's time
LAUNCH_FACTOR = 1.52
SECTOR_BYTES = 32  # bytes that are moved between registers and the second-level cache for an element without neighbours
# Bytes that are moved from memory for an element without neighbours, in tensors of more than CACHE_BYTES
BURST_BYTES = 64
CACHE_BYTES = 40e6


def transforms(problem: ConvProblem) -> Iterator[Transform]:
    """Transforms that are tried: along each axis the shortest of those that need the same number of tiles."""
    choices = {}
    for axis in "hw"[2 - problem.ndim :]:
        sizes_by_tiles: dict[int, int] = {}
        for size in (1, *SIZES) if getattr(problem, "k" + axis) == 1 else SIZES:
            tiling = TransformAxis.of(problem, axis, size)
            if tiling is not None:
                sizes_by_tiles.setdefault(tiling.tiles, size)
        choices[axis] = sorted(sizes_by_tiles.values())
    for width in choices["w"]:
        for height in choices.get("h", [1]):
            transform = Transform.of(problem, (height, width)) if width * height > 1 else None
            if transform is not None:
                yield transform


def seconds(layout: Layout, device: DeviceInfo) -> float:
    """Return the predicted seconds of a layout."""
    return _total_seconds(layout, device, _transform_seconds(layout, device))


def _total_seconds(layout: Layout, device: DeviceInfo, passes: list[float]) -> float:
    """Seconds of all products, which depend on the tile, and of the transforms (``passes``), which do not."""
    return sum(passes, math.prod(map(len, layout.starts)) * _product_seconds(layout, device))


def _transform_seconds(layout: Layout, device: DeviceInfo) -> list[float]:
    """Seconds of the transforms of the left operand, the right one and the result."""
    peaks = rates(device)
    transform, (m, n, k) = layout.transform, layout.chunks
    m_parts, n_parts, k_parts = map(len, layout.starts)
    left_runs = 0 if layout.packs else m_parts * k_parts * (n_parts if k_parts > 1 else 1)
    right_runs = n_parts * k_parts * (m_parts if m_parts * k_parts > 1 else 1)
    rows = transform.rows
    passes = (  # one entry per pass: its runs, the parts of its tensor, its tiles and their columns
        (left_runs, m_parts * k_parts, m * k, rows.other.given // rows.other.spread),
        (right_runs, k_parts * n_parts, k * n, rows.data.given),
        (m_parts * n_parts, m_parts * n_parts, layout.result_rows * n, len(rows.wanted)),
    )
    seconds_of_passes = []
    for side, (runs, parts, tiles, columns) in enumerate(passes):
        # Fewer than four neighbouring complex numbers do not fill a 32-byte sector.
        spectrum_bytes = layout.sizes[side] * 8.0 / min(8.0, 2.0 * layout.slots[side])
        operations = tiles * layout.problem.g * _transform_instructions(transform, columns) * INSTRUCTION_OPS
        copied = spectrum_bytes + _tensor_bytes(layout, side) / parts
        copy, compute = copied / (COPY_SHARE * peaks.bandwidth), operations / peaks.flops
        seconds_of_passes.append(runs * (math.hypot(copy, compute) + LAUNCH_FACTOR * peaks.launch))
    return seconds_of_passes


def _tensor_bytes(layout: Layout, side: int) -> float:
    """Bytes of the tensor that a pass reads or writes. In NHWC pixels of a row are apart; slots may be contiguous."""
    planes, problem = layout.planes[side], layout.problem
    elements = math.prod(getattr(problem, planes.tensor + "_shape"))
    size = problem.itemsize
    if min(planes.row_stride, planes.column_stride) > 1:
        apart = planes.slot.stride > 1
        transaction_bytes = BURST_BYTES if apart and elements * size > CACHE_BYTES else SECTOR_BYTES
        size = max(size, transaction_bytes / (1 if apart else layout.slots[side]))
    return elements * size


def _product_seconds(layout: Layout, device: DeviceInfo) -> float:
    """Return the seconds of a part's product in whole tiles and whole rounds of work groups, at the tile's speed."""
    peaks = rates(device)
    tile = layout.tile
    m, n, k = layout.result_rows, layout.chunks[1], layout.chunks[2]
    groups = -(-m // tile.bm) * -(-n // tile.bn) * layout.transform.frequencies * layout.problem.g
    rounds = -(-groups // device.compute_units) * device.compute_units
    share = SHARES.get(tile, 72)
    multiply_seconds = 8.0 * rounds * tile.bm * tile.bn * (k + START_STEPS) * 100 / share
    move_seconds = sum(layout.sizes) + (layout.sizes[2] if len(layout.starts[2]) > 1 else 0)
    multiply_seconds, move_seconds = multiply_seconds / peaks.flops, move_seconds / (COPY_SHARE * peaks.bandwidth)
    latency_seconds = (k + START_STEPS) * ALONE_OPS * max(1, device.compute_units) / peaks.flops
    return max(latency_seconds, math.hypot(multiply_seconds, move_seconds)) + LAUNCH_FACTOR * peaks.launch


def _transform_instructions(transform: Transform, columns: int) -> float:
    """Instructions of a tile's transform with ``columns`` columns: a fit, because generating codelets takes long."""
    high, wide = transform.columns.size, transform.rows.size
    return 1.2 * columns * high * math.log2(high) + 2.75 * transform.height * wide * math.log2(wide)


def layouts(problem: ConvProblem, device: DeviceInfo) -> Iterator[Layout]:
    """Layouts that fit the device: the best by predicted time first, then the best ones in ever more parts."""
    candidates = fitting(problem, device)
    rated = [(seconds(layout, device), index, layout) for index, layout in enumerate(candidates)]
    if not rated:
        return
    rated.sort(key=lambda entry: entry[:2])
    ranked = []
    for cost, index, layout in rated[:6]:
        if cost < 2 * rated[0][0]:
            ranked += [(cost, index, tiled) for cost, tiled in _tiled(layout, device)]
    ranked.sort(key=lambda entry: entry[0])
    best_tiles, other_tiles, seen_candidates = [], [], set()
    for _, index, layout in ranked:
        (other_tiles if index in seen_candidates else best_tiles).append(layout)
        seen_candidates.add(index)
    yield from best_tiles[:1]
    yield from other_tiles[:2]
    yield from best_tiles[1:3]
    yield from other_tiles[2:6]
    yield from best_tiles[3:]
    # The fastest layout and the one with the smallest spectrum of a tile are cut into parts, each with its best product
    # tile. They are sorted by predicted time, because the first one within a workspace limit is used.
    smallest = min(best_tiles, key=lambda layout: layout.transform.frequencies)
    parts = []
    for part in (part for layout in dict.fromkeys((best_tiles[0], smallest)) for part in in_parts(layout)):
        parts.append(min(_tiled(part, device), key=lambda entry: entry[0]))
    yield from (layout for _, layout in sorted(parts, key=lambda entry: entry[0]))


def _tiled(layout: Layout, device: DeviceInfo) -> list[tuple[float, Layout]]:
    """(predicted seconds, the layout with that tile) for each product tile that fits the device."""
    passes, tiled = _transform_seconds(layout, device), (layout.changed(tile) for tile, _ in TILES)
    return [(_total_seconds(candidate, device, passes), candidate) for candidate in tiled if candidate.fits(device)]


def fitting(problem: ConvProblem, device: DeviceInfo) -> Iterator[Layout]:
    """Layouts of all transforms that fit the device, unsorted, with a product tile that fits every device."""
    for transform in transforms(problem):
        # Transforms of more than 42 points take more than 128 registers: with fewer work items in a group, two work
        # groups of a large GPU run at a time.
        max_items = 160 if max(transform.columns.size, transform.rows.size) > 42 else 256
        layout = Layout(problem, transform, (1, 1, 1), TILES[6][0], local_bytes(device), max_items)
        if layout.fits(device):
            yield layout


def local_bytes(device: DeviceInfo) -> int:
    """Bytes of local memory that a work group may declare.

    NVIDIA's compiler accepts more than the device reports, up to what the chip has: 99 KB or more since sm_80.
    """
    large = device.vendor == "nvidia" and device.arch[3:].isdigit() and int(device.arch[3:]) >= 80
    return min(72 * 1024, max(device.local_mem_size, 72 * 1024 if large else 0))


def in_parts(layout: Layout) -> Iterator[Layout]:
    """Layouts of ever smaller workspace: each halves the side whose cut saves most, down to ``MAX_PARTS`` parts.

    Images, or the sum over them, are preferred if that saves nearly as much: then nothing is transformed twice.
    """
    images = 2 if layout.problem.direction == "bwd_weights" else 1
    while True:
        best = None
        for side in (images, 0, 1, 2):
            parts = list(layout.parts)
            parts[side] = 2 * len(layout.starts[side])
            candidate = layout.changed(parts=(parts[0], parts[1], parts[2]))
            if candidate.chunks[side] < layout.chunks[side]:
                saved = (layout.workspace_size - candidate.workspace_size) * (1.5 if side == images else 1)
                if saved > 0 and (best is None or saved > best[0]):
                    best = saved, candidate
        if best is None or len(best[1].starts[0]) * len(best[1].starts[1]) * len(best[1].starts[2]) > MAX_PARTS:
            return
        layout = best[1]
        yield layout
