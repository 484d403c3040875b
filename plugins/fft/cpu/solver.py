"""Compiles a geometry into the launches of its pieces."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, ConvProblem, DeviceInfo, Launch, Solver, StepPlan, build, rates
from convdispatch.api.cpu import FITTED, Balance, lanes
from convdispatch.api.cpu import cdiv as ceil

from ..tiling import axis_tiling, tilings, unsuited
from ..transforms import half
from .geometry import Geometry, Piece
from .source import program_text


class _Launches:
    """Builds the launches of one geometry's program."""

    def __init__(self, context: Any, g: Geometry) -> None:
        self.g, self.areas = g, g.areas
        self.program = build(context, program_text(g))

    def _launch(self, kernel: str, size: tuple[int, ...], arguments: list[Any]) -> Launch:
        typed = [np.int32(a) if isinstance(a, int) else a for a in arguments]
        return Launch(self.program, kernel, size, (1, 1, 1), typed, names=OPERANDS)

    def _divided_launch(self, kernel: str, jobs: int, operands: list[str], offset: int, *rest: int) -> Launch:
        items = min(jobs, self.g.config["items"])
        return self._launch(kernel, (items, 1, 1), [*operands, np.int64(offset // 4), items, *rest])

    def kernels(self, group: int, groups: int, block: int, blocks: int, offset: int) -> Launch:
        if self.g.along_c:
            block, blocks = 0, self.g.kernel_blocks
        jobs = groups * blocks * self.g.kernel_rows
        return self._divided_launch("kernels", jobs, ["w", "workspace"], offset, group, groups, block, blocks)

    def forward(self, name: str, operand: str, area: str, piece: Piece, block: int, blocks: int) -> Launch:
        return self._divided_launch(
            name, piece.groups * blocks * piece.rows, [operand, "workspace"], self.areas[area],
            piece.group, piece.groups, block, blocks, piece.row, piece.rows,
        )  # fmt: skip

    def product(self, piece: Piece) -> Launch:
        g, areas = self.g, self.areas
        size = (g.frequencies, piece.groups, 1)
        if g.weights_gradient:
            rows, blocks = -(-min(piece.blocks * g.lanes, g.d - piece.block * g.lanes) // 4) * 4, g.result_blocks
            offsets = [areas["second"], areas["source"], areas["result"]]
            if g.along_oc:
                rows, blocks = g.result_rows, piece.blocks
                offsets[:2] = reversed(offsets[:2])
            operands, numbers = ["workspace"] * 3, [rows, piece.rows, blocks, int(piece.row == 0)]
        else:
            kernel_offset = 4 * 2 * g.lanes * g.kernel_rows * (piece.group * g.kernel_blocks + piece.block)
            offsets = [areas["source"], kernel_offset if g.constant_kernel else areas["kernel"], areas["result"]]
            operands = ["workspace", "w" if g.constant_kernel else "workspace", "workspace"]
            numbers = [piece.rows, g.c, piece.blocks, 1]
        return self._launch("product", size, [*operands, *(np.int64(o // 4) for o in offsets), *numbers])

    def inverse(self, piece: Piece) -> Launch:
        p = self.g.problem
        operands = [p.written, *["residual"][: p.residual], "workspace", *["bias"][: p.bias]]
        return self._divided_launch(
            "inverse", piece.groups * piece.blocks * piece.rows, operands, self.areas["result"],
            piece.group, piece.groups, piece.block, piece.blocks, piece.row, piece.rows,
        )  # fmt: skip

    def gradient(self, piece: Piece) -> Launch:
        g = self.g
        first_channel = piece.block * g.lanes
        result_part = 0, g.result_blocks, first_channel, min(piece.blocks * g.lanes, g.d - first_channel)
        if g.along_oc:
            result_part = piece.block, piece.blocks, 0, g.c
        jobs = piece.groups * result_part[1] * result_part[3]
        return self._divided_launch(
            "gradient", jobs, ["w", "workspace"], self.areas["result"], piece.group, piece.groups, *result_part
        )


def make_plan(context: Any, g: Geometry, name: str) -> StepPlan:
    """The plan of a geometry; ``name`` is part of the packed weights' cache key."""
    launches = _Launches(context, g)
    source = "y" if g.problem.direction == "bwd_data" else "x"
    steps = []
    for piece in g.pieces():
        if g.weights_gradient:
            if piece.source:
                steps.append(launches.forward("source", "x", "source", piece, 0, g.source_blocks))
            steps.append(launches.forward("second", "y", "second", piece, piece.block, piece.blocks))
            steps.append(launches.product(piece))
            if piece.last:
                steps.append(launches.gradient(piece))
            continue
        if piece.kernel and not g.constant_kernel:
            steps.append(launches.kernels(piece.group, piece.groups, piece.block, piece.blocks, g.areas["kernel"]))
        if piece.source:
            steps.append(launches.forward("source", source, "source", piece, 0, g.source_blocks))
        steps += [launches.product(piece), launches.inverse(piece)]
    if not g.constant_kernel:
        return StepPlan(g.areas["size"], steps)
    p = g.problem
    key = json.dumps([name, p.direction, p.layout, p.w_shape, p.g, [axis.dilation for axis in g.tiling.axes],
                      g.tiling.sizes, g.lanes])  # fmt: skip
    packer = launches.kernels(0, p.g, 0, g.kernel_blocks, 0)
    return StepPlan(g.areas["size"], steps, g.packed_size, [packer], key)


class Tiled(Solver):
    """Stride 1, sums of float32, all directions, 1-D to 3-D, on a CPU."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        reason = unsuited(problem)
        if reason:
            return reason
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ic == problem.oc == problem.g:
            return "more than one channel in or out a group only, got 1 and 1"
        if not has_configs(problem, device):
            return f"kernels that a transform of 64 points holds only, got {problem.kd}x{problem.kh}x{problem.kw}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Transforms and how much of the work a piece takes: the fastest by prediction, then falling workspaces."""
        return choices(problem, device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return Geometry(problem, config).areas["size"]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        peaks = rates(device)
        return predicted(Geometry(problem, config), Balance.of(peaks)) / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        return make_plan(context, Geometry(problem, config), self.name)


SIZES = (4, 5, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24, 28, 30, 32, 36, 40, 48, 60, 64)
"""Transform lengths, in points, that are tried along each axis."""
DEEP_SIZES = (4, 5, 6, 8, 9, 10, 12, 16)
"""Transform lengths that are tried if three axes are transformed: local memory holds the product of the three."""
MAX_TILINGS = 4
"""Most tilings that are offered, each also with smaller workspaces."""
MAX_ROUNDS = 512
"""Most pieces that a call is divided into: more would spend the time on launches."""

# The constants of the cost model are in operations at the device's peak multiply-add rate.
TOTAL_FACTOR = 1.12  # measured over predicted time on layers where the predictions of other solvers are right
PRODUCT_SHARE = 1.0  # share of the multiply-add peak that the products of spectra reach
# Share of the multiply-add peak that products with one block of channels reach, which leave registers empty
NARROW_SHARE = 0.62
# Factor on the time of transforms along one axis, which load and store more for what they compute
ONE_AXIS_FACTOR = 1.1
TRANSFORM_OPS = 3.2  # operations at peak rate per operation of a transform, which waits for loads and stores
CACHE_BYTE_OPS = 6.7  # operations at peak rate per byte of a spectrum in the last-level cache
MEMORY_BYTE_OPS = 12.8  # operations at peak rate per byte of a spectrum in memory
CACHE_BYTES = 12e6  # bytes of spectra that stay in the last-level cache between passes
# Operations at peak rate per tensor element that is read or written alone, where no transformed axis is a row of memory
SINGLE_OPS = 150.0
# Additional operations at peak rate per element that is read or written alone, in tensors of more than
# SECOND_CACHE_BYTES
SINGLE_FAR_OPS = 200.0
SECOND_CACHE_BYTES = 4 << 20
LAUNCH_OPS = 2.5e6  # operations at peak rate in the time of one kernel launch


@functools.cache
def _operations(n: int, real: bool) -> float:
    """Return the approximate number of operations of a transform of ``n`` points."""
    complex_ops = 4 * n * math.log2(n) - 5 * n + 8 if n > 1 else 0.0
    return 0.85 * complex_ops * (0.5 if real else 1.0)


@functools.lru_cache(maxsize=1024)
def _transform_ops(sizes: tuple[int, ...], order: tuple[int, ...], counts: tuple[int, ...]) -> float:
    """Vector operations of one tile's transform, which reads or writes ``counts`` elements along d, h, w."""
    n0, complex_axes = sizes[order[0]], order[1:]
    total = math.prod(counts[axis] for axis in complex_axes) * (_operations(n0, True) + 2 * n0)
    if len(complex_axes) == 2:
        total += half(n0) * counts[complex_axes[1]] * _operations(sizes[complex_axes[0]], False)
        total += half(n0) * sizes[complex_axes[0]] * _operations(sizes[complex_axes[1]], False)
    elif complex_axes:
        total += half(n0) * _operations(sizes[complex_axes[0]], False)
    return total if sum(n > 1 for n in sizes) > 1 else ONE_AXIS_FACTOR * total


def _single_element_ops(g: Geometry, source_runs: int) -> float:
    """Return operations at peak rate for elements that are read or written one by one: NCHW, no axis along a row."""
    t, p = g.tiling, g.problem
    if p.layout == "nhwc" or t.half_axis == 2:
        return 0.0
    x, y = math.prod(p.x_shape), math.prod(p.y_shape)
    read_elements, written_elements = (y, x) if p.direction == "bwd_data" else (x, y)
    total = 0.0
    reads = (read_elements, source_runs * ceil(g.c, g.lanes), g.whole)
    writes = (written_elements, ceil(g.d, g.lanes), g.steps)
    for size, blocks, counts in (reads, writes):
        element_ops = SINGLE_OPS + (SINGLE_FAR_OPS if size * p.itemsize > SECOND_CACHE_BYTES else 0.0)
        total += element_ops * g.all_rows * t.groups * blocks * g.lanes * math.prod(counts)
    return total


def predicted(g: Geometry, balance: Balance = FITTED, is_cached: bool = False) -> float:
    """Return the predicted time of a call, in operations at peak rate: products, transforms, traffic and launches; with
    ``is_cached`` as if the last-level cache held all spectra."""
    t, lane, passes = g.tiling, g.lanes, (g.tiling.sizes, g.order)
    f, rows, groups = g.frequencies, g.all_rows, t.groups
    divided, blocks_c, blocks_n = ceil(g.d, lane), ceil(g.c, lane), ceil(g.n, lane)
    row_rounds, block_rounds = ceil(rows, g.rows), ceil(divided, g.blocks)
    source_runs = 1 if row_rounds == 1 else block_rounds  # number of times that the source is transformed
    row_bytes = 8.0 * f * groups * lane  # bytes of one row of one channel block of a spectrum, over all frequencies
    transforms = rows * (
        source_runs * blocks_c * _transform_ops(*passes, g.whole) + divided * _transform_ops(*passes, g.steps)
    )
    if g.weights_gradient:
        # The weights' gradient has ``results`` rows of ``blocks`` vectors.
        results, blocks = (t.ic, divided) if g.along_oc else (t.oc, blocks_n)
        m, n, k = ceil(results, 4) * 4, blocks * lane, rows
        transforms += results * blocks * (_transform_ops(*passes, g.taps) + 3 * lane * math.prod(g.taps))
        source, kernel, result = rows * blocks_c * row_bytes, rows * divided * row_bytes, results * blocks * row_bytes
        transfers = [(source, source_runs + block_rounds), (kernel, 2), (result, 2 * row_rounds)]
    else:
        # A product with few target channels (``along_c``) has vectors of partial sums, which are added at the end.
        m, n, k = rows, 2 * g.n if g.along_c else blocks_n * lane, g.c
        kernels = g.n * blocks_c if g.along_c else g.c * blocks_n
        if not g.constant_kernel:
            transforms += kernels * (_transform_ops(*passes, g.spans) + 3 * lane * math.prod(a.taps for a in t.axes))
        source, kernel, result = rows * blocks_c * row_bytes, kernels * row_bytes, rows * blocks_n * row_bytes
        kernel_runs = row_rounds + (0 if g.constant_kernel else 1)
        transfers = [(source, source_runs + block_rounds), (kernel, kernel_runs), (result, 2)]
    live_bytes = g.areas["size"] + (g.packed_size if g.constant_kernel else 0)
    far_share = 0.0 if is_cached else min(1.0, max(0.0, (live_bytes - CACHE_BYTES) / CACHE_BYTES))
    byte_ops = CACHE_BYTE_OPS + far_share * (MEMORY_BYTE_OPS * balance.memory - CACHE_BYTE_OPS)
    traffic = sum(size * times for size, times in transfers) * byte_ops
    fills_registers = g.result_blocks > 1 or blocks_n == 1
    products = 8.0 * f * groups * m * n * k / (PRODUCT_SHARE if fills_registers else NARROW_SHARE)
    work = products + TRANSFORM_OPS * lane * groups * transforms + traffic + _single_element_ops(g, source_runs)
    return TOTAL_FACTOR * (work + 3 * LAUNCH_OPS * balance.launch * g.rounds)


def has_configs(problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether any configuration exists: the shortest transforms hold the kernel, and a slot holds their tile."""
    shortest = []
    for axis in "dhw":
        extent = axis_tiling(problem, axis, 1).extent
        shortest.append(next((n for n in (1, *_sizes(problem)) if n >= extent), 0))
    return 0 not in shortest and _fits(_uncut(problem, tuple(shortest), lanes(device), 1), device.local_mem_size)


def _sizes(problem: ConvProblem) -> tuple[int, ...]:
    return DEEP_SIZES if problem.kd > 1 else SIZES


def choices(problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
    """Configurations: the fastest by prediction first, then others, uncut or in pieces, of ever smaller workspace."""
    balance = Balance.of(rates(device))
    cost = functools.partial(predicted, balance=balance)
    candidates = (
        _uncut(problem, t.sizes, lanes(device), device.compute_units) for t in tilings(problem, _sizes(problem))
    )
    uncut = [g for g in candidates if _fits(g, device.local_mem_size)]
    ranked = sorted(uncut, key=cost)[:MAX_TILINGS]
    fastest = next(_pieces(ranked[0]))
    for g in ranked:
        # Pieces transform and launch more than the whole does: they gain at most the way of its spectra to memory.
        if predicted(g, balance, is_cached=True) < cost(fastest):
            fastest = min(fastest, *_pieces(g), key=cost)
    yield fastest.config
    pieces = sorted((g for each in ranked for g in _pieces(each)), key=cost)
    offered = pieces[:6]
    # The offers go from the fastest one's workspace down to the smallest of any transform; each takes at most half of
    # the previous offer's workspace.
    smallest = min((_smallest_pieces(g) for g in uncut), key=lambda g: (g.areas["size"], cost(g)))
    by_workspace = [*pieces, *_pieces(smallest), smallest]
    by_workspace.sort(key=lambda g: (-g.areas["size"], cost(g)))
    least_size = min(g.areas["size"] for g in offered)
    for g in by_workspace:
        if g.areas["size"] <= least_size / 2 or (g is smallest and smallest.areas["size"] < least_size):
            offered.append(g)
            least_size = g.areas["size"]
    configs: list[Mapping[str, Any]] = [fastest.config]
    for g in offered:
        if g.config not in configs:
            configs.append(g.config)
            yield g.config


def _fits(g: Geometry, local: int) -> bool:
    tiles = [g.whole, g.steps, g.taps if g.weights_gradient else g.spans]
    return 4 * max(g.slot(part) for part in tiles) <= local - 1024


def _uncut(problem: ConvProblem, sizes: tuple[int, ...], lane: int, units: int) -> Geometry:
    """Return the geometry that computes the whole call as one piece."""
    blocks = ceil(problem.ic if problem.direction == "bwd_data" else problem.oc, lane)
    rows = problem.mb * math.prod(axis_tiling(problem, a, n).tiles for a, n in zip("dhw", sizes, strict=True))
    return Geometry(
        problem,
        {"tile": list(sizes), "lanes": lane, "groups": problem.g, "blocks": blocks, "rows": rows, "mr": 4, "nv": 2,
         "items": 16 * units},
    )  # fmt: skip


def _smallest_pieces(g: Geometry) -> Geometry:
    """The geometry with one group, one block of channels and as few rows per piece as MAX_ROUNDS allows."""
    rounds = g.tiling.groups * ceil(g.d, g.lanes)
    return g.divided({**g.config, "groups": 1, "blocks": 1, "rows": ceil(g.all_rows, max(1, MAX_ROUNDS // rounds))})


def _pieces(g: Geometry) -> Iterator[Geometry]:
    """Yield a geometry as one piece, and divided into pieces by rows, by channels and by groups."""
    blocks, groups_of_all = ceil(g.d, g.lanes), g.tiling.groups
    parts = itertools.product(
        dict.fromkeys((groups_of_all, ceil(groups_of_all, 4), 1)), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 64)
    )
    for groups, block_parts, row_parts in parts:
        if block_parts <= max(1, blocks) and row_parts <= max(1, g.all_rows):
            sizes = {"groups": groups, "blocks": ceil(blocks, block_parts), "rows": ceil(g.all_rows, row_parts)}
            piece = g.divided({**g.config, **sizes})
            if piece.rounds <= MAX_ROUNDS or piece.rounds == groups_of_all:
                yield piece
