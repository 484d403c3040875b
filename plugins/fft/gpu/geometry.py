"""A convolution as products of spectra: the pixels that are transformed, and the positions of the results.

Along an axis a tile of ``size`` points holds the data at positions 0, 1, ... and the kernel's taps at 0, d, 2d, ... The
product of their spectra is a circular sum, whose positions differ from the true ones by multiples of ``size``:

- **whole**: one tile holds the image. Padding zeros need not be stored: with ``size`` at least the image plus the wider
  padding, wrapped sums are at positions that are not read. Result j is at ``j - p`` or ``j + p``, modulo ``size``.
- **tiled** (overlap-save): tiles of ``size`` points start ``step = size - extent + 1`` apart, and only the ``step``
  results without wrapped sums are used. For the weights' gradient tiles of dy have ``step`` pixels and those of x
  ``size``, so that sums at the kernel's taps do not wrap, and the sum over tiles is part of the product.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from convdispatch.api import ConvProblem, TensorLayout

from ..transforms import half


@dataclass(frozen=True)
class Span:
    """The elements that a tile reads along one axis of a tensor: ``given`` from ``origin + tile * step`` on."""

    length: int
    """Elements of the tensor along the axis."""
    given: int
    origin: int = 0
    step: int = 0
    spread: int = 1
    """Points of the transform from one element to the next (the dilation of a kernel)."""

    @property
    def inside(self) -> bool:
        """Whether no tile reaches outside the tensor."""
        return self.step == 0 and self.origin >= 0 and self.origin + (self.given - 1) // self.spread < self.length


@dataclass(frozen=True)
class TransformAxis:
    """One axis of a problem with transforms of ``size`` points; ``tiles`` 1 and ``step`` 0 mean the whole image."""

    size: int
    tiles: int
    data: Span
    """The tile in the tensor that slides under the kernel: x, or dy for the data gradient."""
    other: Span
    """The tile in the other operand: w, or dy for the weights' gradient."""
    wanted: tuple[int, ...]
    """Points of the inverse transform that hold a tile's results."""
    out_step: int
    """Result elements from the first one of a tile to the first one of the next tile."""
    out_length: int

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(cls, problem: ConvProblem, axis: str, size: int) -> TransformAxis | None:
        """Transforms of ``size`` points along ``axis``; None when they are too small."""
        length, kernel, dilation, out = (getattr(problem, letter + axis) for letter in "ikdo")
        pad = getattr(problem, "p" + axis)
        extent = dilation * (kernel - 1) + 1
        taps = Span(kernel, extent, spread=dilation)
        if size >= max(length + pad, out + extent - 1 - pad, length, out, extent):
            x, y = Span(length, length), Span(out, out)
            if problem.direction == "fwd":
                return cls(size, 1, x, taps, tuple((j - pad) % size for j in range(out)), 0, out)
            if problem.direction == "bwd_data":
                return cls(size, 1, y, taps, tuple((j + pad) % size for j in range(length)), 0, length)
            return cls(size, 1, x, y, tuple((j * dilation - pad) % size for j in range(kernel)), 0, kernel)
        step = size - extent + 1
        if step < 1:
            return None
        if problem.direction == "fwd":
            data = Span(length, size, -pad, step)
            return cls(size, -(-out // step), data, taps, tuple(range(step)), step, out)
        if problem.direction == "bwd_data":
            data = Span(out, size, pad - (extent - 1), step)
            return cls(size, -(-length // step), data, taps, tuple(range(extent - 1, size)), step, length)
        data, dy = Span(length, size, -pad, step), Span(out, step, 0, step)
        return cls(size, -(-out // step), data, dy, tuple(j * dilation for j in range(kernel)), 0, kernel)


@dataclass(frozen=True)
class Transform:
    """Both axes of a problem. ``columns`` is transformed first, from real to half a spectrum; then ``rows``, complex.

    Pixels of a row are contiguous, so adjacent work items transform adjacent columns. A 1-D problem is one column.
    """

    columns: TransformAxis
    rows: TransformAxis

    @classmethod
    def of(cls, problem: ConvProblem, sizes: tuple[int, int]) -> Transform | None:
        """Transforms of ``sizes`` (height, width) points; None when they do not fit."""
        if problem.ndim == 1:
            columns, rows = TransformAxis.of(problem, "w", sizes[1]), TransformAxis.of(problem, "h", 1)
        else:
            columns, rows = TransformAxis.of(problem, "h", sizes[0]), TransformAxis.of(problem, "w", sizes[1])
        return cls(columns, rows) if columns is not None and rows is not None else None

    @property
    def tiles(self) -> int:
        """Number of tiles in an image."""
        return self.columns.tiles * self.rows.tiles

    @property
    def height(self) -> int:
        """Number of rows of half a spectrum."""
        return half(self.columns.size)

    @property
    def prescales(self) -> tuple[float, float]:
        """Powers of two by which the data's spectra, and the results of the inverse's first pass, are multiplied.

        Transforms of n points make numbers sqrt(n) times as large; so no sum overflows much before the result does.
        """
        points = self.columns.data.given * self.rows.data.given
        return 2.0 ** -((points.bit_length() - 1) // 2), 2.0 ** -(self.rows.size.bit_length() - 1)

    def own_conjugate(self, row: int) -> bool:
        """Whether a row of the spectrum is the transform of real values, so that half of the row determines it."""
        return row == 0 or 2 * row == self.columns.size

    @functools.cached_property
    def frequencies(self) -> int:
        """Complex numbers in the stored spectrum of a real tile."""
        short, full = half(self.rows.size), self.rows.size
        return sum(short if self.own_conjugate(row) else full for row in range(self.height))


@dataclass(frozen=True)
class Line:
    """One axis of a matrix of spectra: the meaning of its index, and the strides of the tiles' planes in the tensor."""

    total: int
    """Number of indices in one group."""
    stride: int
    """Elements of the tensor from one index to the next."""
    group: int = 0
    """Elements of the tensor from one group to the next."""
    tiles: int = 0
    """Tiles per image if the index counts tiles; 0 if it counts something else."""
    channels: bool = False
    """Whether the index counts channels of the written tensor."""


@dataclass(frozen=True)
class Planes:
    """A tensor seen as a matrix of tiles, (row, slot), in each group."""

    tensor: str
    row: Line
    slot: Line
    column_stride: int
    """Elements of the tensor between neighbouring pixels of a column."""
    row_stride: int


@functools.lru_cache(maxsize=64)
def planes(problem: ConvProblem, tiles: int) -> tuple[Planes, Planes, Planes]:
    """The left operand, the right operand and the result of the products over ``tiles`` tiles of each image; the
    operands' rows are summed over."""
    g = problem.g
    icg, ocg = problem.ic // g, problem.oc // g

    def data(tensor: str) -> tuple[Line, Line, int, int]:
        layout, count = TensorLayout.of(problem, tensor), icg if tensor == "x" else ocg
        images = Line(problem.mb * tiles, layout.image, tiles=tiles)
        channels = Line(count, layout.channel, count * layout.channel, channels=tensor == problem.written)
        return images, channels, *layout.axes[1:]

    def place(tensor: str, row: Line, slot: Line, down: int, right: int) -> Planes:
        # The pixels of a 1-D problem are one column.
        return Planes(tensor, row, slot, *((right, down) if problem.ndim == 1 else (down, right)))

    w = TensorLayout.of(problem, "w")
    w_oc, w_ic = Line(ocg, w.image, ocg * w.image), Line(icg, w.channel)
    x_images, x_channels, *x_steps = data("x")
    y_images, y_channels, *y_steps = data("y")
    if problem.direction == "fwd":
        left = place("w", w_ic, w_oc, *w.axes[1:])
        return left, place("x", x_channels, x_images, *x_steps), place("y", y_channels, y_images, *y_steps)
    if problem.direction == "bwd_data":
        left = place("w", w_oc, w_ic, *w.axes[1:])
        return left, place("y", y_channels, y_images, *y_steps), place("x", x_channels, x_images, *x_steps)
    left = place("y", y_images, y_channels, *y_steps)
    return left, place("x", x_images, x_channels, *x_steps), place("w", w_oc, w_ic, *w.axes[1:])
