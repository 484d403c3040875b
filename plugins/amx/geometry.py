"""Places in rows: where a phase's source lies so that a tap is one offset for all places of all images.

Padded coordinates along an axis are ``place * step + e`` with ``e = tap * spread`` from the least one on; the position
is ``place + e // step`` among those of remainder ``e % step``. Rows of all images follow one another at a pitch, and
the zeros after a row are those before the next one: 8 columns for 7 with a border of 1, where 9 would stand alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from convdispatch.api import Phase, Walk

__all__ = ["Axis", "Flat", "bands_of", "flat_of"]

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)


@dataclass(frozen=True)
class Axis:
    """One axis of a phase."""

    count: int
    """Places."""
    step: int
    size: int
    """Of the source."""
    first: int
    """The source's coordinate of padded coordinate 0."""
    reads: tuple[int, ...]
    """Padded coordinate of each tap at place 0."""

    @functools.cached_property
    def pitch(self) -> int:
        """Positions from row to row: places, and zeros that two rows share."""
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
        """Those that some tap reads."""
        return tuple(sorted({e % self.step for e in self.reads}))

    @property
    def reach(self) -> int:
        """The furthest tap's offset in positions."""
        return max((e // self.step for e in self.reads), default=0)


class Tap(NamedTuple):
    """A tap of a phase: the kernel's tap, the remainder's number, the offset in positions."""

    kernel: int
    part: int
    offset: int


@dataclass(frozen=True)
class Flat:
    """A phase over all axes (d, h, w)."""

    phase: Phase
    axes: tuple[Axis, Axis, Axis]
    taps: tuple[Tap, ...]

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
        """Remainders that some tap reads, along each axis; a part of the source each."""
        return [(d, h, w) for d in self.axes[0].remainders for h in self.axes[1].remainders
                for w in self.axes[2].remainders]  # fmt: skip

    @property
    def beyond(self) -> int:
        """Rows that a band reads after its own."""
        return -(-max((tap.offset for tap in self.taps), default=0) // self.pitch)


@functools.lru_cache(maxsize=256)
def flat_of(walk: Walk, phase: Phase) -> Flat:
    """The flat form of a phase."""
    axes, reads = [], []
    for axis in range(3):
        spread, taps = walk.spread[axis], phase.taps[axis] * bool(phase.volume)
        first = phase.origin[axis] + min(0, max(taps - 1, 0) * spread)
        reads.append([phase.origin[axis] + t * spread - first for t in range(taps)])
        axes.append(Axis(phase.count[axis], walk.step[axis], walk.source.size[axis], first, tuple(reads[-1])))
    parts = {part: number for number, part in enumerate(Flat(phase, tuple(axes), ()).parts)}  # type: ignore[arg-type]
    taps = []
    steps, pitches = [axis.step for axis in axes], [axis.pitch for axis in axes]
    for tap in range(phase.volume):
        t = (tap // (phase.taps[1] * phase.taps[2]), tap // phase.taps[2] % phase.taps[1], tap % phase.taps[2])
        e = [reads[axis][t[axis]] for axis in range(3)]
        k = [phase.tap0[axis] + t[axis] * walk.tap_step[axis] for axis in range(3)]
        z, y, x = (each // step for each, step in zip(e, steps, strict=True))
        part = parts[e[0] % steps[0], e[1] % steps[1], e[2] % steps[2]]
        number = (k[0] * walk.kernel[1] + k[1]) * walk.kernel[2] + k[2]
        taps.append(Tap(number, part, (z * pitches[1] + y) * pitches[2] + x))
    return Flat(phase, tuple(axes), tuple(taps))  # type: ignore[arg-type]


def bands_of(rows: int) -> list[int]:
    """Heights of bands into which so many rows fall evenly, or nearly so, from the least on."""
    return sorted({-(-rows // parts) for parts in _PARTS})
