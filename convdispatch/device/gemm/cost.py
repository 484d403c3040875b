"""What a product costs a CPU, in operations of the direct sum at the device's peak.

The numbers are least squares of logarithms over the backward layers of seven nets, float32, one image, on two cores;
forward layers, which they did not see, agree within a tenth on average (docs/selection.md).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from .spec import GemmSpec

__all__ = ["LAUNCH", "PACKED", "product_cost"]

LAUNCH = 1.5e6
PACKED = 200.0, 300.0
"""Of an element of A that is packed, by columns as it lies and across them."""

_WORK = 1.1  # of an operation: tiles stay below the peak by so much
_PANEL = 40.0, 180.0  # of an element of B that is packed, along its rows as it lies and across them
_LOCAL = 12.0, 95.0  # the same by the work item that needs it
_READ, _WRITTEN, _SCATTERED = 19.0, 25.0, 300.0  # of an element of A or B; of C; of C whose columns lie apart


@functools.lru_cache(maxsize=256)
def _swapped(spec: GemmSpec, swap: bool) -> GemmSpec:
    return (spec.swapped if swap else spec).simplified


def product_cost(spec: GemmSpec, gemm: Mapping[str, Any]) -> float:
    """A product under one of its choices."""
    spec = _swapped(spec, gemm["swap"])
    a, b, c = spec.m * spec.k * spec.batch, spec.k * spec.n * spec.batch, spec.m * spec.n * spec.batch
    cost = _WORK * 2 * a * spec.n + _READ * (a + b) + _WRITTEN * c * gemm["split"] + LAUNCH * (1 + (gemm["split"] > 1))
    if spec.c.col.stride > 1:
        cost += _SCATTERED * c
    if gemm["pack_a"] and not spec.a_packed:
        cost += PACKED[spec.a.row.stride > 1] * a + LAUNCH
    if gemm["pack_b"] and not spec.b_packed:
        across = spec.b.col.stride > 1
        if gemm["pack_b"] == "local":  # every item of a panel's rows packs it again
            tiles = -(-spec.m // gemm["mr"])
            cost += _LOCAL[across] * b * -(-tiles // gemm["mt"])
        else:
            cost += _PANEL[across] * b + LAUNCH
    return cost
