"""A convolution as dense sums: the elements of a source that each pixel (place) of a target reads, and their strides.

Along each axis a place reads its source at ``place * step + origin + tap * spread``. Forward, and for the weights'
gradient, that is one phase over x. The data gradient of stride s has s phases an axis: the pixels ``f, f + s, ...``
of x are a dense convolution over dy with every s-th tap (fewer if the dilation shares a factor with the stride), so
that there are no products with zeros that the stride inserts:

    x[f + s q] = sum over t of w[k0 + t s'] dy[q + origin - t d'],   s' = s / gcd(s, d), d' = d / gcd(s, d)

Triples are along (d, h, w), unused axes with their size of 1; strides of tensors count elements.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from .problem import ConvProblem

Triple = tuple[int, int, int]
MOST_PHASES = 1024
"""The most phases of a problem for solvers that compute each phase separately: those of a stride of 32 by 32. Much
larger strides have millions of phases, most of them without a tap."""


@dataclass(frozen=True)
class TensorLayout:
    """Images of ``channels`` over pixels in contiguous memory, channels first or last (``nhwc``)."""

    channels: int
    size: tuple[int, ...]
    """The number of pixels along each axis, for as many axes as the caller has."""
    nhwc: bool

    @classmethod
    def of(cls, problem: ConvProblem, tensor: str) -> TensorLayout:
        """The layout of ``"x"``, ``"w"`` or ``"y"`` over all three axes; an image of w is one output channel's kernel.

        Raises KeyError for another name.
        """
        channels, letter = {
            "x": (problem.ic, "i"), "w": (problem.ic // problem.g, "k"), "y": (problem.oc, "o")
        }[tensor]  # fmt: skip
        return cls(channels, _along(problem, letter), problem.layout == "nhwc")

    @property
    def pixels(self) -> int:
        """The number of pixels of an image."""
        return math.prod(self.size)

    @property
    def image(self) -> int:
        """The stride from image to image, in elements."""
        return self.channels * self.pixels

    @property
    def channel(self) -> int:
        """The stride from channel to channel, in elements."""
        return 1 if self.nhwc else self.pixels

    @property
    def axes(self) -> tuple[int, ...]:
        """The strides from pixel to pixel along each axis, in elements."""
        unit = self.channels if self.nhwc else 1
        return tuple(math.prod(self.size[axis + 1 :]) * unit for axis in range(len(self.size)))


@dataclass(frozen=True)
class Phase:
    """One dense convolution: output place ``p`` is pixel ``first + p * out_step`` of the target."""

    first: Triple
    count: Triple
    """The number of output places along each axis."""
    taps: Triple
    """The number of kernel taps along each axis; a 0 means that no tap reaches these output places, whose sums are
    0."""
    tap0: Triple
    """The kernel's tap that is tap 0 of this phase."""
    origin: Triple
    """The source position that place 0 reads for tap 0, along each axis."""

    @property
    def places(self) -> int:
        """The number of output places of one image."""
        return math.prod(self.count)

    @property
    def volume(self) -> int:
        """The number of kernel taps of the phase."""
        return math.prod(self.taps)

    def reads(self, axis: int, step: int, spread: int) -> range:
        """The range of source positions that the phase reads along ``axis`` (0: d, 1: h, 2: w); empty without taps."""
        if not self.volume:
            return range(0)
        reach = (self.taps[axis] - 1) * spread
        lowest = self.origin[axis] + min(0, reach)
        return range(lowest, self.origin[axis] + max(0, reach) + (self.count[axis] - 1) * step + 1)


@dataclass(frozen=True)
class Geometry:
    """A problem's phases over its source: x for the forward product and the weights' gradient, dy for the data's."""

    images: int
    groups: int
    source: TensorLayout
    target: TensorLayout
    """The tensor whose pixels are the places: the output, or dy, which the weights' gradient reads."""
    step: Triple
    spread: Triple
    out_step: Triple
    tap_step: Triple
    """Kernel taps from one tap of a phase to the next."""
    kernel: Triple
    phases: tuple[Phase, ...]

    @property
    def c(self) -> int:
        """The number of source channels per group."""
        return self.source.channels // self.groups

    @property
    def m(self) -> int:
        """The number of target channels per group."""
        return self.target.channels // self.groups

    @property
    def volume(self) -> int:
        """The number of taps of the whole kernel."""
        return math.prod(self.kernel)

    @property
    def most_places(self) -> int:
        """The number of places of all images in the largest phase."""
        return self.images * max(phase.places for phase in self.phases)

    def inside(self, axis: int) -> bool:
        """Whether no phase reads outside the source along ``axis`` (0: d, 1: h, 2: w)."""
        step, spread, size = self.step[axis], self.spread[axis], self.source.size[axis]
        reads = [phase.reads(axis, step, spread) for phase in self.phases]
        return all(read.start >= 0 and read.stop <= size for read in reads)

    def reads(self, phase: Phase) -> list[tuple[int, int, int, int]]:
        """(kernel tap, d, h, w) of each tap of a phase: a place reads it at ``place * step`` plus d, h and w."""
        taps = []
        for tap in itertools.product(*map(range, phase.taps)):
            z, y, x = (tap0 + t * s for tap0, t, s in zip(phase.tap0, tap, self.tap_step, strict=True))
            at = _triple(o + t * d for o, t, d in zip(phase.origin, tap, self.spread, strict=True))
            taps.append(((z * self.kernel[1] + y) * self.kernel[2] + x, *at))
        return taps

    @property
    def pointwise(self) -> bool:
        """Whether each output place reads one tap at its own source pixel, so that the convolution is a plain matrix
        product."""
        return (
            self.volume == 1
            and len(self.phases) == 1
            and self.source.size == self.target.size
            and all(self.inside(axis) for axis in range(3))
        )


def phase_count(problem: ConvProblem) -> int:
    """The number of phases of a data gradient with this stride, without computing them; 1 in other directions."""
    if problem.direction != "bwd_data":
        return 1
    return min(problem.sd, problem.id) * min(problem.sh, problem.ih) * min(problem.sw, problem.iw)


def least_products(problem: ConvProblem) -> int:
    """Multiply-adds that every implicit matrix product of a problem computes at least: those of padding count, but not
    those of places of a data gradient that padding has beyond the source."""
    places = 1
    for axis in problem.axes:
        i, o, s = (getattr(problem, letter + axis) for letter in "ios")
        places *= i // s if problem.direction == "bwd_data" else o
    return problem.mb * places * math.prod(problem.w_shape)


@functools.lru_cache(maxsize=1024)
def geometry_of(problem: ConvProblem) -> Geometry:
    """The geometry of ``problem``'s direction; together its phases write every place of the target once."""
    x, y = TensorLayout.of(problem, "x"), TensorLayout.of(problem, "y")
    stride, dilation, pad, kernel = (_along(problem, letter) for letter in "sdpk")
    ones = (1, 1, 1)
    if problem.direction != "bwd_data":
        phase = Phase((0, 0, 0), _along(problem, "o"), kernel, (0, 0, 0), (-pad[0], -pad[1], -pad[2]))
        return Geometry(problem.mb, problem.g, x, y, stride, dilation, ones, ones, kernel, (phase,))
    shared = [math.gcd(s, d) for s, d in zip(stride, dilation, strict=True)]
    tap_step = _triple(s // h for s, h in zip(stride, shared, strict=True))
    spread = _triple(-d // h for d, h in zip(dilation, shared, strict=True))
    axes = [_phases(*of_axis) for of_axis in zip(x.size, stride, dilation, pad, kernel, tap_step, strict=True)]
    phases = tuple(Phase(*map(_triple, zip(*axes_of_phase, strict=True))) for axes_of_phase in itertools.product(*axes))
    return Geometry(problem.mb, problem.g, y, x, ones, spread, stride, tap_step, kernel, phases)


def _phases(size: int, s: int, d: int, p: int, k: int, tap_step: int) -> list[tuple[int, int, int, int, int]]:
    """Returns (first, count, taps, tap0, origin) of each phase along one axis."""
    result = []
    for first in range(min(s, size)):
        count = -(-(size - first) // s)
        # The first kernel tap t with (first + p - t * d) % s == 0, by the inverse of dilation d modulo stride s.
        shared = s // tap_step
        tap0 = (first + p) // shared * pow(d // shared, -1, tap_step) % tap_step
        if (first + p) % shared or tap0 >= k:
            result.append((first, count, 0, 0, 0))
        else:
            result.append((first, count, -(-(k - tap0) // tap_step), tap0, (first + p - tap0 * d) // s))
    return result


def _along(problem: ConvProblem, letter: str) -> Triple:
    return _triple(getattr(problem, letter + axis) for axis in "dhw")


def _triple(numbers: Iterable[int]) -> Triple:
    d, h, w = numbers
    return d, h, w
