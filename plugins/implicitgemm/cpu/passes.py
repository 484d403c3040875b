"""From a problem to dense passes: ``target[n, place] = sum over (c, tap) of weights[n, c, tap] source[c, position]``.

``position = place * step + tap * spread - pad`` along each axis, zero outside the source; the result is written at
``start + place * stride`` of the target. The forward convolution is one pass over x. The data gradient is one pass
over dy for every phase of the stride: the elements of dx that are congruent modulo the stride see the same taps, so
each phase is a dense convolution of step 1 with every s-th tap, and no product with a zero is computed (Dumoulin and
Visin 2016 describe the arithmetic; the split by phases is that of sub-pixel convolution, Shi et al. 2016).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

__all__ = ["Pass", "define", "passes"]

_AXES = "dhw"


def define(**values: object) -> str:
    """OpenCL text: one ``#define`` a keyword."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


@dataclass(frozen=True)
class Pass:
    """One dense convolution of step ``step``; triples are along (d, h, w)."""

    images: int
    groups: int
    c: int
    """Source channels a group."""
    n: int
    """Target channels a group."""
    source: tuple[int, ...]
    places: tuple[int, ...]
    target: tuple[int, ...]
    """Size of the whole target, of which this pass writes every ``stride``-th element from ``start`` on."""
    start: tuple[int, ...]
    stride: tuple[int, ...]
    taps: tuple[int, ...]
    step: tuple[int, ...]
    spread: tuple[int, ...]
    pad: tuple[int, ...]
    """Zeros before the source; below 0: elements skipped."""
    w_first: tuple[int, ...]
    """Kernel position of tap 0."""
    w_step: tuple[int, ...]
    """From a tap's kernel position to the next one's."""
    kernel: tuple[int, ...]
    """The kernel's own size."""
    w_strides: tuple[int, int, int]
    """Elements of w from target channel to target channel, from source channel to source channel, from tap to tap."""
    nhwc: bool
    dtype: str
    empty: bool = False
    """No tap reaches these elements: the sum is 0."""
    fold: int = 1
    """Neighbouring places of a row that stand as channels: ``n`` counts (place of the fold, channel)."""
    width: int = 0
    """Places of a row before the fold; 0: not folded."""

    @functools.cached_property
    def volume(self) -> int:
        """Taps."""
        return math.prod(self.taps)

    @functools.cached_property
    def flops(self) -> int:
        """Operations, two a multiply-add."""
        pixels = self.images * math.prod(self.places)
        return 0 if self.empty else 2 * pixels * self.groups * self.n * self.c * self.volume

    @property
    def dense(self) -> bool:
        """Whether the pass writes the whole target."""
        return self.fold == 1 and self.places == self.target

    def folded(self, lanes: int) -> Pass:
        """The same sums with neighbouring places of a row as channels, where few channels would leave lanes empty.

        ``target[(j, n), place] = sum over t' of w[n, t' - j] source[place * J + t' - pad]``, j < J: a convolution of
        step J whose ``taps + J - 1`` taps are partly zeros. Worth it while those cost less than the empty lanes.
        """
        if self.step[2] != 1 or self.spread[2] != 1 or self.n > lanes // 2 or self.empty:
            return self

        def steps(j: int) -> float:
            return (self.taps[2] + j - 1) * -(-self.n * j // lanes) / j

        best = min(range(1, min(4 * lanes // self.n, self.places[2]) + 1), key=lambda j: (steps(j), j))
        if steps(best) > 0.8 * steps(1):
            return self
        return dataclasses.replace(
            self,
            n=self.n * best,
            places=(*self.places[:2], -(-self.places[2] // best)),
            taps=(*self.taps[:2], self.taps[2] + best - 1),
            step=(*self.step[:2], best),
            fold=best,
            width=self.places[2],
        )


def _along(problem: ConvProblem, letter: str) -> tuple[int, ...]:
    return tuple(getattr(problem, letter + axis) for axis in _AXES)


def passes(problem: ConvProblem) -> list[Pass]:
    """The passes of a forward convolution or a data gradient; together they write every element once."""
    icg, ocg, volume = problem.ic // problem.g, problem.oc // problem.g, problem.kd * problem.kh * problem.kw
    per_oc = icg * volume
    per_ic, per_tap = (1, icg) if problem.layout == "nhwc" else (volume, 1)
    kernel, inputs, outputs = _along(problem, "k"), _along(problem, "i"), _along(problem, "o")
    tail = {"nhwc": problem.layout == "nhwc", "dtype": problem.dtype, "kernel": kernel}
    tail |= {"images": problem.mb, "groups": problem.g}
    if problem.direction == "fwd":
        zero, one = (0, 0, 0), (1, 1, 1)
        return [
            Pass(
                c=icg, n=ocg, source=inputs, places=outputs, target=outputs, start=zero, stride=one, taps=kernel,
                step=_along(problem, "s"), spread=_along(problem, "d"), pad=_along(problem, "p"), w_first=zero,
                w_step=one, w_strides=(per_oc, per_ic, per_tap), **tail,
            )
        ]  # fmt: skip
    result = []
    axes = [_phases(problem, axis) for axis in _AXES]
    for phase in itertools.product(*axes):
        start, places, taps, spread, pad, first, step = zip(*phase, strict=True)
        empty = 0 in taps
        result.append(
            Pass(
                c=1 if empty else ocg, n=icg, source=outputs, places=places, target=inputs, start=start,
                stride=_along(problem, "s"), taps=(1, 1, 1) if empty else taps, step=(1, 1, 1), spread=spread,
                pad=(0, 0, 0) if empty else pad, w_first=first, w_step=step, w_strides=(per_ic, per_oc, per_tap),
                empty=empty, **tail,
            )
        )  # fmt: skip
    return result


def _phases(problem: ConvProblem, axis: str) -> list[tuple[int, ...]]:
    """(start, places, taps, spread, pad, first, step) of each residue of one axis of dx."""
    size, kernel, stride, pad, dilation = (getattr(problem, letter + axis) for letter in "ikspd")
    apart = stride // math.gcd(stride, dilation)  # taps of one phase are so many kernel positions apart
    phases = []
    for start in range(min(stride, size)):
        taps = [k for k in range(kernel) if (start + pad - k * dilation) % stride == 0]
        last = taps[-1] if taps else 0
        # From the last tap to the first the position in dy rises.
        before = -((start + pad - last * dilation) // stride)
        places = -(-(size - start) // stride)
        phases.append((start, places, len(taps), max(1, apart * dilation // stride), before, last, -apart))
    return phases
