"""The flat layout of a convolution's source, in which a tap is one constant offset for all pixels of all images.

Along an axis output pixel ``p`` reads the padded coordinates ``p * step + e`` with ``e = tap * spread``, counted from
the least one. That is position ``p + e // step`` of the part with remainder ``e % step``. Rows of all images follow one
another at a pitch, and the zeros after a row are also the zeros before the next row: 7 columns with a border of 1 take
8 positions instead of 9. All phases of a data gradient read the same source, each at its own offsets.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from convdispatch.api import ConvProblem, Geometry, Phase, geometry_of

BAND_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
"""Numbers of bands that the rows of all images may be divided into."""
MAX_MERGED_ROW = 128
"""Most positions of a row that is merged from several rows, so that one image still divides into bands."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis (d, h or w), for all phases of a convolution."""

    count: int
    """Output pixels along this axis in the largest phase."""
    step: int
    size: int
    """Pixels of the source along this axis."""
    first: int
    """The source's coordinate of padded coordinate 0."""
    reads: tuple[int, ...]
    """Padded coordinates that the taps read for output pixel 0."""

    @functools.cached_property
    def pitch(self) -> int:
        """Positions from row to row: output pixels, and padding zeros that neighbouring rows share."""
        if not self.reads:
            return self.count
        ends = {e % self.step: self.count + e // self.step for e in sorted(self.reads)}

        def outside(q: int, f: int) -> bool:
            return not 0 <= q * self.step + f + self.first < self.size

        for pitch in range(max(self.count, -(-max(ends.values()) // 2)), max(ends.values())):
            if all(outside(q, f) and outside(q - pitch, f) for f, end in ends.items() for q in range(pitch, end)):
                return pitch
        return max(ends.values())

    @property
    def remainders(self) -> tuple[int, ...]:
        """Remainders, modulo the stride, of the padded coordinates that some tap reads."""
        return tuple(sorted({e % self.step for e in self.reads}))

    @property
    def reach(self) -> int:
        """The furthest tap's offset in positions."""
        return max((e // self.step for e in self.reads), default=0)


class Tap(NamedTuple):
    """A tap of a phase: the index of the kernel's tap, the index of the part that it reads, the offset in positions."""

    kernel: int
    part: int
    offset: int


@dataclass(frozen=True)
class Flat:
    """The flat layout of all phases of a convolution, which share their positions along (d, h, w)."""

    axes: tuple[Axis, Axis, Axis]
    taps: tuple[tuple[Tap, ...], ...]
    """The taps of each phase."""

    @property
    def pitch(self) -> int:
        """Positions of a row."""
        return self.axes[2].pitch

    @property
    def rows(self) -> int:
        """Rows of an image."""
        return self.axes[0].pitch * self.axes[1].pitch

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """One part of the source for each combination (d, h, w) of remainders that some tap reads."""
        return [(d, h, w) for d in self.axes[0].remainders for h in self.axes[1].remainders
                for w in self.axes[2].remainders]  # fmt: skip

    @property
    def beyond(self) -> int:
        """Rows that a band reads beyond its own last row."""
        return -(-max((tap.offset for taps in self.taps for tap in taps), default=0) // self.pitch)


@functools.lru_cache(maxsize=256)
def flat_of(geometry: Geometry) -> Flat:
    """The flat layout of a geometry's phases."""
    axes: list[Axis] = []
    reading = [phase for phase in geometry.phases if phase.volume]
    for axis, spread in enumerate(geometry.spread):
        reads = {phase.origin[axis] + t * spread for phase in reading for t in range(phase.taps[axis])}
        first, count = min(reads, default=0), max(phase.count[axis] for phase in geometry.phases)
        tap_coordinates = tuple(sorted(each - first for each in reads))
        axes.append(Axis(count, geometry.step[axis], geometry.source.size[axis], first, tap_coordinates))
    bare = Flat(tuple(axes), ())  # type: ignore[arg-type]
    return Flat(bare.axes, tuple(_taps(geometry, phase, bare) for phase in geometry.phases))


def _taps(geometry: Geometry, phase: Phase, flat: Flat) -> tuple[Tap, ...]:
    parts, taps = {part: number for number, part in enumerate(flat.parts)}, []
    pitches = [axis.pitch for axis in flat.axes]
    for tap in range(phase.volume):
        t = (tap // (phase.taps[1] * phase.taps[2]), tap // phase.taps[2] % phase.taps[1], tap % phase.taps[2])
        padded = [phase.origin[axis] + t[axis] * geometry.spread[axis] - flat.axes[axis].first for axis in range(3)]
        kernel_tap = [phase.tap0[axis] + t[axis] * geometry.tap_step[axis] for axis in range(3)]
        z, y, x = (each // step for each, step in zip(padded, geometry.step, strict=True))
        part = parts[padded[0] % geometry.step[0], padded[1] % geometry.step[1], padded[2] % geometry.step[2]]
        number = (kernel_tap[0] * geometry.kernel[1] + kernel_tap[1]) * geometry.kernel[2] + kernel_tap[2]
        taps.append(Tap(number, part, (z * pitches[1] + y) * pitches[2] + x))
    return tuple(taps)


def merged(problem: ConvProblem) -> ConvProblem:
    """A pointwise problem with its pixels regrouped into rows that fill vectors best; other problems unchanged."""
    if not geometry_of(problem).pointwise:
        return problem
    sizes = [getattr(problem, "i" + axis) for axis in problem.axes]
    rows = math.prod(sizes[:-1])
    widths = [sizes[-1] * n for n in range(1, rows + 1) if rows % n == 0 and sizes[-1] * n <= MAX_MERGED_ROW]
    if len(sizes) == 1 or not widths:
        return problem
    best = max(widths, key=lambda width: (width / (-(-width // 16)), width))
    changes = {letter + axis: 1 for axis in problem.axes for letter in "is"} | {
        "ih": math.prod(sizes) // best,
        "iw": best,
    }
    return problem.replace(**changes)


def bands_of(rows: int) -> list[int]:
    """Heights of bands that divide ``rows`` rows about evenly, in ascending order."""
    return sorted({-(-rows // parts) for parts in BAND_COUNTS})
