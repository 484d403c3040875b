"""Chooses register tiles, chunks and forms for a problem, and predicts what they cost.

The cost model counts cycles of one core, which issues a vector multiply-add or a load in each, and bytes at the rates
of the memory that they come from. Rates of memory and launches are the device's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch.api import DeviceInfo, rates
from convdispatch.api.cpu import cdiv as ceil

from ..program import program
from ..transforms import Matrix, Transform
from .case import Case
from .data import DataKernel, JoinedKernel, transposition
from .weights import WeightsKernel

FUSED_BYTES = 800 << 10
"""Bytes of transformed tiles V and products M of one work item in the fused form: the second-level cache holds them."""
CHUNK_BYTES = (2 << 20, 24 << 20)
"""Least and most bytes of V and M of a chunk in the form ``apart``: about as many as the weights (or dw) have, which
each chunk reads once."""
MAX_BLOCK_BYTES = 1300 << 10
"""Most bytes of a block of M in the form ``joined``; more is divided into chunks, each of which transforms the weights
again."""
L2_BLOCK_BYTES = 768 << 10
"""Bytes of a block of M that stay in the second-level cache besides its weights."""
L3_BYTES = 16 << 20
"""Bytes that the third-level cache holds."""
CACHED_BYTES = 6 << 20
"""Bytes of one layer's weights that caches hold between calls of a net."""
WRITTEN_BYTES = 10 << 20
"""Bytes of transformed weights beyond which writing them goes to memory."""

L3_SHARE, MEMORY_SHARE = 4.95, 1.65
"""Bandwidth of the third-level cache and of memory, in multiples of the measured bandwidth of a copy."""
LAUNCH_SHARES = 0.55, 1.1
"""Time of a launch directly after another one over the time of a single launch: on two cores, and on more."""
CYCLE_OPS = 2.3
"""Operations at peak rate per lane and predicted cycle: 1.15 times the two operations of a multiply-add."""
FORM_FACTORS = {"apart": 1.15, "fused": 1.15, "joined": 1.15, "weights": 1.3}
"""Measured over predicted time of each form and of the weights' gradient, on layers that run alone."""
PACKED_FACTOR = 1.2
"""Additional factor on the predicted time of the form ``joined`` if the weights are constant: the other forms pack
constant weights only once."""
ACROSS_FACTOR = 1.63
"""Time of reading weights across their rows over the time of reading them along their rows."""
SPREAD_CYCLES = 5.0
"""Cycles per vector that a weights' gradient writes to V or M, where each vector goes to another plane."""


@dataclass(frozen=True)
class Pace:
    """A device's cores, and its rates of memory and launches in cycles of one core."""

    cores: int
    near: float
    """Bytes that come from the last-level cache per cycle."""
    far: float
    """Bytes that come from memory per cycle."""
    launch: float
    """Cycles that a launch directly after another launch takes."""
    first: float
    """Cycles that the first launch of a call takes."""

    @classmethod
    def of(cls, device: DeviceInfo, lanes: int) -> Pace:
        """Build from the device's measured rates, with vectors of ``lanes`` elements."""
        peaks = rates(device)
        cycles, cores = peaks.flops / (CYCLE_OPS * lanes), max(1, device.compute_units)
        near, far = (share * peaks.bandwidth / cycles for share in (L3_SHARE, MEMORY_SHARE))
        return cls(cores, near, far, LAUNCH_SHARES[cores > 2] * peaks.launch * cycles, peaks.launch * cycles)


def _operations(matrix: Matrix) -> int:
    names = [f"d{i}" for i in range(len(matrix[0]))], [f"o{i}" for i in range(len(matrix))]
    return program(matrix, *names).operations


@functools.lru_cache(maxsize=256)
def _transform_sizes(along_h: Transform, along_w: Transform, name: str) -> tuple[int, int, int, int, int]:
    """Rows and columns that the matrices called ``name`` read and write, and the instructions of both passes."""
    matrix_h, matrix_w = getattr(along_h, name), getattr(along_w, name)
    rows_in, columns_in, rows, columns = len(matrix_h[0]), len(matrix_w[0]), len(matrix_h), len(matrix_w)
    passes = columns_in * (_operations(matrix_h) + rows_in + rows) + rows * (
        _operations(matrix_w) + columns_in + columns
    )
    return rows_in, columns_in, rows, columns, passes


def _transform_cycles(case: Case, name: str, read: float) -> float:
    """Cycles to transform one tile of a vector of channels: both passes, the copy, and ``read`` cycles per element."""
    rows_in, columns_in, rows, columns, passes = _transform_sizes(*case.transforms, name)
    read_elements = case.tile[0] * case.tile[1] + (rows_in * columns_in - case.tile[0] * case.tile[1]) * 0.4
    return 0.7 * passes + read * read_elements + 1.0 * rows * columns


def _step_cycles(mr: int, nv: int) -> float:
    """Cycles that a register tile of ``mr`` rows by ``nv`` vectors takes for one step of k."""
    return max(mr * nv, 0.75 * (mr + nv), 4) + 0.1 * (mr + nv) + 0.5


def _sum_overhead(case: Case, count: int, mr: int, nv: int, run: int = 0) -> float:
    """Cycles of a register tile's sums of ``count`` products in addition to its multiply-adds: reads, adds and writes.

    A running sum has ``run`` products, or as many as its error admits. Short sums also wait for their rows: F(7, 3)
    with 256 channels took 1.04, 1.24 and 1.41 times as long in tiles of 6 by 4, 8 by 3 and 11 by 2 as in 4 by 4.
    """
    waits = 3 * mr * mr if case.summed < 128 else 0
    return ceil(count, run or case.summed) * (2.0 * mr * nv + 8 + waits)


def kernel(case: Case, config: Mapping[str, Any]) -> DataKernel | WeightsKernel:
    """Return the kernel object of a configuration."""
    if case.weights:
        return WeightsKernel(case, config)
    return JoinedKernel(case, config) if config["form"] == "joined" else DataKernel(case, config)


def predicted(case: Case, config: Mapping[str, Any], pace: Pace) -> float:
    """Return the predicted time of a configuration, in operations at the device's peak rate."""
    read = 2.0 if case.nhwc else 6.0
    work = kernel(case, config)
    vectors_c, vectors_n = ceil(case.c, case.lanes), ceil(case.n, case.lanes)
    groups, tiles = case.problem.g, case.strips * case.strip
    mr, nv = config["mr"], config["nv"]
    factor = FORM_FACTORS["weights" if case.weights else config["form"]]
    forward = tiles * vectors_c * _transform_cycles(case, "bt", read)
    bytes_v, bytes_m = (tiles * c * case.products * case.size for c in (case.c, work.blocks * work.nvl))
    weights = case.c * case.n * groups * math.prod(case.taps) * case.size
    bytes_u = case.products * work.blocks * case.c * work.nvl * case.size
    if isinstance(work, WeightsKernel):
        target_cycles = tiles * vectors_n * _transform_cycles(case, "g", read)
        rows = work.chunks * work.s * case.strip
        tile_cycles = rows * _step_cycles(mr, nv) + _sum_overhead(case, rows, mr, nv)
        products = case.products * work.blocks * (work.cm // mr) * tile_cycles
        cached = work.m_at * case.size < L3_BYTES
        traffic = 2 * (bytes_v + bytes_m) / (pace.near if cached else pace.far)
        product_cycles = case.products * (3.0 if work.joined else 8.0)
        weight_cycles = case.c * vectors_n * (product_cycles + 14 * math.prod(case.taps))
        # Each job of the weights' gradient in the joined form reads its part of the transformed tiles V and D.
        if work.joined:
            traffic += (bytes_v * work.blocks + bytes_m * ceil(case.c, work.cr)) / pace.near
        else:
            traffic += 2 * bytes_u * work.chunks / (pace.near if bytes_u < L3_BYTES else pace.far)
        forward += SPREAD_CYCLES * tiles * vectors_c * case.products
        target_cycles += SPREAD_CYCLES * tiles * vectors_n * case.products
        launches = 2 * work.chunks * groups
    elif isinstance(work, JoinedKernel):
        target_cycles = tiles * vectors_n * _transform_cycles(case, "at", read)
        rows = ceil(work.s * case.strip, mr)
        tile_cycles = case.c * _step_cycles(mr, nv) + _sum_overhead(case, case.c, mr, nv, work.vt)
        products = case.products * work.blocks * work.chunks * rows * tile_cycles
        cached = work.block < L2_BLOCK_BYTES
        traffic = (bytes_v * (2 + work.blocks) + (0 if cached else 2 * bytes_m * ceil(case.c, work.vt))) / pace.near
        tap_cycles, across = (12.0, 1.0) if transposition(case) == "none" else (32.0, ACROSS_FACTOR)
        taps = math.prod(case.taps) * tap_cycles
        weight_cycles = work.chunks * case.c * work.blocks * nv * (case.products * 3.3 + taps)
        if weights > CACHED_BYTES:
            weight_cycles = max(weight_cycles, work.chunks * weights / (groups * pace.far) * across)
        cores = max(1, config["items"] // 4)
        imbalance = ceil(work.blocks, cores) * cores / work.blocks
        products, weight_cycles, target_cycles = (n * imbalance for n in (products, weight_cycles, target_cycles))
        launches = 2 * work.chunks * groups
        factor *= PACKED_FACTOR if case.problem.constant_weights else 1.0
    else:
        target_cycles = tiles * vectors_n * _transform_cycles(case, "at", read)
        rows = ceil(work.s * case.strip, mr)
        tile_cycles = case.c * _step_cycles(mr, nv) + _sum_overhead(case, case.c, mr, nv)
        products = case.products * work.blocks * work.chunks * rows * tile_cycles
        constant = case.problem.constant_weights
        in_l3 = bytes_u * groups < (CACHED_BYTES if constant else L3_BYTES)
        weight_reads = 1 if work.apart and work.chunks == 1 else work.chunks
        # Multiply-adds do not hide ``exposed_share`` of the time of reading weights: with few tiles, the products wait
        # for weights from memory.
        exposed_share = (
            1.0 if not work.apart else 0.5 if in_l3 or not constant else 0.75 if bytes_u <= L3_BYTES else 1.0
        )
        traffic = bytes_u * weight_reads / (pace.near if in_l3 else pace.far) * exposed_share
        if work.apart:
            traffic += 2 * (bytes_v + bytes_m) / (pace.near if work.slots_size < L3_BYTES else pace.far)
        weight_cycles = 0.0
        if not case.problem.constant_weights:
            weight_cycles = case.c * vectors_n * (case.products * 8.0 + 16 * math.prod(case.taps) * 1.2)
            # The data gradient reads w across its rows.
            if case.problem.direction == "bwd_data" and weights > CACHED_BYTES:
                weight_cycles += weights / (groups * pace.far) * ACROSS_FACTOR
            if bytes_u * groups > WRITTEN_BYTES:
                weight_cycles += 2 * bytes_u / pace.far
        launches = 3 * work.chunks * groups if work.apart else 1
    tensor_cycles = case.problem.bytes / pace.far * 0.7
    per_group = forward + target_cycles + products + traffic + weight_cycles
    cycles = groups * per_group + tensor_cycles + pace.first + (launches - 1) * pace.launch
    if isinstance(work, DataKernel) and not work.apart and work.items < pace.cores:
        cycles *= 1.5
    return CYCLE_OPS * case.lanes * cycles * factor


def _register_tiles(case: Case, registers: int, rows: int) -> list[tuple[int, int]]:
    """Register tiles (mr, nv), the cheapest for ``rows`` rows first: for each width nv the best height mr."""
    best: dict[int, tuple[float, int]] = {}
    for nv in range(1, 5):
        if nv > 1 and (nv - 1) * case.lanes >= case.n:
            break
        blocks = ceil(case.n, nv * case.lanes)
        for mr in range(1, registers):
            # With 28 sums Intel's compiler spills registers: 95 instructions for 28 multiply-adds, but 46 for 26.
            if mr * nv + nv + 2 > registers or mr * nv > registers * 27 // 32:
                break
            step_cycles = _step_cycles(mr, nv) + (_sum_overhead(case, 32, mr, nv) / 32 if case.summed < 128 else 0)
            cost = blocks * ceil(rows, mr) * step_cycles
            best[nv] = min(best.get(nv, (math.inf, 0)), (cost, mr))
    return [(mr, nv) for nv, (_, mr) in sorted(best.items(), key=lambda item: item[1][0])]


def _chunk_strips(case: Case, budget: int) -> int:
    """Return the number of strips per chunk that keeps V and M within ``budget`` bytes, in even shares."""
    strip_bytes = case.strip * case.products * case.size * (case.c + case.n + 32)
    fitting = max(1, min(case.strips, budget // strip_bytes))
    return ceil(case.strips, ceil(case.strips, fitting))


def _chunk_bytes(case: Case) -> int:
    """Bytes of V and M that one chunk of the form ``apart`` should take."""
    weights = case.products * case.c * case.n * case.size
    return min(max(weights, CHUNK_BYTES[0]), CHUNK_BYTES[1])


def configs(case: Case, registers: int, pace: Pace) -> Iterator[dict[str, Any]]:
    """Forms by predicted cost, the best one also with another register tile; then ever smaller workspaces."""
    cores = pace.cores
    items = 4 * cores

    def make(form: str, strips: int, blocks: int, place: int = 0) -> dict[str, Any]:
        rows = case.c if case.weights else strips * case.strip
        ranked = _register_tiles(case, registers, rows)
        mr, nv = ranked[min(place, len(ranked) - 1)]
        return {
            "lanes": case.lanes, "form": form, "mr": mr, "nv": nv, "strips": strips, "blocks": blocks, "items": items
        }  # fmt: skip

    shapes: list[tuple[str, int, int]] = [("apart", _chunk_strips(case, _chunk_bytes(case)), 1)]
    joined = []
    if case.weights:
        shapes.append(("apart", _chunk_strips(case, _chunk_bytes(case) // 4), 1))
    else:
        for nv in range(1, 5):
            fitting = max(1, MAX_BLOCK_BYTES // (case.strip * case.products * nv * case.lanes * case.size))
            strips = ceil(case.strips, ceil(case.strips, fitting))
            tiles = dict(map(reversed, _register_tiles(case, registers, strips * case.strip)))
            if nv in tiles:
                joined.append(make("joined", strips, 1) | {"mr": tiles[nv], "nv": nv})
        share = ceil(case.strips * case.problem.g, cores)
        strip_bytes = case.strip * case.products * case.size
        for blocks in (1, 4):
            strips = min(max(1, FUSED_BYTES // (strip_bytes * (case.c + min(case.n, 64 * blocks)))), share)
            shapes.append(("fused", ceil(case.strips, ceil(case.strips, strips)), blocks))
    shapes.sort(key=lambda shape: predicted(case, make(*shape), pace))
    offered = [make(*shape) for shape in shapes]
    offered.insert(1, make(*shapes[0], place=1))
    smaller = [make("apart", strips, 1) for strips in (offered[0]["strips"] // 4, offered[0]["strips"] // 16) if strips]
    smaller.append(make("apart", 1, 1) if case.weights else {**make("fused", 1, 1), "items": cores})
    offered += sorted(smaller, key=lambda config: -kernel(case, config).workspace_size)
    if joined:
        best = min(joined, key=lambda config: predicted(case, config, pace))
        joined_first = predicted(case, best, pace) < predicted(case, offered[0], pace)
        offered.insert(0 if joined_first else 1, best)
    yielded: list[dict[str, Any]] = []
    for config in offered:
        if config not in yielded:
            yielded.append(config)
            yield config
