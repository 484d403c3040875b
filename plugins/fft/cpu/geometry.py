"""The layout of spectra in the workspace, and the pieces in which a call runs; nothing is compiled here.

A spectrum's elements are vectors of LANES channels, real part before imaginary part, ordered

    [frequency][group][block of LANES channels][row][real, imaginary][lane]

where a row is a tile of an image, or a summed channel of the kernel. The product's operands of one frequency are thus
contiguous and in the order in which they are read. The stride between frequencies is an odd number of vector pairs:
with a power of two a tile's spectrum would compete for a few sets of the caches.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch.api import Areas, ConvProblem
from convdispatch.api.cpu import PAGE
from convdispatch.api.cpu import cdiv as ceil

from ..tiling import Tiling, tiling
from ..transforms import half


@dataclass(frozen=True)
class Piece:
    """The part of the work that one round of forward transforms, products and inverse transforms computes."""

    group: int
    groups: int
    block: int
    """First block of the divided channels: the target's, or oc for the weights' gradient."""
    blocks: int
    row: int
    rows: int
    kernel: bool
    """Whether this piece transforms the kernel."""
    source: bool
    """Whether this piece transforms the source."""
    last: bool
    """Whether the weights' gradient is complete after this piece."""


class Geometry:
    """The sizes of one problem under one configuration: ``tile`` (sizes of the transform), ``lanes``, size of a piece.

    ``groups``, ``blocks`` (of the divided channels) and ``rows`` say how much of the work one piece takes.
    """

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem = problem
        self.tiling: Tiling = tiling(problem, tuple(config["tile"]))
        t = self.tiling
        self.lanes = config["lanes"]
        self.weights_gradient = problem.direction == "bwd_weights"
        # Numbers of channels: ``c`` of the source, ``n`` of the product's vectors, and ``d``, which is divided into
        # pieces.
        self.c, self.n = (t.oc, t.ic) if problem.direction == "bwd_data" else (t.ic, t.oc)
        if self.weights_gradient:
            self.c, self.n = t.ic, t.ic
        self.d = t.oc if self.weights_gradient else self.n
        # The vectors of the weights' gradient run along oc where vectors along ic would have more empty lanes.
        oc_fills_better = ceil(t.ic, 4) * 4 * ceil(t.oc, self.lanes) < ceil(t.oc, 4) * 4 * ceil(t.ic, self.lanes)
        self.along_oc = self.weights_gradient and oc_fills_better
        self.all_rows = t.images * t.tiles
        # With few target channels, the vectors of the kernel's spectrum run along the summed channels instead.
        self.along_c = not self.weights_gradient and self.n <= 4 and self.c % self.lanes == 0
        self.constant_kernel = problem.constant_weights and not self.weights_gradient
        real_axis = t.half_axis
        self.order = (real_axis, *(axis for axis in (2, 1, 0) if axis != real_axis and t.sizes[axis] > 1))
        """Axes that are transformed: the real one first, then the others from the innermost on."""
        n = t.sizes[real_axis]
        self.edges = () if len(self.order) != 2 else (0, n // 2) if n % 2 == 0 else (0,)
        """If two axes are transformed: frequencies of the real axis whose spectrum along the second axis is that of
        real values, so that half of it suffices."""
        second_size = t.sizes[self.order[1]] if self.edges else 0
        self.frequencies = t.frequencies - len(self.edges) * (second_size - half(second_size) if self.edges else 0)
        """Complex elements of a tile's spectrum, without those that follow by symmetry."""

        self.source_blocks = ceil(self.c, self.lanes)
        """Blocks of the source's channels."""
        # The attributes below are numbers of elements along (d, h, w).
        self.whole = t.sizes
        """Elements of a tile of the source along (d, h, w)."""
        self.spans = tuple(axis.extent for axis in t.axes)
        """Elements that the dilated kernel spans along (d, h, w)."""
        self.steps = tuple(axis.step for axis in t.axes)
        """Elements along (d, h, w) of a tile of dy, or of a tile of the target that are written."""
        self.taps = tuple(axis.taps for axis in t.axes)
        """Elements of the weights' gradient along (d, h, w)."""
        self._divide(config)

    def divided(self, config: Mapping[str, Any]) -> Geometry:
        """The geometry with pieces of another size, for a configuration that differs in nothing else."""
        geometry = copy.copy(self)
        geometry.__dict__.pop("areas", None)
        geometry._divide(config)
        return geometry

    def _divide(self, config: Mapping[str, Any]) -> None:
        """Compute the sizes of a piece's spectra: rows, blocks of vectors, and floats from frequency to frequency."""
        t, self.config = self.tiling, config
        self.groups = groups = min(config["groups"], t.groups)
        self.rows = min(config["rows"], self.all_rows)
        self.blocks = min(config["blocks"], ceil(self.d, self.lanes))
        self.kernel_groups = t.groups if self.constant_kernel else groups
        """Groups whose kernels' spectra are in memory at the same time: all if the weights are constant."""
        self.kernel_blocks = ceil(self.n, self.lanes) if self.constant_kernel else self.blocks
        """Blocks of target channels in memory at the same time; of summed channels if vectors run along those."""
        if self.along_c:
            self.kernel_blocks = self.source_blocks
        self.kernel_rows = self.n if self.along_c else self.c
        """Rows of the kernel's spectrum: the channels that its vectors do not run along."""
        self.result_blocks = self.blocks
        """Blocks of the result's vectors."""
        if self.weights_gradient and not self.along_oc:
            self.result_blocks = ceil(self.n, self.lanes)
        self.result_rows = self.rows
        """Rows of the result: tiles; for the weights' gradient input channels, or output channels of the piece."""
        if self.along_oc:
            self.result_rows = ceil(self.c, 4) * 4
        elif self.weights_gradient:
            self.result_rows = min(self.blocks * self.lanes, ceil(self.d, 4) * 4)
        self.source_stride = self._stride(groups, self.source_blocks, self.rows)
        self.second_stride = self._stride(groups, self.blocks, self.rows)
        """Floats from one frequency to the next in dy's spectrum, in the weights' gradient."""
        self.kernel_stride = self._stride(self.kernel_groups, self.kernel_blocks, self.kernel_rows)
        self.result_stride = self._stride(groups, self.result_blocks, self.result_rows)
        self.packed_size = 4 * self.frequencies * self.kernel_stride
        """Bytes of a constant kernel's spectrum."""

    def _stride(self, groups: int, blocks: int, rows: int) -> int:
        return (groups * blocks * rows | 1) * 2 * self.lanes

    @property
    def prescales(self) -> tuple[float, float]:
        """Powers of two by which x's spectra, and the results of the inverse's first pass, are multiplied.

        Transforms of n points make numbers sqrt(n) times as large; so no sum of a weights' gradient overflows much
        before the result does. In the other directions the kernel's spectra have the whole scale.
        """
        if not self.weights_gradient:
            return 1.0, 1.0
        sizes = self.tiling.sizes
        first_size = sizes[self.order[-1]] if len(self.order) > 1 else 1
        return 2.0 ** -((math.prod(sizes).bit_length() - 1) // 2), 2.0 ** -(first_size.bit_length() - 1)

    def column(self, k: int) -> int:
        """The index of the first stored frequency whose frequency along the real axis is ``k``."""
        if not self.edges:
            return k * self.tiling.frequencies // half(self.tiling.sizes[self.order[0]])
        second_size = self.tiling.sizes[self.order[1]]
        if k in self.edges:
            return self.edges.index(k) * half(second_size)
        return len(self.edges) * half(second_size) + (k - 1) * second_size

    def lines(self, counts: tuple[int, ...]) -> int:
        """Elements (vector pairs) from one frequency of the real axis to the next in a slot: an odd number.

        A slot is local memory for a tile between the transforms of two axes; ``counts`` of its elements are in use.
        """
        if len(self.order) < 2:
            return 1
        second_axis, *third = self.order[1:]
        if not third:
            return counts[second_axis] | 1
        return (self.tiling.sizes[second_axis] * counts[third[0]]) | 1

    def slot(self, counts: tuple[int, ...]) -> int:
        """Return the number of floats in one slot of local memory."""
        if len(self.order) < 2:
            return 0
        return half(self.tiling.sizes[self.order[0]]) * self.lines(counts) * 2 * self.lanes

    @functools.cached_property
    def areas(self) -> dict[str, int]:
        """Byte offsets of the workspace's areas, and their sum as ``size``."""
        areas, f = Areas(PAGE), 4 * self.frequencies
        offsets = {"source": areas.add(f * self.source_stride), "result": areas.add(f * self.result_stride)}
        if self.weights_gradient:
            offsets["second"] = areas.add(f * self.second_stride)
        elif not self.constant_kernel:
            offsets["kernel"] = areas.add(f * self.kernel_stride)
        offsets["size"] = areas.size
        return offsets

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of a call, in order."""
        blocks, t = ceil(self.d, self.lanes), self.tiling
        for group in range(0, t.groups, self.groups):
            groups, source_done = min(self.groups, t.groups - group), False
            for block, row in itertools.product(range(0, blocks, self.blocks), range(0, self.all_rows, self.rows)):
                piece_blocks, rows = min(self.blocks, blocks - block), min(self.rows, self.all_rows - row)
                source, completes = not (source_done and self.rows == self.all_rows), row + self.rows >= self.all_rows
                yield Piece(group, groups, block, piece_blocks, row, rows, row == 0, source, completes)
                source_done = True

    @property
    def rounds(self) -> int:
        """Number of pieces in a call."""
        blocks = ceil(ceil(self.d, self.lanes), self.blocks)
        return ceil(self.tiling.groups, self.groups) * blocks * ceil(self.all_rows, self.rows)
