"""Converts a problem to a geometry over channels-last planes: the header's, or one of two that suit few channels.

A *stacked* geometry is the data gradient in one phase, whose channels are the channels of all phases: first layers have
few channels, and tensor cores are fast at wide products. Weights of taps that a phase lacks are zeros.

A *folded* geometry reads a source whose taps along w became channels when it was packed: first layers have few
channels, and tensor cores multiply eight at a time.

Triples of numbers are along (d, h, w).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass

from ...api.geometry import Phase, geometry_of
from ...api.problem import ConvProblem

__all__ = ["Phase", "ProductGeometry", "SourceWindow", "along", "chunks", "product_geometry", "window"]

Triple = tuple[int, int, int]
MIN_UNFOLDED_CHANNELS = 8
"""If a group has fewer channels than this, the taps along w become channels."""


def along(problem: ConvProblem, letter: str) -> Triple:
    """A problem's numbers along the three axes."""
    return tuple(getattr(problem, letter + axis) for axis in "dhw")


def chunks(channels: int) -> int:
    """Groups of eight 16-bit channels, 16 bytes each, that hold ``channels``."""
    return -(-channels // 8)


@dataclass(frozen=True)
class ProductGeometry:
    """A convolution over channels-last planes: its source is x, or dy for the data gradient; its target is written.

    In the weights' gradient, which reads x and dy, the target is dy.
    """

    images: int
    groups: int
    c: int
    """Source channels of a group (after folding)."""
    m: int
    """Target channels of a group."""
    source: Triple
    """Pixels of the packed source along each axis."""
    target: Triple
    step: Triple
    spread: Triple
    out_step: Triple
    tap_step: Triple
    """Kernel taps from one tap of a phase to the next, along each axis."""
    kernel: Triple
    phases: tuple[Phase, ...]
    fold: bool
    stacked: Triple | None = None
    """Phases along each axis that are channels: m is phases times channels, phases slowest."""

    @property
    def c8(self) -> int:
        """Chunks of eight source channels."""
        return chunks(self.c)

    @property
    def most_places(self) -> int:
        """Output pixels of all images in the largest phase."""
        return self.images * max(phase.places for phase in self.phases)

    @functools.cached_property
    def guarded(self) -> tuple[bool, ...]:
        """Axes along which a phase reads outside the source."""
        return tuple(not self._inside(axis) for axis in range(3))

    @functools.cached_property
    def first_reads(self) -> tuple[range, ...]:
        """Along each axis the source pixels between the first and the last tap of any phase for output pixel 0."""
        spans = []
        for axis in range(3):
            reaches = [(p.origin[axis], (p.taps[axis] - 1) * self.spread[axis]) for p in self.phases if p.volume]
            ends = [origin + end for origin, reach in reaches for end in (0, reach)]
            spans.append(range(min(ends), max(ends) + 1) if ends else range(0))
        return tuple(spans)

    def _inside(self, axis: int) -> bool:
        reads = [phase.reads(axis, self.step[axis], self.spread[axis]) for phase in self.phases]
        return all(read.start >= 0 and read.stop <= self.source[axis] for read in reads)


@functools.lru_cache(maxsize=1024)
def product_geometry(problem: ConvProblem, stacked: bool = False) -> ProductGeometry:
    """The geometry of ``problem``'s direction; ``stacked`` asks for the data gradient in one phase."""
    plain = geometry_of(problem)
    result = ProductGeometry(plain.images, plain.groups, plain.c, plain.m, plain.source.size, plain.target.size,
                  plain.step, plain.spread, plain.out_step, plain.tap_step, plain.kernel,
                  plain.phases, False)  # fmt: skip
    if problem.direction == "bwd_data":
        return _stack(problem, result) if stacked else result
    return _fold(result) if plain.kernel[2] > 1 and plain.c < MIN_UNFOLDED_CHANNELS else result


def _stack(problem: ConvProblem, phased: ProductGeometry) -> ProductGeometry:
    """The data gradient in one phase."""
    stride, ones = phased.out_step, (1, 1, 1)
    parts = tuple(map(min, phased.target, stride))
    ranges = [_offsets(*of_axis) for of_axis in zip(parts, stride, *(along(problem, letter) for letter in "dpk"))]
    lowest, taps = zip(*((low, high - low + 1) for low, high in ranges))
    count = tuple(-(-size // s) for size, s in zip(phased.target, stride))
    phase = Phase((0, 0, 0), count, taps, (0, 0, 0), lowest)
    m = phased.m * math.prod(parts)
    return dataclasses.replace(phased, m=m, spread=ones, tap_step=ones, phases=(phase,), stacked=parts)


def _fold(geo: ProductGeometry) -> ProductGeometry:
    """The geometry with taps along w as channels: the packed source's pixels along w are the output's."""
    (phase,) = geo.phases
    kernel = (*geo.kernel[:2], 1)
    return dataclasses.replace(
        geo,
        c=geo.c * geo.kernel[2],
        source=(*geo.source[:2], geo.target[2]),
        step=(*geo.step[:2], 1),
        spread=(*geo.spread[:2], 1),
        kernel=kernel,
        phases=(dataclasses.replace(phase, taps=kernel, origin=(*phase.origin[:2], 0)),),
        fold=True,
    )


@dataclass(frozen=True)
class SourceWindow:
    """The padded source as one row of positions, so that a tap is a shift: with stride 1, output p reads p + shift.

    The zeros at the end of a row are those before the next one, so a row is the source's plus the larger pad, and never
    shorter than the target's.
    """

    images: int
    near: Triple
    size: Triple
    """Positions of the padded source along each axis."""
    shifts: tuple[int, ...]
    """The shift in positions of each tap, in the order of taps."""

    @property
    def image(self) -> int:
        """Positions of an image."""
        return math.prod(self.size)

    @property
    def places(self) -> int:
        """Positions of all images."""
        return self.images * self.image


@functools.lru_cache(maxsize=1024)
def window(geo: ProductGeometry) -> SourceWindow | None:
    """The window of a geometry with steps of 1 and several taps; None for others."""
    if len(geo.phases) != 1 or geo.step != (1, 1, 1) or geo.phases[0].volume < 2:
        return None
    if geo.out_step != (1, 1, 1) and not geo.stacked:
        return None
    phase = geo.phases[0]
    pads, size, offsets = [], [], []
    for origin, spread, taps, count, pixels in zip(phase.origin, geo.spread, phase.taps, phase.count, geo.source):
        reads = [origin + tap * spread for tap in range(taps)]
        pad = max(0, -min(reads))
        pads.append(pad)
        size.append(max(pixels + max(pad, max(reads) + count - pixels), count))
        offsets.append([read + pad for read in reads])
    strides = (size[1] * size[2], size[2], 1)
    shifts = [sum(o * s for o, s in zip(tap_offsets, strides)) for tap_offsets in itertools.product(*offsets)]
    return SourceWindow(geo.images, tuple(pads), tuple(size), tuple(shifts))


def _offsets(parts: int, s: int, d: int, p: int, k: int) -> tuple[int, int]:
    """The least and the greatest offset, in positions, that any pixel (phase) of a position reads along one axis."""
    reads = [(f + p - t * d) // s for f in range(parts) for t in range(k) if (f + p - t * d) % s == 0]
    return (min(reads), max(reads)) if reads else (0, 0)
