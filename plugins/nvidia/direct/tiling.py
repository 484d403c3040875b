"""A convolution with a 1x1 kernel as a product of matrices that are read in place.

    C[m, n] = sum over k of A[m, k] B[k, n]

Every tensor of such a convolution has two axes, channels and pixels, and an element's address is a sum of one term for
each axis. Both axes of the weights are channels. "Rows" are m of A and n of B.

| direction | layout | A: m, k | B: n, k |
|---|---|---|---|
| forward | nchw | w: oc, ic | x: pixel, ic |
| forward | nhwc | x: pixel, ic | w: oc, ic |
| data gradient | nchw | w: ic, oc | dy: pixel, oc |
| data gradient | nhwc | dy: pixel, oc | w: ic, oc |
| weights' gradient | both | dy: oc, pixel | x: ic, pixel |

so that n is always the axis along which results are contiguous in memory.

A tile's numbers may be arrays, one element per tile of a format, so that ``choice`` rates many tiles together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from convdispatch.api import ConvProblem
from convdispatch.api.matrix import first_fault, largest

from ..instructions import LOCAL_LIMIT, NvidiaTile

FORMATS = {"tf32x3": 3, "bf16x3": 3, "tf32": 1}
"""Tensor core products per multiplication: a float32 is split into two TF32 or bfloat16 numbers, or is one TF32."""


SHORT_SLICES = 3
"""Slices of a work group's sum below which a program has its geometry as literals: on an H200 sums of two slices took
up to 1.14 times as long with arguments, those of three to five 1.02 in the mean and 1.09 at most."""


@dataclass(frozen=True)
class DirectTile(NvidiaTile):
    """Shape of a work group's tile, and how the product is divided; ``product.cl.mako`` explains it."""

    bm: int
    bn: int
    wm: int
    """Warps along m."""
    wn: int
    format: str = "tf32x3"
    bk: int = 32
    stages: int = 3
    split: int = 1
    flush_every: int = 0
    """In split formats, K-slices after which sums move to float32 registers; 0: after every tensor core product."""
    compensated: bool = False
    """In split formats, whether the rounding error of a move to float32 registers is added to the next sums."""

    @property
    def depth(self) -> int:
        """Depth in k of one tensor core product: 16 for bfloat16, 8 for TF32, which has half the rate."""
        return 16 if self.format == "bf16x3" else 8

    @property
    def products(self) -> int:
        """Tensor core products per multiplication."""
        return FORMATS[self.format]


@dataclass(frozen=True)
class MatrixAxis:
    """An axis of a tensor: channels of a group, or the output pixels of all images."""

    size: int
    step: int
    """Elements from one channel, or from one pixel of the tensor along w, to the next."""
    count: tuple[int, int, int] | None = None
    """Pixels of an image along d, h, w; None for channels."""
    image: int = 0
    """Elements from image to image."""
    steps: tuple[int, int, int] = (0, 0, 0)
    """Elements from pixel to pixel along d, h, w, stride included; 0 along axes of one pixel."""

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return math.prod(self.count)

    @property
    def rows(self) -> bool:
        """Whether an image's pixels are one step apart, row after row."""
        even_steps = (self.count[2] * self.count[1] * self.step, self.count[2] * self.step, self.step)
        return all(step in (0, even) for step, even in zip(self.steps, even_steps))

    @property
    def run(self) -> int:
        """A length each of whose divisors cuts the axis into runs of elements that are ``step`` apart."""
        if self.count is None:
            return self.size
        return self.pixels if self.rows else self.count[2] if self.steps[2] == self.step else 1

    def divides(self, width: int) -> bool:
        """Whether all strides of this axis are multiples of ``width``, so that the other axis's runs are aligned."""
        return not any(step % width for step in ((self.image, *self.steps) if self.count else (self.step,)))


@dataclass(frozen=True)
class Operand:
    """A or B: a tensor's two axes, and the layout of its tiles in local memory."""

    name: str
    row: MatrixAxis
    k: MatrixAxis
    group: int
    """Elements from group to group."""
    elements: int

    @functools.cached_property
    def along_k(self) -> bool:
        """Whether elements along k are contiguous, so that the tile in local memory is [row][k]; otherwise [k][row]."""
        return self.k.step == 1 and (self.k.run > 1 or self.row.step != 1)

    @functools.cached_property
    def width(self) -> int:
        """float32 numbers per copy: 4 if the tensor's sizes keep them contiguous and aligned, else 2 or 1."""
        return self.together(self.along_k)

    def together(self, along_k: bool) -> int:
        """Number of elements along k, or along the rows, that are contiguous and aligned everywhere: 4, 2 or 1."""
        inner, outer = (self.k, self.row) if along_k else (self.row, self.k)
        outer_strides = [inner.image, *(() if inner.rows else inner.steps[:2])] if inner.count else []
        for width in (4, 2):
            aligned = outer.divides(width) and not any(stride % width for stride in (self.group, *outer_strides))
            if inner.run % width == 0 and aligned:
                return width
        return 1


def _triple(problem: ConvProblem, letter: str) -> tuple[int, int, int]:
    return tuple(getattr(problem, letter + axis) for axis in "dhw")


def _axes(problem: ConvProblem, name: str) -> tuple[MatrixAxis, MatrixAxis]:
    """The axes of a tensor: channels and y's pixels of x or y; output channels and input channels of w."""
    icg, ocg, nhwc = problem.ic // problem.g, problem.oc // problem.g, problem.layout == "nhwc"
    if name == "w":
        return MatrixAxis(ocg, icg), MatrixAxis(icg, 1)
    count, channels = _triple(problem, "o"), problem.ic if name == "x" else problem.oc
    size, (sd, sh, sw) = (_triple(problem, "i"), _triple(problem, "s")) if name == "x" else (count, (1, 1, 1))
    unit = channels if nhwc else 1
    pixel_steps = (size[1] * size[2] * unit * sd, size[2] * unit * sh, unit * sw)
    steps = tuple(step if pixels > 1 else 0 for step, pixels in zip(pixel_steps, count))
    channel = MatrixAxis(channels // problem.g, 1 if nhwc else math.prod(size))
    return channel, MatrixAxis(problem.mb * math.prod(count), unit, count, channels * math.prod(size), steps)


def _operand(problem: ConvProblem, name: str, row: int) -> Operand:
    axes, shape = _axes(problem, name), getattr(problem, name + "_shape")
    group = axes[0].size * (axes[1].size if name == "w" else axes[0].step)
    return Operand(name, axes[row], axes[1 - row], group, math.prod(shape))


@functools.lru_cache(maxsize=256)
def _operands(problem: ConvProblem) -> tuple[Operand, Operand]:
    if problem.direction == "bwd_weights":
        return _operand(problem, "y", 0), _operand(problem, "x", 0)
    forward = problem.direction == "fwd"
    weights = _operand(problem, "w", 0 if forward else 1)
    pixels = _operand(problem, "x" if forward else "y", 1)
    return (pixels, weights) if problem.layout == "nhwc" else (weights, pixels)


@dataclass(unsafe_hash=True)
class DirectTiling:
    """The numbers with which ``product.cl.mako`` is rendered. Pairs are for A and for B."""

    problem: ConvProblem
    tile: DirectTile

    def __post_init__(self) -> None:
        p, t = self.problem, self.tile
        # data: whether the result is pixels (forward, data gradient), not weights.
        self.data, self.nhwc = p.direction != "bwd_weights", p.layout == "nhwc"
        self.operands = _operands(p)
        self.m, self.n, self.k = self.operands[0].row.size, self.operands[1].row.size, self.operands[0].k.size
        # gaps: whether a strided data gradient has pixels of x that no output reads, which are written as zeros.
        self.gaps = p.direction == "bwd_data" and _triple(p, "i") != _triple(p, "o")
        self.m_tiles, self.n_tiles, self.slices = -(-self.m // t.bm), -(-self.n // t.bn), -(-self.k // t.bk)
        self.work_groups = self.m_tiles * self.n_tiles * t.split * p.g
        # Local memory of a work group has pipeline stages of one K-slice of both operands.
        self.extent = t.bm, t.bn
        along_k = [operand.along_k for operand in self.operands]
        # pitch: floats from line to line of a tile in local memory; a fragment's 32 numbers are in different banks.
        self.pitch = tuple(t.bk + 4 if k else rows + 8 for k, rows in zip(along_k, self.extent))
        self.floats = tuple((rows if k else t.bk) * n for k, rows, n in zip(along_k, self.extent, self.pitch))
        self.stage = sum(self.floats)
        # Local memory holds the stages, after them the results before they are stored.
        self.local_bytes = 4 * largest(self.stage * t.stages, t.bm * (t.bn + 8))
        self.partial_elements = math.prod(p.out_shape)
        self.partial_bytes = self.partial_elements * t.split * 4 * (t.split > 1)  # bytes of all partial sums

    @functools.cached_property
    def target(self) -> Operand:
        """The result as an operand: its axis ``row`` is m, its axis ``k`` is n."""
        return _operand(self.problem, self.problem.written, 1 if self.data and self.nhwc else 0)

    @property
    def out_width(self) -> int:
        """Results that one store writes."""
        return self.target.together(True) if self.nhwc or not self.gaps else 1

    @property
    def specialised(self) -> bool:
        """Whether the geometry's numbers are literals: as arguments they would take a notable share of a short sum, as
        each work group divides by them before its first copy, and spill registers where zeros stand between results.
        """
        return self.gaps or self.slices < SHORT_SLICES * self.tile.split

    @property
    def index(self) -> str:
        """OpenCL type of offsets in the operands."""
        return "int" if max(operand.elements for operand in self.operands) < 2**31 else "long"

    @property
    def out_index(self) -> str:
        """OpenCL type of offsets in the output and its parts."""
        return "int" if self.partial_elements * self.tile.split < 2**31 else "long"

    @property
    def misfit(self) -> str | None:
        """The reason why the tile cannot run this problem; None when it can."""
        return first_fault(self, self.faults())

    def faults(self) -> Iterator[tuple[Any, str]]:
        """(whether a constraint is violated, its message); constraints after a violated one may be meaningless."""
        t = self.tile
        undivided = (t.bm % (t.wm * 16) > 0) | (t.bn % (t.wn * 8) > 0) | (t.bk % t.depth > 0)
        not_power_of_two = (t.bn & (t.bn - 1) > 0) | (t.items & (t.items - 1) > 0)
        yield undivided | not_power_of_two, "the tile does not divide into warps"
        yield (t.bk & (t.bk - 1) > 0) | (t.bn < 16), "slices and columns are powers of two, 16 columns or more"
        if not self.operands[0].along_k:
            yield t.bm & (t.bm - 1) > 0, "rows that are neighbours in memory come in powers of two"
        yield t.stages < 2, "two stages or more"
        yield self.local_bytes > LOCAL_LIMIT, "{tiling.local_bytes} bytes of local memory"
        yield t.split > self.slices, "more parts than slices"
        moves = (t.flush_every > 0) | t.compensated
        if t.products == 1:
            yield moves, "only split values move their sums to float32 registers"
        yield t.frag_m * t.frag_n * 4 * (1 + moves) > 160, "more sums than registers"
