"""Cuts a problem into strips of tiles, and computes the strides of the weights.

A strip is a run of tiles of one tile row; strips are counted through rows, then images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..geometry import TileGeometry

STRIP_BYTES = 30 * 1024
"""Most bytes of the copy of a strip: a first-level cache and every device's local memory hold it."""


def summed(m: int, r: int) -> int:
    """Number of products that one running sum adds; a longer sum adds such sums, which reduces its rounding error.

    Running sums of 64 products cause seven tenths of F(7, 3)'s error, those of 32 a third.
    """
    return 32 if (m, r) == (7, 3) else 128


@dataclass
class Case:
    """One problem cut into tiles of ``m`` outputs; pairs are along (h, w), strides are in elements."""

    problem: ConvProblem
    m: int
    lanes: int

    def __post_init__(self) -> None:
        p, lanes, geo = self.problem, self.lanes, TileGeometry(self.problem, self.m)
        self.weights, self.nhwc, self.taps, self.tile = geo.weights, geo.nhwc, geo.taps, geo.tile
        self.rotated = p.direction == "bwd_data"
        """Whether the data gradient is computed, over dy with the kernel rotated."""
        self.size = p.accumulator_size
        """Bytes of one accumulator."""
        self.c, self.n = geo.source.channels // p.g, geo.target.channels // p.g
        """Source channels per group, over which products are summed, and target channels per group. For the weights'
        gradient: rows of dw, and channels of dy."""
        self.source, self.target = geo.source.size, geo.target.size
        """(h, w) of the tensor that patches are read from, and of the one that tiles cover: the written one, or dy."""
        self.pad = tuple(-first for first in geo.origin)
        """Zeros before the source; below 0: elements skipped."""
        self.transforms = geo.transforms
        self.patch, self.products, self.tiles = geo.alpha, geo.points, geo.counts
        """Elements that a tile reads along each axis; matrix products, one per element; tiles along each axis."""
        overlap = self.patch[1] - self.tile[1]
        max_strip = (STRIP_BYTES // (self.patch[0] * lanes * self.size) - overlap) // self.tile[1]
        self.strip = -(-self.tiles[1] // -(-self.tiles[1] // max(1, max_strip)))
        """Tiles per strip: rows of tiles are divided evenly such that a strip's copy has ``STRIP_BYTES`` at most."""
        self.across = -(-self.tiles[1] // self.strip)
        """Strips of a row of tiles."""
        self.strips = p.mb * self.tiles[0] * self.across
        """Number of strips in all images."""
        self.summed = summed(self.m, max(self.taps))
        """Products that one running sum adds."""
        self.local = (self.patch[0] * (self.strip * self.tile[1] + overlap) + lanes) * lanes
        """Elements of the copy of a strip, of the source or of the target, and of a square that extends beyond it."""
        direct = math.prod(self.target) * math.prod(self.taps)
        self.saving = direct / (math.prod(self.tiles) * self.products)
        """Multiplications of the direct convolution over multiplications of these tiles' products."""

    def strides(self) -> dict[str, int]:
        """Strides of w along n, c and taps (below 0: rotated), offset of the first tap, and size of a group."""
        p, taps = self.problem, math.prod(self.taps)
        row = p.ic // p.g * taps
        channel, tap = (1, p.ic // p.g) if self.nhwc else (taps, 1)
        n, c = (channel, row) if self.rotated else (row, channel)
        sign, first_tap = (-1, (taps - 1) * tap) if self.rotated else (1, 0)
        return {"w_n": n, "w_c": c, "w_t": sign * tap, "first": first_tap, "group": p.oc // p.g * row}
