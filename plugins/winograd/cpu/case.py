"""From a problem and a tile size to tiles, strips and matrices along (h, w).

The forward convolution and the data gradient are one dense sum over a source (x, or dy with the kernel rotated):

    target[n, p] = sum over (c, tap) of weights[n, c, tap] source[c, p + tap - pad]

in tiles of m x m targets. The weights' gradient has tiles of m x m elements of dy; its r taps are what a tile gives:

    dw[n, c, tap] = sum over tiles, q in the tile of dy[n, q] x[c, q + tap - pad]

A strip is a run of tiles of one tile row; strips are counted through rows, then images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..transforms import Transform, in_range, transform

STRIP_BYTES = 30 * 1024
"""Bytes of a strip's copy: a first-level cache and every device's local memory hold it."""


def summed(m: int, r: int) -> int:
    """Products of one running sum: longer sums are sums of such sums, whose rounding error is smaller.

    Sums of 64 products are the source of seven tenths of F(7, 3)'s error, sums of 32 of a third.
    """
    return 32 if (m, r) == (7, 3) else 128


@dataclass
class Case:
    """One problem in tiles of ``m``; pairs are along (h, w), strides count elements."""

    problem: ConvProblem
    m: int
    lanes: int

    def __post_init__(self) -> None:
        p, m, lanes = self.problem, self.m, self.lanes
        self.weights = p.direction == "bwd_weights"
        """Whether the weights' gradient is computed."""
        self.rotated = rotated = p.direction == "bwd_data"
        """Whether the data gradient is computed, over dy with the kernel rotated."""
        self.nhwc = p.layout == "nhwc"
        self.size = 8 if p.dtype == "float64" else 4
        """Bytes of a sum."""
        self.c, self.n = (p.oc // p.g, p.ic // p.g) if rotated else (p.ic // p.g, p.oc // p.g)
        """Source channels a group, over which products are summed, and target channels a group. For the weights'
        gradient: rows of dw, and channels of dy."""
        self.taps = p.kh, p.kw
        x, y = (p.ih, p.iw), (p.oh, p.ow)
        self.source, self.target = (y, x) if rotated else (x, y)
        """Size of the planes that patches are read from, and of those that tiles cover: the written ones, or dy's."""
        self.pad = (p.kh - 1 - p.ph, p.kw - 1 - p.pw) if rotated else (p.ph, p.pw)
        """Zeros before the source; below 0: elements skipped."""
        self.transforms = in_range(*(self._transform(taps) for taps in self.taps))
        """The transforms along h and w."""
        self.tile = tuple(m if taps > 1 else 1 for taps in self.taps)
        """Size of a tile of the target."""
        self.patch = self.transforms[0].alpha, self.transforms[1].alpha
        """Size of a tile's patch of the source."""
        self.products = math.prod(self.patch)
        """Elements of a transformed tile, each a matrix product of its own."""
        self.tiles = tuple(-(-places // size) for places, size in zip(self.target, self.tile, strict=True))
        """Tiles along each axis."""
        beyond = self.patch[1] - self.tile[1]
        most = (STRIP_BYTES // (self.patch[0] * lanes * self.size) - beyond) // self.tile[1]
        self.strip = -(-self.tiles[1] // -(-self.tiles[1] // max(1, most)))
        """Tiles of a strip: rows of tiles are cut evenly until a strip's copy is small."""
        self.across = -(-self.tiles[1] // self.strip)
        """Strips of a row of tiles."""
        self.strips = p.mb * self.tiles[0] * self.across
        """Strips of all images."""
        self.summed = summed(m, max(self.taps))
        """Products of one running sum."""
        self.local = (self.patch[0] * (self.strip * self.tile[1] + beyond) + lanes) * lanes
        """Elements of a strip's copy, of the source or of the target, and of a square that reaches beyond it."""
        direct = math.prod(self.target) * math.prod(self.taps)
        self.saving = direct / (math.prod(self.tiles) * self.products)
        """Multiplications of the direct sum for one of this."""

    def _transform(self, taps: int) -> Transform:
        """Along an axis; the identity where the kernel has one tap."""
        if taps == 1:
            return transform(1, 1)
        return transform(taps, self.m, None, "at") if self.weights else transform(self.m, taps)

    def strides(self) -> dict[str, int]:
        """Strides of w along n, c and taps (below 0: rotated), offset of the first tap, and size of a group."""
        p, taps = self.problem, math.prod(self.taps)
        row = p.ic // p.g * taps
        along, tap = (1, p.ic // p.g) if self.nhwc else (taps, 1)
        n, c = (along, row) if self.rotated else (row, along)
        sign, first = (-1, (taps - 1) * tap) if self.rotated else (1, 0)
        return {"w_n": n, "w_c": c, "w_t": sign * tap, "first": first, "group": p.oc // p.g * row}
