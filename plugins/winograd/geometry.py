"""The tensors, tiles and transforms of a problem for a tile size, as the kernels read them.

The forward convolution, and the data gradient as a convolution over dy with the kernel flipped, are

    target[p] = sum over t of kernel[t] source[p + origin + t]

so a tile of m x m targets starts at a multiple of m and reads alpha x alpha sources, alpha = m + r - 1. The weights'
gradient sums over tiles of dy, each the "kernel" of a small convolution over x whose outputs are the taps:

    dw[t] = sum over tiles, over q in the tile of dy[q] x[q + origin + t]

All pairs are along (h, w); strides of tensors are in elements.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem, TensorLayout

from .transforms import Matrix, Transform, in_range, transform

Pair = tuple[int, int]
ERROR_RATES = {
    (2, 3): (3.3e-8, 2.6e-8),
    (4, 3): (9.5e-8, 4.4e-8),
    (5, 3): (2.0e-7, 6.3e-8),
    (6, 3): (4.1e-7, 9.5e-8),
    (7, 3): (1.02e-6, 1.5e-7),
    (2, 5): (1.1e-7, 4.6e-8),
    (4, 5): (3.8e-7, 8.9e-8),
    (2, 7): (4.9e-7, 1.0e-7),
    (4, 7): (2.2e-6, 2.2e-7),
}
"""Relative error of F(m, r) over the square root of the number of products summed, in every direction: (kernels along
both axes, kernels along one axis). Measured in float32 on normal data with 64 to 1024 products, the larger of a CPU's
and a GPU's (docs/results/accuracy.md); a tile's own rounding error dominates below 16 products."""


def unsuited(problem: ConvProblem, r: int) -> str | None:
    """Return the reason why a problem cannot be cut into tiles for kernels of r taps; None when it can."""
    if problem.mb < 1:
        return f"1 image or more, got {problem.mb}"
    if problem.ndim > 2:
        return f"1-D and 2-D only, got {problem.ndim}-D"
    kernel = (problem.kh, problem.kw)
    if r not in kernel or set(kernel) - {1, r}:
        return f"{r}x{r}, {r}x1 or 1x{r} only, got {kernel[0]}x{kernel[1]}"
    if (problem.sh, problem.sw) != (1, 1):
        return f"stride 1 only, got {problem.sh}x{problem.sw}"
    if any(d != 1 for d, k in zip((problem.dh, problem.dw), kernel, strict=True) if k > 1):
        return f"dilation 1 only, got {problem.dh}x{problem.dw}"
    return None


@dataclass(unsafe_hash=True)
class TileGeometry:
    """One problem cut into tiles of ``m`` along each axis on which the kernel has more than one tap."""

    problem: ConvProblem
    m: int

    def __post_init__(self) -> None:
        p, m = self.problem, self.m
        self.weights = p.direction == "bwd_weights"
        """Whether the problem is a weights' gradient."""
        self.nhwc, self.groups, self.images = p.layout == "nhwc", p.g, p.mb
        flipped = p.direction == "bwd_data"
        x = TensorLayout(p.ic, (p.ih, p.iw), self.nhwc)
        self.y = y = TensorLayout(p.oc, (p.oh, p.ow), self.nhwc)
        """Layout of the output tensor."""
        self.source, self.target = (y, x) if flipped else (x, y)
        """The tensor that tiles are read from, and the one that tiles cover: the written one, or dy in the weights'
        gradient."""
        self.taps = p.kh, p.kw
        self.tile = tuple(m if taps > 1 else 1 for taps in self.taps)
        """Target elements of a tile along each axis."""
        self.alpha = tuple(size + taps - 1 for size, taps in zip(self.tile, self.taps, strict=True))
        """Elements of a transformed tile along each axis."""
        self.points = math.prod(self.alpha)
        """Number of matrix products: one for each element of a transformed tile."""
        pads = zip((p.ph, p.pw), self.taps, strict=True)
        self.origin = tuple(pad - (taps - 1) if flipped else -pad for pad, taps in pads)
        """Position in the source of the first element that the first tile reads; below 0 in the padding."""
        self.counts = tuple(-(-size // tile) for size, tile in zip(self.target.size, self.tile, strict=True))
        """Tiles of an image along each axis."""
        self.tiles = self.images * math.prod(self.counts)
        """Number of tiles in all images."""

    @functools.cached_property
    def transforms(self) -> tuple[Transform, Transform]:
        """F(m, r) along h and w; for the weights' gradient F(r, m), whose inverse runs once."""
        if self.weights:
            return in_range(*(transform(r, m, once="at") for m, r in zip(self.tile, self.taps, strict=True)))
        return in_range(*(transform(m, r) for m, r in zip(self.tile, self.taps, strict=True)))

    def matrices(self, name: str) -> tuple[Matrix, Matrix]:
        """The matrices ``bt``, ``g`` or ``at`` along h and w."""
        return tuple(getattr(each, name) for each in self.transforms)
