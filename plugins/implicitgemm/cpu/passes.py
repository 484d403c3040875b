"""Dense passes of a problem: ``target[n, pixel] = sum over (c, tap) of weights[n, c, tap] source[c, position]``.

``position = pixel * step + tap * spread - pad`` along each axis, zero outside the source; the result is written at
``start + pixel * stride`` of the target. The forward convolution is one pass over x. The data gradient is one pass
over dy for every phase of the stride: elements of dx that are congruent modulo the stride have the same taps, so each
phase is a dense convolution of step 1 with every s-th tap, and no product with a zero is computed (Dumoulin and
Visin 2016 describe the arithmetic; the split by phases is that of sub-pixel convolution, Shi et al. 2016).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from convdispatch.api import DTYPES, ConvProblem, TensorLayout, define, geometry_of


@dataclass(frozen=True)
class Pass:
    """One dense convolution that reads every ``step``-th element of the source; triples are along (d, h, w)."""

    images: int
    groups: int
    c: int
    """Source channels per group."""
    n: int
    """Target channels per group."""
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
    """Position in the kernel of this pass's tap 0, along (d, h, w)."""
    w_step: tuple[int, ...]
    """Positions in the kernel from one tap of this pass to the next, along (d, h, w)."""
    kernel: tuple[int, ...]
    """Size of the whole kernel along (d, h, w)."""
    w_strides: tuple[int, int, int]
    """Strides of w in elements along the target channel, the source channel and the tap."""
    nhwc: bool
    dtype: str
    empty: bool = False
    """Whether no tap reaches the target elements of this pass: their sum is 0."""
    fold: int = 1
    """Consecutive target elements of a row that count as channels; ``n`` counts (element of the fold, channel)."""
    width: int = 0
    """Target elements of a row before folding; 0 if the pass is not folded."""

    @property
    def accumulator_size(self) -> int:
        """Bytes of one sum."""
        return DTYPES[self.dtype].accumulator_size

    @functools.cached_property
    def volume(self) -> int:
        """Number of taps."""
        return math.prod(self.taps)

    @functools.cached_property
    def flops(self) -> int:
        """Number of operations of the pass, two per multiply-add."""
        pixels = self.images * math.prod(self.places)
        return 0 if self.empty else 2 * pixels * self.groups * self.n * self.c * self.volume

    def macros(self, names: str = "XYTSD") -> str:
        """Macros along d, h, w: sizes of source X, pass Y, target Z, taps T; step S, spread D, stride U, padding P."""
        sizes = {"X": self.source, "Y": self.places, "Z": self.target, "T": self.taps, "S": self.step}
        sizes |= {"D": self.spread, "U": self.stride, "P": tuple(f"({pad})" for pad in self.pad)}
        return "".join(define(**dict(zip((f"{name}{axis}" for axis in "DHW"), sizes[name]))) for name in names)

    def kernel_macros(self) -> str:
        """Macros of the taps' elements of w: kernel sizes K?_, steps KS? between taps, EMPTY if there are no taps."""
        text = define(EMPTY=int(self.empty), KH_=self.kernel[1], KW_=self.kernel[2])
        return text + define(**{f"KS{axis}": f"({step})" for axis, step in zip("DHW", self.w_step, strict=True)})

    def planes(self) -> dict[str, int]:
        """Macros XP and YP: elements in a plane of the source, and in a plane of the pass's results."""
        return {"XP": self.source[1] * self.source[2], "YP": self.places[1] * self.places[2]}

    @property
    def dense(self) -> bool:
        """Whether the pass writes the whole target."""
        return self.fold == 1 and self.places == self.target

    def folded(self, lanes: int) -> Pass:
        """Return the same sums with consecutive pixels of a row as channels, if few channels would leave lanes empty.

        ``target[(j, n), pixel] = sum over t' of w[n, t' - j] source[pixel * J + t' - pad]``, j < J: a convolution of
        step J with ``taps + J - 1`` taps, some of them zeros. It pays if those zeros cost less than empty lanes.
        """
        if self.step[2] != 1 or self.spread[2] != 1 or self.n > lanes // 2 or self.empty:
            return self

        def steps(j: int) -> float:
            return (self.taps[2] + j - 1) * -(-self.n * j // lanes) / j

        fold = min(range(1, min(4 * lanes // self.n, self.places[2]) + 1), key=lambda j: (steps(j), j))
        if steps(fold) > 0.8 * steps(1):
            return self
        return dataclasses.replace(
            self,
            n=self.n * fold,
            places=(*self.places[:2], -(-self.places[2] // fold)),
            taps=(*self.taps[:2], self.taps[2] + fold - 1),
            step=(*self.step[:2], fold),
            fold=fold,
            width=self.places[2],
        )


def forward_pass(problem: ConvProblem) -> Pass:
    """The pass over x of the forward convolution; the weights' gradient reads x in the same way."""
    return passes(problem.replace(direction="fwd", accumulate=False))[0]


@functools.lru_cache(maxsize=256)
def passes(problem: ConvProblem) -> tuple[Pass, ...]:
    """The passes of a forward convolution or a data gradient; together they write every element once."""
    geo, w = geometry_of(problem), TensorLayout.of(problem, "w")
    w_strides = (w.image, w.channel, w.axes[2])
    if problem.direction == "bwd_data":
        w_strides = (w.channel, w.image, w.axes[2])
    # In a data gradient later taps read earlier elements, so its taps are processed from the last to the first.
    reversed_axes = tuple(spread < 0 for spread in geo.spread)
    result = []
    for phase in geo.phases:
        empty = not phase.volume
        first_tap = tuple(max(0, taps - 1) * b for taps, b in zip(phase.taps, reversed_axes, strict=True))
        origin = tuple(o + t * s for o, t, s in zip(phase.origin, first_tap, geo.spread, strict=True))
        result.append(
            Pass(
                images=geo.images, groups=geo.groups, c=1 if empty else geo.c, n=geo.m, source=geo.source.size,
                places=phase.count, target=geo.target.size, start=phase.first, stride=geo.out_step,
                taps=(1, 1, 1) if empty else phase.taps, step=geo.step, spread=tuple(map(abs, geo.spread)),
                pad=(0, 0, 0) if empty else tuple(-o for o in origin), empty=empty,
                w_first=tuple(t0 + t * s for t0, t, s in zip(phase.tap0, first_tap, geo.tap_step, strict=True)),
                w_step=tuple(-s if b else s for s, b in zip(geo.tap_step, reversed_axes, strict=True)),
                kernel=geo.kernel, w_strides=w_strides, nhwc=problem.layout == "nhwc", dtype=problem.dtype,
            )
        )  # fmt: skip
    return tuple(result)
