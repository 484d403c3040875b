"""Predicts the time of a matrix product on a CPU, in operations at the device's peak multiply-add rate.

The constants were fitted by least squares of logarithms on 700 products of 45 layers (1x1, all directions, weights
constant and not, one image and four) on two cores with AVX-512, each product with up to sixteen configurations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from ...api.cpu import FITTED, Balance, cdiv
from ..rates import LAUNCH
from .layout import distinct, far_rows
from .spec import GemmSpec

PACKED = 50.0, 160.0
"""Operations at peak rate per packed element of A: packed along A's columns, and across them."""

TRANSPOSED_OPS = 25.0  # operations at peak rate per packed element of A, where squares are transposed in registers
# Operations at peak rate for the end of a contiguous run of A's columns, which fills no square to transpose
RUN_REST_OPS = 6000.0
PANEL_OPS = 25.0, 55.0  # operations at peak rate per packed element of B: packed along its rows, and across them
# Operations at peak rate per element of B that a work item packs into local memory: along B's rows, and across them
LOCAL_OPS = 14.0, 75.0
# Operations at peak rate per element of B that is packed alone, because its panel crosses the end of a run of columns
BROKEN_OPS = 160.0
WIDENED_OPS = 4.0  # operations at peak rate per 16-bit element of A that a tile widens itself
# Additional operations at peak rate per packed element, if the packed operand has HELD_BYTES or more
MEMORY_OPS = 200.0
HELD_BYTES = 7 << 20
# Operations at peak rate per operation of the register tiles, where tiles at the edges count as whole ones
MULTIPLY_OPS = 0.93
TILE_OPS = 40.0  # operations at peak rate to begin and end one register tile
READ_OPS = 30.0  # operations at peak rate per element of A or B that is read
WRITTEN_OPS = 5.0  # operations at peak rate per element of C that is written
SCATTERED_OPS = 90.0  # operations at peak rate per element of C that is written to columns that are not contiguous
# Operations at peak rate per scattered element of C, if more of C's cache lines share a set than it has ways
CROWDED_C_OPS = 1500.0
# Operations at peak rate per element of C that one part of a split sum writes and the reduction kernel adds
PARTIAL_OPS = 20.0
# Operations at peak rate per element of A that another panel of B reads from memory again; if A is read in place with
# contiguous columns, per element of the whole cache lines that a tile reads
FAR_OPS = 20.0
# Operations at peak rate per element of A that is read again, if A's rows are read in place and prefetched
PREFETCHED_OPS = 2.0
# Operations at peak rate per element that is read in place again, if B's rows are whole pages apart or A's columns are
# on many pages
CROWDED_OPS = 8.0
# Operations at peak rate per element of A in contiguous rows whose columns share few sets of the first-level cache
CROWDED_A_OPS = 18.0
# Operations at peak rate per element of B that each row of tiles reads again from beyond the first-level cache
REREAD_B_OPS = 0.35
# Operations at peak rate per element of B in place whose vectors cross cache lines (NumPy aligns large arrays to 16
# bytes)
UNALIGNED_OPS = 0.7
CACHED_BYTES = 1 << 20  # bytes of an operand that the second-level cache holds until it is read again
L1_BYTES = 32 * 1024  # bytes of the first-level data cache
L1_WAYS = 12  # ways (cache lines per set) of the first-level data cache
L1_LINES = 10  # cache lines of one set of the first-level cache that stay cached between two uses
TLB_PAGES = 64  # pages whose addresses the first-level TLB caches
PAGE_BYTES = 4096  # bytes of a page of memory
LINE_BYTES = 64  # bytes of a cache line


@functools.lru_cache(maxsize=256)
def _swapped(spec: GemmSpec, swap: bool) -> GemmSpec:
    return (spec.swapped if swap else spec).simplified


@functools.lru_cache(maxsize=4096)
def _operations(m: int, n: int, k: int, mr: int, nv: int, lanes: int) -> float:
    """Operations (two per multiply-add) that a core could do while it computes all tiles of a batch, edges included."""
    total, unrolled = 0.0, max(1, min(4, 8 // (min(mr, m) * nv)))
    (tall, rest_m), (wide, rest_n) = divmod(m, mr), divmod(n, nv * lanes)
    for rows, count_m in ((mr, tall), (rest_m, 1)):
        for vectors, count_n in ((nv, wide), (cdiv(rest_n, lanes), 1)):
            if rows and vectors:
                # One step of k takes the longest of three: the multiply-adds, the loads, or the four-cycle latency of
                # an addition (two multiply-adds a cycle); with exactly eight sums it takes a ninth longer.
                total += count_m * count_n * max(rows * vectors, 0.7 * (rows + vectors), 9 / unrolled)
    return 2.0 * lanes * total * k


def _packed(spec: GemmSpec) -> float:
    """Return operations at peak rate per packed element of A. Across rows, squares are transposed in registers."""
    rows, columns = spec.a.row, spec.a.col
    if rows.stride <= 1:
        return PACKED[False]
    if columns.stride != 1 or rows.stride * spec.accumulator_size % PAGE_BYTES == 0:
        return PACKED[True]
    return min(PACKED[True], TRANSPOSED_OPS + RUN_REST_OPS / min(spec.k, columns.inner or spec.k))


def _overflows(step: int, count: int, lines: int) -> bool:
    """Whether ``count`` runs of ``lines`` cache lines, ``step`` bytes apart, exceed the first-level cache."""
    sets = min(PAGE_BYTES // LINE_BYTES, PAGE_BYTES // max(LINE_BYTES, math.gcd(step, PAGE_BYTES)) * lines)
    return count * lines > L1_LINES * sets


def _read_again(spec: GemmSpec, gemm: Mapping[str, Any], depth: int) -> tuple[float, float]:
    """Operations per element of A that another panel of B reads again, and per element of B that another row reads."""
    size, nv = spec.accumulator_size, gemm["nv"]
    a = b = 0.0
    if not (gemm["pack_a"] or spec.a_packed):
        step = spec.a.col.stride * size
        a = CROWDED_OPS * (step > size and step * depth > TLB_PAGES * PAGE_BYTES)
        if spec.a.row.stride == 1 and LINE_BYTES <= step < PAGE_BYTES and _overflows(step, depth, 1):
            a += CROWDED_A_OPS
    if gemm["pack_b"] or spec.b_packed:
        exceeds_l1 = depth * nv * gemm["lanes"] * size > L1_BYTES
    else:
        step = spec.b.row.stride * size
        exceeds_l1 = _overflows(step, depth, nv + 1)
        b = CROWDED_OPS * (step % PAGE_BYTES == 0) + UNALIGNED_OPS
    return a, b + REREAD_B_OPS * exceeds_l1


def product_cost(spec: GemmSpec, gemm: Mapping[str, Any], balance: Balance = FITTED) -> float:
    """Return the predicted time of a product under one configuration, in operations at the CPU's peak rate."""
    launch, memory_ops = LAUNCH * balance.launch, MEMORY_OPS * balance.memory
    spec = _swapped(spec, gemm["swap"])
    mr, nv, lanes, split = gemm["mr"], gemm["nv"], gemm["lanes"], gemm["split"]
    # Batches that share an operand pack it once, but each batch reads it.
    a, b = (count * spec.k * distinct(x.batch, spec.batch)[0] for count, x in ((spec.m, spec.a), (spec.n, spec.b)))
    batched_a, batched_b, c = (count * spec.batch for count in (spec.m * spec.k, spec.k * spec.n, spec.m * spec.n))
    size, wide = spec.accumulator_size, nv * lanes
    rows, panels = cdiv(spec.m, mr), cdiv(spec.n, wide)
    passes, sweeps = cdiv(cdiv(spec.k, split), gemm["kc"]), cdiv(rows, gemm["mt"])
    packed = 0
    cost = MULTIPLY_OPS * spec.batch * _operations(spec.m, spec.n, spec.k, mr, nv, lanes)
    cost += TILE_OPS * rows * panels * spec.batch * split * passes
    cost += READ_OPS * (a + b) + WRITTEN_OPS * c * split * passes + launch
    if split > 1:
        cost += PARTIAL_OPS * c * split + launch
    reread_a, reread_b = _read_again(spec, gemm, min(gemm["kc"], spec.k))
    cost += reread_a * batched_a * panels + reread_b * batched_b * rows
    if spec.m * spec.k * size > CACHED_BYTES:
        in_place = not (gemm["pack_a"] or spec.a_packed)
        lines = in_place and spec.a.row.stride == 1 and spec.a.col.stride * size >= LINE_BYTES
        once = FAR_OPS * (max(1.0, LINE_BYTES / (mr * size)) if lines else 1.0)
        each = PREFETCHED_OPS if far_rows(spec, not in_place, nv) else once
        # A work item reads its rows of A once, if they stay in the second-level cache from one panel of B to the next.
        a_cached = gemm["mt"] * mr * min(gemm["kc"], spec.k) * size <= CACHED_BYTES // 2
        cost += each * (batched_a * (cdiv(panels, gemm["np"]) if a_cached else panels) - a)
    if spec.k * (wide if split == 1 else spec.n) * size > CACHED_BYTES:
        cost += FAR_OPS * (batched_b * sweeps - b)
    if spec.c.col.stride == 1 and c * size > CACHED_BYTES:
        # Cache lines of C that two panels share are read and written twice.
        cost += FAR_OPS * c * (LINE_BYTES - math.gcd(wide * size, LINE_BYTES)) / (wide * size)
    if spec.c.col.stride > 1:
        # With strided columns, each element of a tile's row of C is in another cache line, and the lines share few
        # cache sets if columns are pages apart.
        few_sets = wide * math.gcd(spec.c.col.stride * size, PAGE_BYTES) > L1_WAYS * PAGE_BYTES
        cost += (CROWDED_C_OPS if few_sets else SCATTERED_OPS) * c * (passes if split == 1 else 1)
    if gemm["pack_a"] == "local" and not spec.a_packed:
        cost += WIDENED_OPS * batched_a * panels
    elif gemm["pack_a"] and not spec.a_packed:
        cost += _packed(spec) * a + launch
        packed += a
    if gemm["pack_b"] and not spec.b_packed:
        across, run = spec.b.col.stride > 1, spec.b.col.inner
        each = BROKEN_OPS * min(1, (wide - math.gcd(run, wide)) / run) if run and not across else 0
        if gemm["pack_b"] == "local":  # Every work item of a panel's rows packs the panel of B again.
            cost += (LOCAL_OPS[across] + each) * batched_b * sweeps
        else:
            cost += (PANEL_OPS[across] + each) * b + launch + (memory_ops * b if b * size > HELD_BYTES else 0.0)
    if packed * size > HELD_BYTES:
        cost += memory_ops * packed
    return cost
