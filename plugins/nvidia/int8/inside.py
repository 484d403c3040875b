"""Which taps of a place lie in x: few sets of them, since along an axis all but the first and last places have all."""

from __future__ import annotations

from dataclasses import dataclass

from convdispatch.api import ConvProblem

__all__ = ["Inside", "inside"]


@dataclass(frozen=True)
class Inside:
    """Along an axis: the sets, each from a first tap to before another, and which set each place has."""

    ranges: tuple[tuple[int, int], ...]
    of: tuple[int, ...]


def _inside(places: int, size: int, taps: int, step: int, pad: int, dilation: int) -> Inside:
    found = []
    for place in range(places):
        first = max(0, -(-(pad - place * step) // dilation))
        stop = min(taps, -(-(size + pad - place * step) // dilation))
        found.append((first, max(first, stop)))
    ranges = tuple(dict.fromkeys(found))
    return Inside(ranges, tuple(map(ranges.index, found)))


def inside(p: ConvProblem) -> tuple[Inside, Inside]:
    """Along rows' numbers, h, and columns', w."""
    return _inside(p.oh, p.ih, p.kh, p.sh, p.ph, p.dh), _inside(p.ow, p.iw, p.kw, p.sw, p.pw, p.dw)
