"""Planes: a tensor as a matrix of tiles, as the products over channels see it; pure."""

from __future__ import annotations

from dataclasses import dataclass

from convdispatch.api import ConvProblem, TensorLayout

from .geometry import Transform


@dataclass(frozen=True)
class Line:
    """One axis of a matrix of spectra: what its index counts, and how far apart the tiles' planes lie in the tensor."""

    total: int
    """Indices of a group."""
    stride: int
    """Elements between neighbours."""
    group: int = 0
    """Elements between two groups' first ones."""
    tiles: int = 0
    """Above 0: the index counts tiles, so many an image."""
    channels: bool = False
    """Whether the index counts channels of the written tensor."""


@dataclass(frozen=True)
class Planes:
    """A tensor seen as a matrix of tiles, (row, slot), in each group."""

    tensor: str
    row: Line
    slot: Line
    column_stride: int
    """Elements between neighbours in a column of pixels."""
    row_stride: int


def planes(problem: ConvProblem, transform: Transform) -> tuple[Planes, Planes, Planes]:
    """The left operand, the right one and the result of the products over channels; rows of operands are summed."""
    g, tiles = problem.g, transform.tiles
    icg, ocg = problem.ic // g, problem.oc // g

    def data(tensor: str) -> tuple[Line, Line, int, int]:
        layout, per = TensorLayout.of(problem, tensor), icg if tensor == "x" else ocg
        images = Line(problem.mb * tiles, layout.image, tiles=tiles)
        channels = Line(per, layout.channel, per * layout.channel, channels=tensor == problem.written)
        return images, channels, *layout.axes[1:]

    def place(tensor: str, row: Line, slot: Line, down: int, right: int) -> Planes:
        # A 1-D problem's pixels stand in a column.
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
