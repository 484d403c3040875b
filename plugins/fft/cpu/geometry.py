"""Where spectra lie in the workspace, in which pieces a call runs, how many bytes that takes: all without compiling.

A spectrum's elements are vectors of LANES channels, real part before imaginary part, ordered

    [frequency][group][block of LANES channels][row][real, imaginary][lane]

with one row a tile of an image, or a summed channel of the kernel. One frequency's panels of the product are thus
neighbours, and its scalars and vectors lie in the order in which they are read. The distance between frequencies is an
odd number of vector pairs: a power of two would put a tile's spectrum into a few ways of the caches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch.api import Areas, ConvProblem
from convdispatch.api.cpu import PAGE

from ..tiling import Tiling, tiling
from ..transforms import half


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Piece:
    """What one round of forward transforms, products and inverse transforms covers, in the plan's order."""

    group: int
    groups: int
    block: int
    """First block of the divided channels: the target's, or oc for the weights' gradient."""
    blocks: int
    row: int
    rows: int
    kernel: bool
    """The kernel's transform (fwd, bwd_data) or the sums' first round (bwd_weights) belongs to this piece."""
    source: bool
    """The source's spectrum is not there yet."""
    last: bool
    """The weights' gradient is complete after this piece."""


class Geometry:
    """One configuration of one problem: ``tile`` (sizes of the transform), ``lanes``, and how much a piece holds.

    ``groups``, ``blocks`` (of the divided channels) and ``rows`` say how much of the work one piece takes.
    """

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.tiling: Tiling = tiling(problem, config["tile"])
        t = self.tiling
        self.lanes = config["lanes"]
        self.weights_gradient = problem.direction == "bwd_weights"
        # Channels: c of the source, n of the product's vectors, and d that is divided into pieces.
        self.c, self.n = (t.oc, t.ic) if problem.direction == "bwd_data" else (t.ic, t.oc)
        if self.weights_gradient:
            self.c, self.n = t.ic, t.ic
        self.d = t.oc if self.weights_gradient else self.n
        # Of the weights' gradient the vectors run along oc where ic would leave more of them empty.
        narrow = ceil(t.ic, 4) * 4 * ceil(t.oc, self.lanes) < ceil(t.oc, 4) * 4 * ceil(t.ic, self.lanes)
        self.along_oc = self.weights_gradient and narrow
        self.all_rows = t.images * t.tiles
        # Few target channels: the kernel's vectors run along the summed ones instead.
        self.along_c = not self.weights_gradient and self.n <= 4 and self.c % self.lanes == 0
        self.groups = min(config["groups"], t.groups)
        self.rows = min(config["rows"], self.all_rows)
        self.blocks = min(config["blocks"], ceil(self.d, self.lanes))
        self.held = problem.constant_weights and not self.weights_gradient

    # --- transforms --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """Axes that are transformed: the real one first, then the others from the innermost on."""
        first = self.tiling.half_axis
        return (first, *(axis for axis in (2, 1, 0) if axis != first and self.tiling.sizes[axis] > 1))

    @property
    def edges(self) -> tuple[int, ...]:
        """Frequencies of the real axis whose spectrum along the second axis is that of real values: half suffices.

        Used where two axes are transformed.
        """
        n = self.tiling.sizes[self.order[0]]
        return () if len(self.order) != 2 else (0, n // 2) if n % 2 == 0 else (0,)

    @property
    def taken_out(self) -> tuple[float, float]:
        """Powers of two by which x's spectra are multiplied, and what the inverse's first pass gives.

        Transforms make numbers larger by the root of their points; so no sum of a weights' gradient overflows much
        before the result does. The other directions have the whole scale in the kernel's spectra.
        """
        if not self.weights_gradient:
            return 1.0, 1.0
        sizes = self.tiling.sizes
        first = sizes[self.order[-1]] if len(self.order) > 1 else 1
        return 2.0 ** -((math.prod(sizes).bit_length() - 1) // 2), 2.0 ** -(first.bit_length() - 1)

    def column(self, k: int) -> int:
        """Place of the first frequency of those whose frequency along the real axis is ``k``."""
        if not self.edges:
            return k * self.tiling.frequencies // half(self.tiling.sizes[self.order[0]])
        if k in self.edges:
            return self.edges.index(k) * half(self.tiling.sizes[self.order[1]])
        return len(self.edges) * half(self.tiling.sizes[self.order[1]]) + (k - 1) * self.tiling.sizes[self.order[1]]

    @functools.cached_property
    def frequencies(self) -> int:
        """Complex elements of a tile's spectrum: what follows by symmetry is left out where two axes transform."""
        saved = len(self.edges)
        if not saved:
            return self.tiling.frequencies
        n = self.tiling.sizes[self.order[1]]
        return self.tiling.frequencies - saved * (n - half(n))

    # --- panels, in elements (floats) --------------------------------------------------------------------------------

    def _stride(self, groups: int, blocks: int, rows: int) -> int:
        return (groups * blocks * rows | 1) * 2 * self.lanes

    @property
    def source_blocks(self) -> int:
        """Blocks of the source's channels."""
        return ceil(self.c, self.lanes)

    @property
    def source_stride(self) -> int:
        """From frequency to frequency of the source's spectrum."""
        return self._stride(self.groups, self.source_blocks, self.rows)

    @property
    def second_stride(self) -> int:
        """The same of dy's spectrum, in the weights' gradient."""
        return self._stride(self.groups, self.blocks, self.rows)

    @property
    def kernel_groups(self) -> int:
        """Groups whose kernels' spectra are held at a time: all where the weights are constant."""
        return self.tiling.groups if self.held else self.groups

    @property
    def kernel_blocks(self) -> int:
        """Blocks of the target's channels that are held at a time; of the summed ones where vectors run along these."""
        if self.along_c:
            return self.source_blocks
        return ceil(self.n, self.lanes) if self.held else self.blocks

    @property
    def kernel_stride(self) -> int:
        """The same of the kernel's spectrum."""
        return self._stride(self.kernel_groups, self.kernel_blocks, self.kernel_rows)

    @property
    def kernel_rows(self) -> int:
        """Rows of the kernel's spectrum: the channels that its vectors do not run along."""
        return self.n if self.along_c else self.c

    @property
    def result_blocks(self) -> int:
        """Blocks of the result's vectors."""
        return ceil(self.n, self.lanes) if self.weights_gradient and not self.along_oc else self.blocks

    @property
    def result_rows(self) -> int:
        """Rows of the result: tiles, or channels for the weights' gradient: ic, or oc of the piece."""
        if self.along_oc:
            return ceil(self.c, 4) * 4
        return min(self.blocks * self.lanes, ceil(self.d, 4) * 4) if self.weights_gradient else self.rows

    @property
    def result_stride(self) -> int:
        """The same of the result's spectrum."""
        return self._stride(self.groups, self.result_blocks, self.result_rows)

    # --- slots: one tile between two axes' passes --------------------------------------------------------------------

    def lines(self, counts: tuple[int, ...]) -> int:
        """Elements (vector pairs) from one frequency of the real axis to the next in a slot: odd, as above.

        ``counts``: how many elements along d, h, w come from, or go to, the tile.
        """
        if len(self.order) < 2:
            return 1
        second, *third = self.order[1:]
        if not third:
            return counts[second] | 1
        return (self.tiling.sizes[second] * counts[third[0]]) | 1

    def slot(self, counts: tuple[int, ...]) -> int:
        """Floats of one slot, which is local memory."""
        if len(self.order) < 2:
            return 0
        return half(self.tiling.sizes[self.order[0]]) * self.lines(counts) * 2 * self.lanes

    @property
    def whole(self) -> tuple[int, ...]:
        """Elements along d, h, w that a tile of the source gives."""
        return self.tiling.sizes

    @property
    def spans(self) -> tuple[int, ...]:
        """Elements along d, h, w that the kernel gives."""
        return tuple(axis.extent for axis in self.tiling.axes)

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements along d, h, w that a tile of dy gives, or a tile of the target keeps."""
        return tuple(axis.step for axis in self.tiling.axes)

    @property
    def taps(self) -> tuple[int, ...]:
        """Elements along d, h, w that the weights' gradient keeps."""
        return tuple(axis.taps for axis in self.tiling.axes)

    # --- the workspace -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def areas(self) -> dict[str, int]:
        """Byte offsets of the workspace's areas, and their sum as ``size``."""
        areas, f = Areas(PAGE), 4 * self.frequencies
        found = {"source": areas.add(f * self.source_stride), "result": areas.add(f * self.result_stride)}
        if self.weights_gradient:
            found["second"] = areas.add(f * self.second_stride)
        elif not self.held:
            found["kernel"] = areas.add(f * self.kernel_stride)
        found["size"] = areas.size
        return found

    @property
    def packed_size(self) -> int:
        """Bytes of a constant kernel's spectrum."""
        return 4 * self.frequencies * self.kernel_stride

    # --- pieces ------------------------------------------------------------------------------------------------------

    def pieces(self) -> Iterator[Piece]:
        """The rounds of a call, in order."""
        blocks, t = ceil(self.d, self.lanes), self.tiling
        held = False
        for group in range(0, t.groups, self.groups):
            groups = min(self.groups, t.groups - group)
            held = False
            for block in range(0, blocks, self.blocks):
                for row in range(0, self.all_rows, self.rows):
                    yield Piece(
                        group=group,
                        groups=groups,
                        block=block,
                        blocks=min(self.blocks, blocks - block),
                        row=row,
                        rows=min(self.rows, self.all_rows - row),
                        kernel=row == 0,
                        source=not (held and self.rows == self.all_rows),
                        last=row + self.rows >= self.all_rows,
                    )
                    held = True

    @property
    def rounds(self) -> int:
        """How many pieces there are."""
        return math.prod(
            ceil(a, b)
            for a, b in (
                (self.tiling.groups, self.groups),
                (ceil(self.d, self.lanes), self.blocks),
                (self.all_rows, self.rows),
            )
        )
