"""From a problem to what the kernels walk: a source read at ``place * step + origin + tap * spread``, in phases.

Forward is one phase. The data gradient of stride s has s phases an axis: the pixels ``f, f + s, ...`` of x are a dense
small convolution over dy with every s-th tap (fewer when the dilation shares a factor with the stride), so that no
multiplication is wasted:

    x[f + s q] = sum over t of w[k0 + t s'] dy[q + origin - t d'],   s' = s / gcd(s, d), d' = d / gcd(s, d)

All triples are along (d, h, w); strides of tensors count elements.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

__all__ = ["Geometry", "Phase", "Tensor", "geometry"]

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Tensor:
    """Images over pixels in memory: sizes and element strides, whatever the layout."""

    channels: int
    size: Triple
    nhwc: bool

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return math.prod(self.size)

    @property
    def image(self) -> int:
        """Stride of images."""
        return self.channels * self.pixels

    @property
    def channel(self) -> int:
        """Stride of channels."""
        return 1 if self.nhwc else self.pixels

    @property
    def axes(self) -> Triple:
        """Strides along d, h and w."""
        unit = self.channels if self.nhwc else 1
        return (self.size[1] * self.size[2] * unit, self.size[2] * unit, unit)


@dataclass(frozen=True)
class Phase:
    """One dense convolution: its places are written to ``first + place * out_step`` of the output."""

    first: Triple
    count: Triple
    """Places along each axis."""
    taps: Triple
    """Taps along each axis; a 0 means that nothing reaches these places."""
    tap0: Triple
    """The kernel's tap that is tap 0 of this phase."""
    origin: Triple
    """Where place 0 and tap 0 read."""

    @property
    def places(self) -> int:
        """Places of an image."""
        return math.prod(self.count)

    @property
    def volume(self) -> int:
        """Taps."""
        return math.prod(self.taps)


@dataclass(frozen=True)
class Geometry:
    """A convolution's walk over its source: x for the forward product and the weights' gradient, dy for the data's."""

    images: int
    groups: int
    source: Tensor
    target: Tensor
    """The tensor over the places: written, or for the weights' gradient read too."""
    step: Triple
    spread: Triple
    out_step: Triple
    tap_step: Triple
    """Kernel taps from one tap of a phase to the next."""
    kernel: Triple
    phases: tuple[Phase, ...]

    @property
    def c(self) -> int:
        """Source channels a group."""
        return self.source.channels // self.groups

    @property
    def m(self) -> int:
        """Target channels a group."""
        return self.target.channels // self.groups

    @property
    def volume(self) -> int:
        """Taps of the kernel."""
        return math.prod(self.kernel)

    @property
    def most_places(self) -> int:
        """Places of all images in the largest phase."""
        return self.images * max(phase.places for phase in self.phases)

    def inside(self, axis: int) -> bool:
        """Whether no phase reads outside the source along the axis."""
        for phase in self.phases:
            if not phase.volume:
                continue
            reach = (phase.taps[axis] - 1) * self.spread[axis]
            first = phase.origin[axis] + min(0, reach)
            last = phase.origin[axis] + max(0, reach) + (phase.count[axis] - 1) * self.step[axis]
            if first < 0 or last >= self.source.size[axis]:
                return False
        return True

    @property
    def pointwise(self) -> bool:
        """Whether the source's pixels are the places, one tap each: a plain matrix product."""
        return (
            self.volume == 1
            and len(self.phases) == 1
            and self.source.size == self.target.size
            and all(self.inside(axis) for axis in range(3))
        )


@functools.lru_cache(maxsize=1024)
def geometry(problem: ConvProblem) -> Geometry:
    """The walk of ``problem``'s direction."""

    def along(letter: str) -> Triple:
        return tuple(getattr(problem, letter + axis) for axis in "dhw")

    nhwc = problem.layout == "nhwc"
    x, y = Tensor(problem.ic, along("i"), nhwc), Tensor(problem.oc, along("o"), nhwc)
    stride, dilation, pad, kernel = along("s"), along("d"), along("p"), along("k")
    one = (1, 1, 1)
    if problem.direction != "bwd_data":
        origin = tuple(-p for p in pad)
        phase = Phase((0, 0, 0), y.size, kernel, (0, 0, 0), origin)
        return Geometry(problem.mb, problem.g, x, y, stride, dilation, one, one, kernel, (phase,))
    shared = tuple(math.gcd(s, d) for s, d in zip(stride, dilation, strict=True))
    tap_step = tuple(s // h for s, h in zip(stride, shared, strict=True))
    spread = tuple(-d // h for d, h in zip(dilation, shared, strict=True))
    axes = [_phases(*of_axis) for of_axis in zip(x.size, stride, dilation, pad, kernel, tap_step, strict=True)]
    phases = tuple(Phase(*zip(*each, strict=True)) for each in itertools.product(*axes))
    return Geometry(problem.mb, problem.g, y, x, one, spread, stride, tap_step, kernel, phases)


def _phases(size: int, s: int, d: int, p: int, k: int, tap_step: int) -> list[tuple[int, int, int, int, int]]:
    """(first, count, taps, tap0, origin) of each phase along one axis."""
    result = []
    for first in range(min(s, size)):
        count = -(-(size - first) // s)
        tap0 = next((t for t in range(min(k, tap_step)) if (first + p - t * d) % s == 0), None)
        if tap0 is None:
            result.append((first, count, 0, 0, 0))
        else:
            result.append((first, count, -(-(k - tap0) // tap_step), tap0, (first + p - tap0 * d) // s))
    return result
