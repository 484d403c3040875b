"""From a problem and a tile size to what the kernels geometry: tensors, tiles, and the transforms along each axis.

Forward, and the data gradient as the same over dy with the kernel flipped:

    target[p] = sum over t of kernel[t] source[p + origin + t]

so a tile of m x m targets starts at a multiple of m and reads alpha x alpha sources, alpha = m + r - 1. The weights'
gradient sums over tiles of dy, each the "kernel" of a small convolution over x whose outputs are the taps:

    dw[t] = sum over tiles, over q in the tile of dy[q] x[q + origin + t]

All pairs are along (h, w); strides of tensors count elements.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem, TensorLayout

from ..transforms import Matrix, Transform, in_range, transform

Pair = tuple[int, int]


@dataclass(frozen=True)
class TileGeometry:
    """One problem in tiles of ``m`` along each axis on which the kernel has more than one tap."""

    problem: ConvProblem
    m: int

    @property
    def weights(self) -> bool:
        """Whether the weights' gradient is computed."""
        return self.problem.direction == "bwd_weights"

    @property
    def nhwc(self) -> bool:
        """Whether channels come last."""
        return self.problem.layout == "nhwc"

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return self.problem.g

    @property
    def images(self) -> int:
        """Images."""
        return self.problem.mb

    @property
    def x(self) -> TensorLayout:
        """The input."""
        return TensorLayout(self.problem.ic, (self.problem.ih, self.problem.iw), self.nhwc)

    @property
    def y(self) -> TensorLayout:
        """The output."""
        return TensorLayout(self.problem.oc, (self.problem.oh, self.problem.ow), self.nhwc)

    @property
    def source(self) -> TensorLayout:
        """What tiles are read from: x, for the data gradient dy."""
        return self.y if self.problem.direction == "bwd_data" else self.x

    @property
    def target(self) -> TensorLayout:
        """The tensor whose places the tiles cover: written, or dy of the weights' gradient."""
        return self.x if self.problem.direction == "bwd_data" else self.y

    @property
    def taps(self) -> Pair:
        """The kernel's taps."""
        return (self.problem.kh, self.problem.kw)

    @property
    def tile(self) -> Pair:
        """Places of a tile."""
        return tuple(self.m if taps > 1 else 1 for taps in self.taps)

    @property
    def alpha(self) -> Pair:
        """Elements of a transformed tile."""
        return tuple(m + r - 1 for m, r in zip(self.tile, self.taps, strict=True))

    @property
    def points(self) -> int:
        """Products: elements of a transformed tile."""
        return math.prod(self.alpha)

    @property
    def origin(self) -> Pair:
        """Where the first tile reads."""
        pads = (self.problem.ph, self.problem.pw)
        if self.problem.direction != "bwd_data":
            return tuple(-p for p in pads)
        return tuple(p - (k - 1) for p, k in zip(pads, self.taps, strict=True))

    @property
    def counts(self) -> Pair:
        """Tiles of an image along each axis."""
        return tuple(-(-size // m) for size, m in zip(self.target.size, self.tile, strict=True))

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.images * math.prod(self.counts)

    @functools.cached_property
    def transforms(self) -> tuple[Transform, Transform]:
        """F(m, r) along h and w; for the weights' gradient F(r, m), whose inverse runs once."""
        if self.weights:
            return in_range(*(transform(r, m, once="at") for m, r in zip(self.tile, self.taps, strict=True)))
        return in_range(*(transform(m, r) for m, r in zip(self.tile, self.taps, strict=True)))

    def matrices(self, name: str) -> tuple[Matrix, Matrix]:
        """``bt``, ``g`` or ``at`` along h and w."""
        return tuple(getattr(each, name) for each in self.transforms)

    @property
    def multiplications(self) -> float:
        """Multiply-adds of the products a multiply-add of the direct sum, tiles at the edges counted whole."""
        direct = self.images * self.target.pixels * math.prod(self.taps)
        return self.points * self.tiles / max(1, direct)
