"""From a problem to a walk over channels-last planes: a source read at ``place * step + origin + tap * spread``.

Forward is one phase. The data gradient of stride s has s phases an axis, each a dense convolution over dy with every
s-th tap, so that no product meets a zero that the stride put there. The weights' gradient walks like forward.

A *joined* walk is the data gradient in one phase whose channels are every phase's: first layers have few channels, and
wide products are what tensor cores are good at. Weights of taps that a phase does not have are zeros.

A *folded* walk reads a source whose taps along w were laid out as channels when it was packed: first layers have few
channels, and the tensor cores multiply eight at a time.

Triples are along (d, h, w).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

__all__ = ["Phase", "Walk", "Window", "along", "chunks", "walk", "window"]

Triple = tuple[int, int, int]
_FOLD_BELOW = 8  # channels a group


def along(problem: ConvProblem, letter: str) -> Triple:
    """A problem's numbers along the three axes."""
    return tuple(getattr(problem, letter + axis) for axis in "dhw")


def chunks(channels: int) -> int:
    """Groups of eight 16-bit channels, 16 bytes each, that hold ``channels``."""
    return -(-channels // 8)


@dataclass(frozen=True)
class Phase:
    """One dense convolution, whose places are written to ``first + place * out_step`` of the target."""

    first: Triple
    count: Triple
    """Places along each axis."""
    taps: Triple
    """Taps along each axis; 0: nothing reaches these places."""
    tap0: Triple
    """The kernel's tap that is this phase's tap 0."""
    origin: Triple
    """Where place 0 reads with tap 0."""

    @property
    def places(self) -> int:
        """Places of an image."""
        return math.prod(self.count)

    @property
    def volume(self) -> int:
        """Taps."""
        return math.prod(self.taps)


@dataclass(frozen=True)
class Walk:
    """The source is x for the forward product and the weights' gradient, and dy for the data gradient."""

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
    """Kernel taps from one tap of a phase to the next."""
    kernel: Triple
    phases: tuple[Phase, ...]
    fold: bool
    joined: Triple | None = None
    """Phases along each axis that are channels: m is phases times channels, phases slowest."""

    @property
    def c8(self) -> int:
        """Chunks of eight source channels."""
        return chunks(self.c)

    @property
    def most_places(self) -> int:
        """Places of all images in the largest phase."""
        return self.images * max(phase.places for phase in self.phases)

    def inside(self, axis: int) -> bool:
        """Whether no phase reads outside the source along the axis."""
        for phase in self.phases:
            if phase.volume:
                reach = (phase.taps[axis] - 1) * self.spread[axis]
                first = phase.origin[axis] + min(0, reach)
                last = phase.origin[axis] + max(0, reach) + (phase.count[axis] - 1) * self.step[axis]
                if first < 0 or last >= self.source[axis]:
                    return False
        return True


@functools.lru_cache(maxsize=1024)
def walk(problem: ConvProblem, joined: bool = False) -> Walk:
    """The walk of ``problem``'s direction; ``joined`` asks for the data gradient in one phase."""
    x, y, kernel, stride = (along(problem, letter) for letter in "ioks")
    dilation, pad = along(problem, "d"), along(problem, "p")
    icg, ocg, one = problem.ic // problem.g, problem.oc // problem.g, (1, 1, 1)
    if problem.direction == "bwd_data" and joined:
        parts = tuple(map(min, x, stride))
        reach = [_offsets(*of_axis) for of_axis in zip(parts, stride, dilation, pad, kernel)]
        first, taps = zip(*((low, high - low + 1) for low, high in reach))
        count = tuple(-(-size // s) for size, s in zip(x, stride))
        phase = Phase((0, 0, 0), count, taps, (0, 0, 0), first)
        m = icg * math.prod(parts)
        return Walk(problem.mb, problem.g, ocg, m, y, x, one, one, stride, one, kernel, (phase,), False, parts)
    if problem.direction == "bwd_data":
        shared = tuple(map(math.gcd, stride, dilation))
        tap_step = tuple(s // h for s, h in zip(stride, shared))
        spread = tuple(-d // h for d, h in zip(dilation, shared))
        axes = [_phases(*of_axis) for of_axis in zip(x, stride, dilation, pad, kernel, tap_step)]
        phases = tuple(Phase(*zip(*each)) for each in itertools.product(*axes))
        return Walk(problem.mb, problem.g, ocg, icg, y, x, one, spread, stride, tap_step, kernel, phases, False)
    origin = tuple(-p for p in pad)
    fold = kernel[2] > 1 and icg < _FOLD_BELOW
    if fold:
        icg, x, kernel = icg * kernel[2], (*x[:2], y[2]), (*kernel[:2], 1)
        stride, dilation, origin = (*stride[:2], 1), (*dilation[:2], 1), (*origin[:2], 0)
    phase = Phase((0, 0, 0), y, kernel, (0, 0, 0), origin)
    return Walk(problem.mb, problem.g, icg, ocg, x, y, stride, dilation, one, one, kernel, (phase,), fold)


@dataclass(frozen=True)
class Window:
    """Positions of the padded source in a row, so that a tap is a shift: with stride 1, place p reads p + shift.

    The zeros at the end of a row are those before the next one, so a row is the source's plus the larger pad.
    """

    images: int
    near: Triple
    size: Triple
    """Positions along each axis."""
    shifts: tuple[int, ...]
    """Of each tap, taps in order."""

    @property
    def image(self) -> int:
        """Positions of an image."""
        return math.prod(self.size)

    @property
    def places(self) -> int:
        """Positions of all images."""
        return self.images * self.image


@functools.lru_cache(maxsize=1024)
def window(geo: Walk) -> Window | None:
    """The window of a walk with steps of 1 and several taps; None for others."""
    if len(geo.phases) != 1 or geo.step != (1, 1, 1) or geo.phases[0].volume < 2:
        return None
    if geo.out_step != (1, 1, 1) and not geo.joined:
        return None
    phase = geo.phases[0]
    near, size, offsets = [], [], []
    for origin, spread, taps, count, pixels in zip(phase.origin, geo.spread, phase.taps, phase.count, geo.source):
        reads = [origin + tap * spread for tap in range(taps)]
        before = max(0, -min(reads))
        near.append(before)
        size.append(pixels + max(before, max(reads) + count - pixels))
        offsets.append([read + before for read in reads])
    strides = (size[1] * size[2], size[2], 1)
    shifts = [sum(o * s for o, s in zip(each, strides)) for each in itertools.product(*offsets)]
    return Window(geo.images, tuple(near), tuple(size), tuple(shifts))


def _offsets(parts: int, s: int, d: int, p: int, k: int) -> tuple[int, int]:
    """The least and the greatest place beside its own that any of a position's pixels reads, along one axis."""
    reads = [(f + p - t * d) // s for f in range(parts) for t in range(k) if (f + p - t * d) % s == 0]
    return (min(reads), max(reads)) if reads else (0, 0)


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
