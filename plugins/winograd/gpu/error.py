"""The expected error of each tile size, measured once against float64, and whether a math mode admits it."""

from __future__ import annotations

import math

from convdispatch.api import ConvProblem

from ..geometry import TileGeometry

# Relative error of F(m, r) over the square root of the number n of products summed: (kernels along both axes, kernels
# along one axis). Measured in float32 on normal data with n from 64 to 1024 (docs/results/accuracy.md); from n = 16 on
# a tile's own rounding error is smaller.
_RATE = {
    (2, 3): (3.2e-8, 2.6e-8),
    (4, 3): (9.5e-8, 4.3e-8),
    (5, 3): (2.0e-7, 6.2e-8),
    (6, 3): (4.1e-7, 9.1e-8),
    (2, 5): (1.1e-7, 4.6e-8),
    (4, 5): (3.8e-7, 8.9e-8),
    (2, 7): (4.9e-7, 1.0e-7),
    (4, 7): (2.2e-6, 2.2e-7),
}
TILES = tuple(_RATE)
"""Tile sizes and kernel sizes whose error is known."""
MAX_ERROR = 1e-5
"""Relative error that math "float32" allows."""
EXPECTED_SHARE = 0.7
"""Share of ``MAX_ERROR`` that the expected error of a whole tensor may reach: elements near its borders have up to 1.5
times the error."""


def _rate(geometry: TileGeometry) -> float:
    r = max(geometry.taps)
    return _RATE[geometry.m, r][0 if min(geometry.taps) > 1 else 1]


def expected(geometry: TileGeometry, terms: int) -> float:
    """Relative error of sums of ``terms`` products: channels per group, or tiles of dy."""
    return _rate(geometry) * math.sqrt(max(terms, 16))


def longest(geometry: TileGeometry) -> int | None:
    """Most products that one sum may add under the problem's math; None if there is no limit."""
    problem = geometry.problem
    if problem.dtype != "float32" or problem.math in ("tf32", "fast"):
        return None
    return int((EXPECTED_SHARE * MAX_ERROR / _rate(geometry)) ** 2)


def refusal(geometry: TileGeometry) -> str | None:
    """Why the problem's math does not admit the tile, or None."""
    problem: ConvProblem = geometry.problem
    if problem.dtype == "float32" and problem.math == "ieee" and (geometry.m > 2 or max(geometry.taps) > 5):
        tile = f"F({geometry.m}, {max(geometry.taps)})"
        return f"as exact as a plain sum only in tiles of 2 and kernels of 5 at most, got {tile}"
    max_products = longest(geometry)
    channels = geometry.source.channels // geometry.groups
    if max_products is not None and max_products < 64:
        return f"an error of 1e-5 at most, got {expected(geometry, 64):.1e} for 64 channels"
    if max_products is not None and not geometry.weights and channels > max_products:
        return f"within 1e-5 up to {max_products} channels a group, got {channels}"
    return None
