"""The sliding window of a lowering: which element of the source is at which index of the lowered matrix.

``L[k, i] = source[image, channel, position]`` with ``position = i * step + tap * spread - pad`` along each axis, zero
outside the source. The forward product and the weights' gradient slide over x. The data gradient of a convolution of
stride 1 is a forward product over dy with the taps flipped: step 1, spread ``-d``, pad ``-p``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from convdispatch.api import DTYPES, Axis, ConvProblem, Matrix, define, storage_macros

_AXES = "dhw"


@dataclass(frozen=True)
class Runs:
    """Cuts ``repeats`` consecutive stretches of ``total`` window positions into runs of ``size``, a shorter one last.

    A problem may have billions of positions, so no property here iterates over them.
    """

    repeats: int
    total: int
    size: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (start, count) of each run."""
        for stretch in range(self.repeats):
            for start in range(0, self.total, self.size):
                yield stretch * self.total + start, min(self.size, self.total - start)

    @property
    def count(self) -> int:
        """Number of runs."""
        return self.repeats * -(-self.total // self.size)

    @property
    def largest(self) -> int:
        """Window positions in the first run, which is the largest."""
        return min(self.size, self.total)

    @property
    def sizes(self) -> Counter[int]:
        """Number of runs of each length, the longest first."""
        full_runs, rest = divmod(self.total, self.size)
        return +Counter({self.size: self.repeats * full_runs, rest: self.repeats * (rest > 0)})


@dataclass(unsafe_hash=True)
class PatchWindow:
    """The sliding window of a convolution over its source tensor; triples are along (d, h, w)."""

    images: int
    channels: int
    """Channels of the source, over all groups."""
    targets: int
    """Channels of the tensor on the other side of the product."""
    groups: int
    source: tuple[int, ...]
    positions: tuple[int, ...]
    """Positions of the window along each axis: the size of the tensor on the other side of the product."""
    taps: tuple[int, ...]
    step: tuple[int, ...]
    spread: tuple[int, ...]
    pad: tuple[int, ...]
    nhwc: bool
    dtype: str

    def __post_init__(self) -> None:
        self.group_channels, self.group_targets = self.channels // self.groups, self.targets // self.groups
        """Channels per group of the source, and of the tensor on the other side of the product."""
        self.volume, self.pixels = math.prod(self.taps), math.prod(self.positions)
        """Taps of the kernel, and positions of the window in one image."""
        self.k = self.group_channels * self.volume
        """Rows of the lowered matrix: channels of a group times taps."""
        self.accumulator_size = DTYPES[self.dtype].accumulator_size
        """Bytes of one accumulator."""

    @classmethod
    def of(cls, problem: ConvProblem, flipped: bool = False) -> PatchWindow:
        """The window over x, or over dy with the taps flipped (stride 1 only)."""

        def along(letter: str) -> tuple[int, ...]:
            return tuple(getattr(problem, letter + axis) for axis in _AXES)

        sides = (problem.mb, problem.ic, problem.oc, problem.g, along("i"), along("o"), along("k"))
        layout_and_dtype = (problem.layout == "nhwc", problem.dtype)
        if not flipped:
            return cls(*sides, along("s"), along("d"), along("p"), *layout_and_dtype)
        images, ic, oc, groups, inputs, outputs, taps = sides
        spread, pad = tuple(-d for d in along("d")), tuple(-p for p in along("p"))
        return cls(images, oc, ic, groups, outputs, inputs, taps, (1, 1, 1), spread, pad, *layout_and_dtype)

    def inside(self, axis: int) -> bool:
        """Whether the window stays inside the source along an axis (0: d, 1: h, 2: w)."""
        reach = (self.taps[axis] - 1) * self.spread[axis]
        lowest = min(0, reach) - self.pad[axis]
        highest = max(0, reach) - self.pad[axis] + (self.positions[axis] - 1) * self.step[axis]
        return lowest >= 0 and highest < self.source[axis]

    def weights(self, flipped: bool) -> Matrix:
        """The weights as the product's left operand ``[target, k]``, in the order of k that the layout lowers to.

        k is (channel, tap) for NCHW and (tap, channel) for NHWC, which is the weights' own order unless flipped.
        """
        if not flipped:
            return Matrix(Axis(self.k), Axis(1), Axis(self.group_targets * self.k))
        inner, batch = self.group_targets, Axis(self.group_targets * self.k)
        if self.nhwc:
            return Matrix(Axis(1), Axis(self.volume * inner, inner=self.group_channels, outer=inner), batch)
        return Matrix(Axis(self.volume), Axis(1, inner=self.volume, outer=inner * self.volume), batch)

    def tensor(self, channels: int) -> Matrix:
        """Return a tensor over the window's positions as ``[channel, (image, position)]``, batched by group."""
        group = channels // self.groups
        if self.nhwc:
            return Matrix(Axis(1), Axis(channels), Axis(group))
        return Matrix(Axis(self.pixels), Axis(1, self.pixels, channels * self.pixels), Axis(group * self.pixels))

    def offset(self, channels: int, start: int) -> int:
        """Return the element offset in a tensor of ``channels`` of position ``start``, counted through the images."""
        if self.nhwc:
            return start * channels
        return start // self.pixels * channels * self.pixels + start % self.pixels

    def chunks(self, most: int) -> Runs:
        """Cut all window positions into nearly equal runs (start, count) of at most about ``most``.

        NCHW's runs are whole images or lie in one image, so that a run's tensor elements have one formula.
        """
        total = self.images * self.pixels
        if self.nhwc or self.images == 1:
            return runs(total, most, 64)
        if most >= self.pixels:
            return runs(total, most // self.pixels * self.pixels, self.pixels)
        return runs(self.pixels, most, 64, repeats=self.images)

    def aligned(self, channels: int, chunks: Runs) -> bool:
        """Whether every chunk begins at a multiple of four elements in a tensor of ``channels``.

        A chunk's offset is a multiple of a stretch's offset plus a multiple of a chunk's offset.
        """
        steps = [chunks.total] * (chunks.repeats > 1) + [chunks.size] * (chunks.size < chunks.total)
        return not any(self.offset(channels, step) % 4 for step in steps)

    def macros(self, narrow_stored: bool = False) -> str:
        """The window as OpenCL macros, with SRC and DST (element types) and GET(p, i), which converts SRC to DST.

        ``narrow_stored``: the lowered matrix stores the source's 16-bit elements; otherwise elements of the sums' type.
        """
        text = storage_macros(self.dtype)
        for prefix, triple in (
            ("X", self.source), ("Y", self.positions), ("T", self.taps), ("S", self.step), ("D", self.spread),
            ("P", self.pad),
        ):  # fmt: skip
            text += define(**{prefix + axis.upper(): f"({value})" for axis, value in zip(_AXES, triple, strict=True)})
        text += define(C=self.channels, CG=self.group_channels, G=self.groups, K=self.k, TAPS=self.volume)
        narrow = DTYPES[self.dtype].widened
        if narrow and not narrow_stored:
            return text + define(SRC="REAL", DST="ACC", SAME=0) + "#define GET(p, i) LOAD(p, i)\n"
        kind = "ushort" if narrow else DTYPES[self.dtype].storage
        return text + define(SRC=kind, DST=kind, SAME=1) + "#define GET(p, i) ((p)[i])\n"


def runs(total: int, most: int, unit: int = 1, repeats: int = 1) -> Runs:
    """Cut ``total`` window positions into nearly equal runs of at most ``most``, multiples of ``unit`` but the last."""
    most = max(unit, most // unit * unit)
    per_run = -(-total // -(-total // most))
    return Runs(repeats, total, -(-per_run // unit) * unit)
