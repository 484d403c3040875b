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
from .layout import distinct
from .prefetch import far_rows
from .spec import GemmSpec

LAUNCH = 3e6
"""Of a launch, on the cores that costs were fitted on."""
PACKED = 50.0, 160.0
"""Of an element of A that is packed, by columns as it lies and across them."""

_TURNED, _REST = 25.0, 6000.0  # of an element in blocks that are turned, of what one run along columns leaves beside
_APART, _WAYS = 1500.0, 12  # of an element of C where more lines share a place than a cache has room for
_AWAY, _HELD = 200.0, 7 << 20  # more of a packed element that goes to memory and back, of so many bytes and more
_WORK, _TILE = 0.93, 40.0  # of an operation of the tiles, edges in full; of a tile's beginning and end
_PANEL = 25.0, 55.0  # of an element of B that is packed, along its rows as it lies and across them
_LOCAL = 14.0, 75.0  # the same by the work item that needs it
_WIDENED = 4.0  # of an element of A that a tile widens for itself
_READ, _WRITTEN, _SCATTERED = 30.0, 5.0, 90.0  # of an element of A or B; of C; of C whose columns lie apart
_PARTIAL = 20.0  # of one of C that a part of a sum leaves and another kernel adds
_CACHED = 1 << 20  # bytes that are read again from a near cache
_FAR = 20.0  # of an element of A that a panel of B, or of a panel that an item reads from memory anew;
# of A's rows side by side in place, columns apart, whole lines come for a tile's few
_AHEAD = 2.0  # the same of rows in place whose lines are asked for ahead
_CROWDED, _PAGE = 8.0, 4096  # of one in place, read again: of B's rows whole pages apart, of A's columns on many pages
_AWAY_AGAIN = 18.0  # of one of A in rows side by side whose columns share few places of the nearest cache
_AGAIN, _NEAR = 0.35, 32 * 1024  # of an element of B that a row of tiles reads anew from beyond the nearest cache
_CUT, _LINE = 0.7, 64  # of one of B in place, in vectors across lines: NumPy's large arrays lie 16 bytes beyond one
_ROOM, _PAGES = 10, 64  # lines of one place that the nearest cache keeps; pages whose addresses are at hand
_BROKEN = 160.0  # of an element of B in a panel across the end of a run of columns, packed one by one


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
                # A step of k: the multiply-adds, the loads beside them, or the four cycles, each of two multiply-adds,
                # that a sum takes before the next may be added to it; just eight sums take a ninth longer.
                total += count_m * count_n * max(rows * vectors, 0.7 * (rows + vectors), 9 / unrolled)
    return 2.0 * lanes * total * k


def _packed(spec: GemmSpec) -> float:
    """Of an element of A that is packed: across rows, blocks are turned in registers, rests of runs go one by one."""
    rows, columns = spec.a.row, spec.a.col
    if rows.stride <= 1:
        return PACKED[False]
    if columns.stride != 1 or rows.stride * spec.accumulator_size % _PAGE == 0:
        return PACKED[True]
    return min(PACKED[True], _TURNED + _REST / min(spec.k, columns.inner or spec.k))


def _overflows(step: int, count: int, lines: int) -> bool:
    """Whether so many runs of lines, so many bytes apart, are more than the nearest cache has room for."""
    places = min(_PAGE // _LINE, _PAGE // max(_LINE, math.gcd(step, _PAGE)) * lines)
    return count * lines > _ROOM * places


def _read_again(spec: GemmSpec, gemm: Mapping[str, Any], depth: int) -> tuple[float, float]:
    """Of an element of A that one more panel of B reads, and of one of B that one more row of tiles reads."""
    size, nv = spec.accumulator_size, gemm["nv"]
    a = b = 0.0
    if not (gemm["pack_a"] or spec.a_packed):
        step = spec.a.col.stride * size
        a = _CROWDED * (step > size and step * depth > _PAGES * _PAGE)
        if spec.a.row.stride == 1 and _LINE <= step < _PAGE and _overflows(step, depth, 1):
            a += _AWAY_AGAIN
    if gemm["pack_b"] or spec.b_packed:
        beyond = depth * nv * gemm["lanes"] * size > _NEAR
    else:
        step = spec.b.row.stride * size
        beyond = _overflows(step, depth, nv + 1)
        b = _CROWDED * (step % _PAGE == 0) + _CUT
    return a, b + _AGAIN * beyond


def product_cost(spec: GemmSpec, gemm: Mapping[str, Any], balance: Balance = FITTED) -> float:
    """A product under one of its choices, on a CPU of this balance."""
    launch, away = LAUNCH * balance.launch, _AWAY * balance.memory
    spec = _swapped(spec, gemm["swap"])
    mr, nv, lanes, split = gemm["mr"], gemm["nv"], gemm["lanes"], gemm["split"]
    # Batches that share an operand pack it once; each reads it.
    a, b = (count * spec.k * distinct(x.batch, spec.batch)[0] for count, x in ((spec.m, spec.a), (spec.n, spec.b)))
    every_a, every_b, c = (count * spec.batch for count in (spec.m * spec.k, spec.k * spec.n, spec.m * spec.n))
    size, wide = spec.accumulator_size, nv * lanes
    rows, panels = cdiv(spec.m, mr), cdiv(spec.n, wide)
    passes, sweeps = cdiv(cdiv(spec.k, split), gemm["kc"]), cdiv(rows, gemm["mt"])
    packed = 0
    cost = _WORK * spec.batch * _operations(spec.m, spec.n, spec.k, mr, nv, lanes)
    cost += _TILE * rows * panels * spec.batch * split * passes
    cost += _READ * (a + b) + _WRITTEN * c * split * passes + launch
    if split > 1:
        cost += _PARTIAL * c * split + launch
    again_a, again_b = _read_again(spec, gemm, min(gemm["kc"], spec.k))
    cost += again_a * every_a * panels + again_b * every_b * rows
    if spec.m * spec.k * size > _CACHED:
        in_place = not (gemm["pack_a"] or spec.a_packed)
        lines = in_place and spec.a.row.stride == 1 and spec.a.col.stride * size >= _LINE
        each = _AHEAD if far_rows(spec, not in_place, nv) else _FAR * (max(1.0, _LINE / (mr * size)) if lines else 1.0)
        # An item whose rows stay in the second-level cache from one of its panels to the next reads them once.
        near = gemm["mt"] * mr * min(gemm["kc"], spec.k) * size <= _CACHED // 2
        cost += each * (every_a * (cdiv(panels, gemm["np"]) if near else panels) - a)
    if spec.k * (wide if split == 1 else spec.n) * size > _CACHED:
        cost += _FAR * (every_b * sweeps - b)
    if spec.c.col.stride == 1 and c * size > _CACHED:
        # Lines that two panels share are brought and written twice.
        cost += _FAR * c * (_LINE - math.gcd(wide * size, _LINE)) / (wide * size)
    if spec.c.col.stride > 1:
        # A row of a tile is written to as many lines, which share few places of the nearest cache where columns lie so.
        apart = wide * math.gcd(spec.c.col.stride * size, _PAGE) > _WAYS * _PAGE
        cost += (_APART if apart else _SCATTERED) * c * (passes if split == 1 else 1)
    if gemm["pack_a"] == "local" and not spec.a_packed:
        cost += _WIDENED * every_a * panels
    elif gemm["pack_a"] and not spec.a_packed:
        cost += _packed(spec) * a + launch
        packed += a
    if gemm["pack_b"] and not spec.b_packed:
        across, run = spec.b.col.stride > 1, spec.b.col.inner
        each = _BROKEN * min(1, (wide - math.gcd(run, wide)) / run) if run and not across else 0
        if gemm["pack_b"] == "local":  # every item of a panel's rows packs it again
            cost += (_LOCAL[across] + each) * every_b * sweeps
        else:
            cost += (_PANEL[across] + each) * b + launch + (away * b if b * size > _HELD else 0.0)
    if packed * size > _HELD:
        cost += away * packed
    return cost
