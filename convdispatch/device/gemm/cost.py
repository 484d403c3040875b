"""What a product costs a CPU, in operations of the direct sum at the device's peak.

The numbers are least squares of logarithms over 700 products of 45 layers (1x1, all directions, weights constant and
not, one image and four) on two cores with AVX-512, each with up to sixteen of its choices (docs/selection.md).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from .spec import GemmSpec

__all__ = ["LAUNCH", "PACKED", "product_cost"]

LAUNCH = 3e6
PACKED = 50.0, 160.0
"""Of an element of A that is packed, by columns as it lies and across them."""

_WORK, _TILE = 0.93, 40.0  # of an operation of the tiles, edges in full; of a tile's beginning and end
_PANEL = 25.0, 55.0  # of an element of B that is packed, along its rows as it lies and across them
_LOCAL = 14.0, 68.0  # the same by the work item that needs it
_READ, _WRITTEN, _SCATTERED = 30.0, 5.0, 90.0  # of an element of A or B; of C; of C whose columns lie apart
_AGAIN, _NEAR = 0.35, 48 * 1024  # of an element of B that a row of tiles reads anew from beyond the nearest cache


@functools.lru_cache(maxsize=256)
def _swapped(spec: GemmSpec, swap: bool) -> GemmSpec:
    return (spec.swapped if swap else spec).simplified


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@functools.lru_cache(maxsize=4096)
def _operations(m: int, n: int, k: int, mr: int, nv: int, lanes: int) -> float:
    """Multiply-adds, two each, that a core could do while it computes all tiles of a batch, the edges' among them."""
    total = 0.0
    (tall, rest_m), (wide, rest_n) = divmod(m, mr), divmod(n, nv * lanes)
    for rows, count_m in ((mr, tall), (rest_m, 1)):
        for vectors, count_n in ((nv, wide), (_ceil(rest_n, lanes), 1)):
            if rows and vectors:
                # A step of k: the multiply-adds, the loads beside them, or some four cycles of a short chain of sums.
                unrolled = max(1, min(4, 8 // (rows * vectors)))
                total += count_m * count_n * max(rows * vectors, 0.7 * (rows + vectors), 4 / unrolled)
    return 2.0 * lanes * total * k


def product_cost(spec: GemmSpec, gemm: Mapping[str, Any]) -> float:
    """A product under one of its choices."""
    spec = _swapped(spec, gemm["swap"])
    mr, nv, lanes, split = gemm["mr"], gemm["nv"], gemm["lanes"], gemm["split"]
    a, b, c = spec.m * spec.k * spec.batch, spec.k * spec.n * spec.batch, spec.m * spec.n * spec.batch
    rows = _ceil(spec.m, mr)
    cost = _WORK * spec.batch * _operations(spec.m, spec.n, spec.k, mr, nv, lanes)
    cost += _TILE * rows * _ceil(spec.n, nv * lanes) * spec.batch * split * _ceil(_ceil(spec.k, split), gemm["kc"])
    cost += _READ * (a + b) + _WRITTEN * c * split + LAUNCH * (1 + (split > 1))
    if gemm["kc"] * nv * lanes * spec.accumulator_size > _NEAR:
        cost += _AGAIN * b * rows
    if spec.c.col.stride > 1:
        cost += _SCATTERED * c
    if gemm["pack_a"] and not spec.a_packed:
        cost += PACKED[spec.a.row.stride > 1] * a + LAUNCH
    if gemm["pack_b"] and not spec.b_packed:
        across = spec.b.col.stride > 1
        if gemm["pack_b"] == "local":  # every item of a panel's rows packs it again
            cost += _LOCAL[across] * b * _ceil(rows, gemm["mt"])
        else:
            cost += _PANEL[across] * b + LAUNCH
    return cost
