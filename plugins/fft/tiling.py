"""Overlap-save: cuts a convolution of stride 1 into tiles whose transforms multiply.

With a tile of n source elements, whose first is ``tile * step - pad``, and the kernel at its dilated positions,

    target[tile * step + j] = inverse(sum over c of forward(tile) * conj(forward(kernel)))[j],  0 <= j < step

holds for ``step = n - extent + 1``: the other elements of the circular sum are wrapped and are dropped (overlap-save,
Oppenheim and Schafer). All directions have this form. The data gradient's source is dy, its kernel is flipped
and its pad is ``extent - 1 - pad``. The weights' gradient cuts x into such tiles and dy into tiles of ``step`` elements
without overlap, followed by zeros; it multiplies x by conj(dy), sums also over images and tiles, and keeps the elements
``tap * dilation``. Using the inverse codelet as the kernel's or dy's forward transform gives the conjugate.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from .transforms import half

MIN_IEEE_SUM = 20
"""Least number of summed products in math mode "ieee": with fewer, errors reach 1.16 times what the mode allows."""
_AXES = "dhw"


@dataclass(unsafe_hash=True)
class AxisTiling:
    """The tiling along one axis. For a kernel of one tap ``n`` is 1: no transform, and every element is a tile."""

    n: int
    """Points of the transform along this axis."""
    places: int
    """Elements that the tiles cover: of the target, or of dy for the weights' gradient."""
    source: int
    """Elements of the source: x, or dy for the data gradient."""
    pad: int
    """Zeros before the source; below 0: elements skipped."""
    taps: int
    dilation: int
    flipped: bool
    """Tap t of the kernel is at ``(taps - 1 - t) * dilation``."""

    def __post_init__(self) -> None:
        self.extent = (self.taps - 1) * self.dilation + 1
        """Elements that the dilated kernel spans along the axis."""
        self.step = self.n - self.extent + 1
        """Elements from the beginning of a tile to that of the next tile."""

    @property
    def tiles(self) -> int:
        """Number of tiles along the axis."""
        return -(-self.places // self.step)

    @property
    def positions(self) -> tuple[int, ...]:
        """Points of the transform at which the taps are, in the order of w."""
        offsets = range(0, self.extent, self.dilation)
        return tuple(reversed(offsets)) if self.flipped else tuple(offsets)


@dataclass(unsafe_hash=True)
class Tiling:
    """The tiles of a problem along (d, h, w).

    The axis ``half_axis`` is transformed first, from real to half a spectrum, and last by the inverse. A tile and
    channel has ``frequencies`` complex elements.
    """

    direction: str
    axes: tuple[AxisTiling, AxisTiling, AxisTiling]
    images: int
    groups: int
    ic: int
    """Input channels per group."""
    oc: int
    """Output channels per group."""

    def __post_init__(self) -> None:
        self.half_axis = max(axis for axis in range(3) if self.axes[axis].n > 1)
        """The innermost axis that is transformed."""
        self.sizes = tuple(axis.n for axis in self.axes)
        """Points of the transform along d, h, w."""
        self.spectrum = tuple(half(n) if axis == self.half_axis else n for axis, n in enumerate(self.sizes))
        """Frequencies along d, h, w."""
        self.frequencies = math.prod(self.spectrum)
        """Complex elements of one tile's spectrum."""
        self.tiles = math.prod(axis.tiles for axis in self.axes)
        """Number of tiles in an image."""

    @property
    def scale(self) -> float:
        """The factor by which the products are multiplied, because the codelets are not normalized."""
        gain = 1.0
        for axis, n in enumerate(self.sizes):
            gain *= n / 2 if axis == self.half_axis else n
        return 1.0 / gain

    @property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """The elements along each axis that the inverse transform must give."""
        if self.direction == "bwd_weights":
            return tuple(axis.positions for axis in self.axes)
        return tuple(tuple(range(axis.step)) for axis in self.axes)


def unsuited(problem: ConvProblem) -> str | None:
    """Return the reason why a problem cannot be cut into tiles; None when it can."""
    strides = tuple(getattr(problem, "s" + axis) for axis in problem.axes)
    if set(strides) != {1}:
        return "stride 1 only, got " + "x".join(map(str, strides))
    kernel = tuple(getattr(problem, "k" + axis) for axis in problem.axes)
    if set(kernel) == {1}:
        return "more than one tap only, got " + "x".join(map(str, kernel))
    if problem.math == "ieee" and (length := _summands(problem)) < MIN_IEEE_SUM:
        return f"sums of {MIN_IEEE_SUM} products or more for math='ieee', got {length}"
    return None


def _summands(problem: ConvProblem) -> int:
    """Return the number of products that one output element sums."""
    if problem.direction == "bwd_weights":
        return problem.mb * problem.od * problem.oh * problem.ow
    channels = problem.ic if problem.direction == "fwd" else problem.oc
    return channels // problem.g * problem.kd * problem.kh * problem.kw


@functools.lru_cache(maxsize=512)
def axis_tiling(problem: ConvProblem, axis: str, n: int) -> AxisTiling:
    """Return the tiling of one axis of ``problem`` with transforms of ``n`` points."""
    inputs, outputs, taps, pad, dilation = (getattr(problem, letter + axis) for letter in "iokpd")
    if problem.direction == "bwd_data":
        return AxisTiling(n, inputs, outputs, (taps - 1) * dilation - pad, taps, dilation, True)
    return AxisTiling(n, outputs, inputs, pad, taps, dilation, False)


@functools.lru_cache(maxsize=2048)
def tiling(problem: ConvProblem, sizes: tuple[int, ...]) -> Tiling:
    """The tiling of ``problem`` with transforms of ``sizes`` points along d, h, w; 1 along axes of one tap."""
    axes = [axis_tiling(problem, axis, n) for axis, n in zip(_AXES, sizes, strict=True)]
    for name, axis in zip(_AXES, axes, strict=True):
        if axis.n < axis.extent:
            raise ValueError(f"along {name} the kernel spans {axis.extent} elements, the transform has {axis.n}")
    g = problem.g
    return Tiling(problem.direction, tuple(axes), problem.mb, g, problem.ic // g, problem.oc // g)


def tilings(problem: ConvProblem, sizes: Iterable[int]) -> Iterator[Tiling]:
    """Tilings whose transforms along each axis have one of ``sizes`` points.

    Of transforms with the same number of tiles along an axis only the shortest is used; none along an axis of one tap.
    """
    choices = []
    for axis in _AXES:
        sizes_by_tiles: dict[int, int] = {}
        for n in [1] if getattr(problem, "k" + axis) == 1 else sorted(set(sizes)):
            tiled = axis_tiling(problem, axis, n)
            if tiled.step >= 1:
                sizes_by_tiles.setdefault(tiled.tiles, n)
        choices.append(sorted(sizes_by_tiles.values()))
    for combination in itertools.product(*choices):
        if max(combination) > 1:
            yield tiling(problem, combination)
