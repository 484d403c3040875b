"""From a problem and a tile size to tiles, strips and matrices along (h, w).

The forward convolution and the data gradient are one dense sum over a source (x, or dy with the kernel rotated):

    target[n, p] = sum over (c, tap) of weights[n, c, tap] source[c, p + tap - pad]

in tiles of m x m targets. The weights' gradient has tiles of m x m elements of dy; its r taps are what a tile gives:

    dw[n, c, tap] = sum over tiles, q in the tile of dy[n, q] x[c, q + tap - pad]

A strip is a run of tiles of one tile row; strips are counted through rows, then images.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..transforms import Transform, in_range, transform

Pair = tuple[int, int]
_LOCAL = 30 * 1024  # bytes of a strip's copy: the first-level cache holds it, and every device's local memory


def summed(m: int, r: int) -> int:
    """Products of one running sum: longer sums are sums of such sums, whose rounding error is smaller.

    Seven tenths of F(7, 3)'s error at 64 products are the sums', a third at 32.
    """
    return 32 if (m, r) == (7, 3) else 128


@dataclass(frozen=True)
class Case:
    """One problem in tiles of ``m``; pairs are along (h, w), strides count elements."""

    problem: ConvProblem
    m: int
    lanes: int

    @property
    def weights(self) -> bool:
        """Whether the weights' gradient is computed."""
        return self.problem.direction == "bwd_weights"

    @property
    def rotated(self) -> bool:
        """Whether the data gradient is computed, over dy with the kernel rotated."""
        return self.problem.direction == "bwd_data"

    @property
    def nhwc(self) -> bool:
        """Whether channels come last."""
        return self.problem.layout == "nhwc"

    @property
    def size(self) -> int:
        """Bytes of an element of a sum."""
        return 8 if self.problem.dtype == "float64" else 4

    @property
    def c(self) -> int:
        """Source channels a group, over which products are summed; rows of dw otherwise."""
        return (self.problem.oc if self.rotated else self.problem.ic) // self.problem.g

    @property
    def n(self) -> int:
        """Target channels a group; those of dy in the weights' gradient."""
        return (self.problem.ic if self.rotated else self.problem.oc) // self.problem.g

    @property
    def taps(self) -> Pair:
        """The kernel's size."""
        return self.problem.kh, self.problem.kw

    @property
    def source(self) -> Pair:
        """Size of the planes that alpha x alpha patches are read from."""
        p = self.problem
        return (p.oh, p.ow) if self.rotated else (p.ih, p.iw)

    @property
    def target(self) -> Pair:
        """Size of the planes that are dealt into m x m tiles: the written ones, or dy's."""
        p = self.problem
        return (p.ih, p.iw) if self.rotated else (p.oh, p.ow)

    @property
    def pad(self) -> Pair:
        """Zeros before the source; below 0: elements skipped."""
        p = self.problem
        return (p.kh - 1 - p.ph, p.kw - 1 - p.pw) if self.rotated else (p.ph, p.pw)

    @functools.cached_property
    def transforms(self) -> tuple[Transform, Transform]:
        """The transforms along h and w; the identity where the kernel has one tap."""

        def one(taps: int) -> Transform:
            if taps == 1:
                return transform(1, 1)
            return transform(taps, self.m, None, "at") if self.weights else transform(self.m, taps)

        return in_range(one(self.taps[0]), one(self.taps[1]))

    @property
    def tile(self) -> Pair:
        """Size of a tile of the target."""
        return self.m if self.taps[0] > 1 else 1, self.m if self.taps[1] > 1 else 1

    @property
    def patch(self) -> Pair:
        """Size of a tile's patch of the source."""
        return self.transforms[0].alpha, self.transforms[1].alpha

    @property
    def products(self) -> int:
        """Elements of a transformed tile, each a matrix product of its own."""
        return math.prod(self.patch)

    @property
    def tiles(self) -> Pair:
        """Tiles along each axis."""
        return -(-self.target[0] // self.tile[0]), -(-self.target[1] // self.tile[1])

    @functools.cached_property
    def strip(self) -> int:
        """Tiles of a strip: rows of tiles are cut evenly until a strip's copy is small."""
        across = self.tiles[1]
        beyond = self.patch[1] - self.tile[1]
        most = (_LOCAL // (self.patch[0] * self.lanes * self.size) - beyond) // self.tile[1]
        return -(-across // -(-across // max(1, most)))

    @property
    def across(self) -> int:
        """Strips of a row of tiles."""
        return -(-self.tiles[1] // self.strip)

    @property
    def summed(self) -> int:
        """Products of one running sum."""
        return summed(self.m, max(self.taps))

    @property
    def strips(self) -> int:
        """Strips of all images."""
        return self.problem.mb * self.tiles[0] * self.across

    @property
    def local(self) -> int:
        """Elements of a strip's copy, of the source or of the target, and of a square's overhang."""
        columns = self.strip * self.tile[1] + self.patch[1] - self.tile[1]
        return (self.patch[0] * columns + self.lanes) * self.lanes

    @property
    def saving(self) -> float:
        """Multiplications of the direct sum for one of this."""
        direct = math.prod(self.target) * math.prod(self.taps)
        return direct / (math.prod(self.tiles) * self.products)

    def strides(self) -> dict[str, int]:
        """Elements of w from n to n, c to c, tap to tap (below 0: rotated), to the first tap, of a group."""
        p, taps = self.problem, math.prod(self.taps)
        row = p.ic // p.g * taps
        along, tap = (1, p.ic // p.g) if self.nhwc else (taps, 1)
        n, c = (along, row) if self.rotated else (row, along)
        sign, first = (-1, (taps - 1) * tap) if self.rotated else (1, 0)
        return {"w_n": n, "w_c": c, "w_t": sign * tap, "first": first, "group": p.oc // p.g * row}
