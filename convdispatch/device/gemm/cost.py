"""What a product costs a CPU, in operations of the direct sum at the device's peak.

The numbers are least squares of logarithms over 700 products of 45 layers (1x1, all directions, weights constant and
not, one image and four) on two cores with AVX-512, each with up to sixteen of its choices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from ...api.cpu import FITTED, Balance, cdiv
from .layout import distinct, far_rows
from .spec import GemmSpec

LAUNCH = 3e6
"""A launch, on the cores that costs were fitted on."""
PACKED = 50.0, 160.0
"""An element of A that is packed, along its columns and across them."""

TRANSPOSED_OPS = 25.0  # an element of A that is packed in squares that are transposed in registers
RUN_REST_OPS = 6000.0  # the rest of a run along columns that fills no square
PANEL_OPS = 25.0, 55.0  # an element of B that is packed, along its rows and across them
LOCAL_OPS = 14.0, 75.0  # the same by the work item that needs it
BROKEN_OPS = 160.0  # an element of B in a panel across the end of a run of columns, packed one by one
WIDENED_OPS = 4.0  # an element of A that a tile widens for itself
MEMORY_OPS = 200.0  # more of a packed element that goes to memory and back, of HELD_BYTES or more
HELD_BYTES = 7 << 20
MULTIPLY_OPS = 0.93  # an operation of the tiles, edges counted as whole tiles
TILE_OPS = 40.0  # a tile's beginning and end
READ_OPS = 30.0  # an element of A or B
WRITTEN_OPS = 5.0  # an element of C
SCATTERED_OPS = 90.0  # an element of C whose columns are not contiguous
CROWDED_C_OPS = 1500.0  # the same where more of C's lines share a cache set than it has ways
PARTIAL_OPS = 20.0  # an element of C that a part of a sum leaves and another kernel adds
FAR_OPS = 20.0  # an element of A that a panel of B reads from memory again; rows in place read whole lines for a tile
PREFETCHED_OPS = 2.0  # the same of rows in place whose lines are prefetched
CROWDED_OPS = 8.0  # an element in place that is read again: B's rows whole pages apart, A's columns on many pages
CROWDED_A_OPS = 18.0  # an element of A in contiguous rows whose columns share few sets of the first-level cache
REREAD_B_OPS = 0.35  # an element of B that a row of tiles reads again from beyond the first-level cache
UNALIGNED_OPS = 0.7  # an element of B in place, in vectors across cache lines: NumPy aligns large arrays to 16 bytes
CACHED_BYTES = 1 << 20  # bytes that are read again from a second-level cache
L1_BYTES = 32 * 1024  # bytes of a first-level cache
L1_WAYS = 12  # ways of a set of the first-level cache
L1_LINES = 10  # lines of a set that stay there between two uses
TLB_PAGES = 64  # pages whose addresses are cached
PAGE_BYTES, LINE_BYTES = 4096, 64


@functools.lru_cache(maxsize=256)
def _swapped(spec: GemmSpec, swap: bool) -> GemmSpec:
    return (spec.swapped if swap else spec).simplified


@functools.lru_cache(maxsize=4096)
def _operations(m: int, n: int, k: int, mr: int, nv: int, lanes: int) -> float:
    """Multiply-adds, two each, that a core could do while it computes all tiles of a batch, the edges' among them."""
    total, unrolled = 0.0, max(1, min(4, 8 // (min(mr, m) * nv)))
    (tall, rest_m), (wide, rest_n) = divmod(m, mr), divmod(n, nv * lanes)
    for rows, count_m in ((mr, tall), (rest_m, 1)):
        for vectors, count_n in ((nv, wide), (cdiv(rest_n, lanes), 1)):
            if rows and vectors:
                # A step of k: the multiply-adds, the loads, or the four cycles, each of two multiply-adds, that a sum
                # takes before the next may be added to it; just eight sums take a ninth longer.
                total += count_m * count_n * max(rows * vectors, 0.7 * (rows + vectors), 9 / unrolled)
    return 2.0 * lanes * total * k


def _packed(spec: GemmSpec) -> float:
    """Operations of an element of A that is packed: across rows, squares are transposed in registers, rests are not."""
    rows, columns = spec.a.row, spec.a.col
    if rows.stride <= 1:
        return PACKED[False]
    if columns.stride != 1 or rows.stride * spec.accumulator_size % PAGE_BYTES == 0:
        return PACKED[True]
    return min(PACKED[True], TRANSPOSED_OPS + RUN_REST_OPS / min(spec.k, columns.inner or spec.k))


def _overflows(step: int, count: int, lines: int) -> bool:
    """Whether ``count`` runs of ``lines`` cache lines, ``step`` bytes apart, exceed the first-level cache."""
    places = min(PAGE_BYTES // LINE_BYTES, PAGE_BYTES // max(LINE_BYTES, math.gcd(step, PAGE_BYTES)) * lines)
    return count * lines > L1_LINES * places


def _read_again(spec: GemmSpec, gemm: Mapping[str, Any], depth: int) -> tuple[float, float]:
    """Operations of an element of A for each further panel of B, and of one of B for each further row of tiles."""
    size, nv = spec.accumulator_size, gemm["nv"]
    a = b = 0.0
    if not (gemm["pack_a"] or spec.a_packed):
        step = spec.a.col.stride * size
        a = CROWDED_OPS * (step > size and step * depth > TLB_PAGES * PAGE_BYTES)
        if spec.a.row.stride == 1 and LINE_BYTES <= step < PAGE_BYTES and _overflows(step, depth, 1):
            a += CROWDED_A_OPS
    if gemm["pack_b"] or spec.b_packed:
        beyond = depth * nv * gemm["lanes"] * size > L1_BYTES
    else:
        step = spec.b.row.stride * size
        beyond = _overflows(step, depth, nv + 1)
        b = CROWDED_OPS * (step % PAGE_BYTES == 0) + UNALIGNED_OPS
    return a, b + REREAD_B_OPS * beyond


def product_cost(spec: GemmSpec, gemm: Mapping[str, Any], balance: Balance = FITTED) -> float:
    """Operations of the peak of a product under one of its configurations, on a CPU of this balance."""
    launch, away = LAUNCH * balance.launch, MEMORY_OPS * balance.memory
    spec = _swapped(spec, gemm["swap"])
    mr, nv, lanes, split = gemm["mr"], gemm["nv"], gemm["lanes"], gemm["split"]
    # Batches that share an operand pack it once; each reads it.
    a, b = (count * spec.k * distinct(x.batch, spec.batch)[0] for count, x in ((spec.m, spec.a), (spec.n, spec.b)))
    every_a, every_b, c = (count * spec.batch for count in (spec.m * spec.k, spec.k * spec.n, spec.m * spec.n))
    size, wide = spec.accumulator_size, nv * lanes
    rows, panels = cdiv(spec.m, mr), cdiv(spec.n, wide)
    passes, sweeps = cdiv(cdiv(spec.k, split), gemm["kc"]), cdiv(rows, gemm["mt"])
    packed = 0
    cost = MULTIPLY_OPS * spec.batch * _operations(spec.m, spec.n, spec.k, mr, nv, lanes)
    cost += TILE_OPS * rows * panels * spec.batch * split * passes
    cost += READ_OPS * (a + b) + WRITTEN_OPS * c * split * passes + launch
    if split > 1:
        cost += PARTIAL_OPS * c * split + launch
    again_a, again_b = _read_again(spec, gemm, min(gemm["kc"], spec.k))
    cost += again_a * every_a * panels + again_b * every_b * rows
    if spec.m * spec.k * size > CACHED_BYTES:
        in_place = not (gemm["pack_a"] or spec.a_packed)
        lines = in_place and spec.a.row.stride == 1 and spec.a.col.stride * size >= LINE_BYTES
        once = FAR_OPS * (max(1.0, LINE_BYTES / (mr * size)) if lines else 1.0)
        each = PREFETCHED_OPS if far_rows(spec, not in_place, nv) else once
        # A work item whose rows stay in the second-level cache from one panel to the next reads them once.
        near = gemm["mt"] * mr * min(gemm["kc"], spec.k) * size <= CACHED_BYTES // 2
        cost += each * (every_a * (cdiv(panels, gemm["np"]) if near else panels) - a)
    if spec.k * (wide if split == 1 else spec.n) * size > CACHED_BYTES:
        cost += FAR_OPS * (every_b * sweeps - b)
    if spec.c.col.stride == 1 and c * size > CACHED_BYTES:
        # Lines that two panels share are brought and written twice.
        cost += FAR_OPS * c * (LINE_BYTES - math.gcd(wide * size, LINE_BYTES)) / (wide * size)
    if spec.c.col.stride > 1:
        # A row of a tile is written to as many lines, which share few cache sets where columns are pages apart.
        apart = wide * math.gcd(spec.c.col.stride * size, PAGE_BYTES) > L1_WAYS * PAGE_BYTES
        cost += (CROWDED_C_OPS if apart else SCATTERED_OPS) * c * (passes if split == 1 else 1)
    if gemm["pack_a"] == "local" and not spec.a_packed:
        cost += WIDENED_OPS * every_a * panels
    elif gemm["pack_a"] and not spec.a_packed:
        cost += _packed(spec) * a + launch
        packed += a
    if gemm["pack_b"] and not spec.b_packed:
        across, run = spec.b.col.stride > 1, spec.b.col.inner
        each = BROKEN_OPS * min(1, (wide - math.gcd(run, wide)) / run) if run and not across else 0
        if gemm["pack_b"] == "local":  # every item of a panel's rows packs it again
            cost += (LOCAL_OPS[across] + each) * every_b * sweeps
        else:
            cost += (PANEL_OPS[across] + each) * b + launch + (away * b if b * size > HELD_BYTES else 0.0)
    if packed * size > HELD_BYTES:
        cost += away * packed
    return cost
