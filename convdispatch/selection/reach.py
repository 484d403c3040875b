"""Problems whose padding, strides or dilations lead far beyond the input, and a small geometry with the same sums.

Along an axis, output ``q`` and tap ``t`` read index ``q s + t d - p`` of the input, if it is inside. Kernels compute
that index in 32 bits, for a few more outputs and taps than there are; if it may not fit, no solver is queried. Most
taps and outputs of such problems read no input at all. Without those, and with strides and dilations just large enough
to keep different reads different, the same sums are a problem of ordinary size.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ..api.problem import ConvProblem

MAX_REACH = 1 << 20
"""The most elements that padding, stride and dilation may reach beyond the input before an axis is rewritten."""
MAX_INDEXED = 1 << 31
"""The number of elements along an axis that 32-bit indices can count."""
_TILE = 64
"""The number of outputs and taps that kernels may count beyond the last one, because they compute whole tiles."""
_MAX_TAPS = 1 << 16
"""The most filter taps of an axis that are examined one by one."""

Meeting = tuple[int, int, int]
"""A filter tap, and the first and last output for which the tap reads inside the input."""


@dataclass(frozen=True)
class Cut:
    """The part of one axis that contributes to sums: sizes and first indices of x, w, y, and the reduced geometry."""

    i: int
    k: int
    o: int
    first_i: int
    first_k: int
    first_o: int
    s: int = 1
    d: int = 1
    p: int = 0
    p_r: int = 0
    meets: bool = True
    """Whether any filter tap reads inside the input; if none does, every sum is zero, and the reduced sizes are 1."""


@functools.lru_cache(maxsize=1024)
def out_of_reach(problem: ConvProblem) -> str | None:
    """Why no kernel is given the problem as it is, or None."""
    for axis in problem.axes:
        i, s, d = (getattr(problem, letter + axis) for letter in "isd")
        padding = getattr(problem, "p" + axis) + getattr(problem, f"p{axis}_r")
        places = i + padding + _TILE * (s + d)
        if places < MAX_INDEXED and (padding + s + d <= MAX_REACH or reduction(problem) is None):
            continue
        return (
            f"axes of less than {min(MAX_INDEXED, i + MAX_REACH)} places, with padding and {_TILE} strides and "
            f"dilations, got {places} along {axis}"
        )
    return None


@functools.lru_cache(maxsize=1024)
def reduction(problem: ConvProblem) -> dict[str, Cut] | None:
    """Return for each axis the part that contributes to sums, if its geometry is smaller; else None."""
    cuts, changed = {}, False
    for axis in problem.axes:
        i, k, o, s, d, p, p_r = (getattr(problem, n) for n in (*(f"{x}{axis}" for x in "ikosdp"), f"p{axis}_r"))
        cuts[axis] = Cut(i, k, o, 0, 0, 0, s, d, p, p_r)
        if p + p_r + s + d > MAX_REACH:
            cut = _cut(i, k, o, s, d, p)
            if cut is not None and cut.p + cut.p_r + cut.s + cut.d < p + p_r + s + d:
                cuts[axis], changed = cut, True
    return cuts if changed else None


def _cut(i: int, k: int, o: int, s: int, d: int, p: int) -> Cut | None:
    meetings = _meetings(i, k, o, s, d, p)
    if meetings is None:
        return None
    if not meetings:
        return Cut(1, 1, 1, 0, 0, 0, meets=False)
    first_k, first_o = meetings[0][0], min(low for _, low, _ in meetings)
    taps, outputs = meetings[-1][0] - first_k + 1, max(high for _, _, high in meetings) - first_o + 1
    meetings = [(tap - first_k, low - first_o, high - first_o) for tap, low, high in meetings]
    p -= first_o * s + first_k * d
    s, d = s if outputs > 1 else 1, d if taps > 1 else 1
    s, d, p = _smaller_geometry(meetings, (i, taps, outputs), (s, d, p)) or (s, d, p)
    before = max(0, p)
    first_i = before - p
    # The end of the input that no tap reaches is left out, so that the reduced problem has just as many outputs.
    after = (outputs - 1) * s + (taps - 1) * d + 1 - before - (i - first_i)
    return Cut(i - first_i + min(0, after), taps, outputs, first_i, first_k, first_o, s, d, before, max(0, after))


def _meetings(i: int, k: int, o: int, s: int, d: int, p: int) -> list[Meeting] | None:
    """Each tap that reads inside the input with its first and last output; None where there are too many taps."""
    begin, end = max(0, -((o - 1) * s - p) // d), min(k, (p + i - 1) // d + 1)
    if end - begin > _MAX_TAPS:
        return None
    meetings = []
    for tap in range(begin, end):
        low, high = max(0, -((tap * d - p) // s)), min(o - 1, (i - 1 + p - tap * d) // s)
        if low <= high:
            meetings.append((tap, low, high))
    return meetings


def _smaller_geometry(
    meetings: list[Meeting], sizes: tuple[int, int, int], geometry: tuple[int, int, int]
) -> tuple[int, int, int] | None:
    """Smaller (stride, dilation, padding) by which just the same taps and outputs meet at the same places; None where
    there are none.

    What meets lies on a line, ``a`` outputs on and ``b`` taps back each: taking ``b n`` from the stride and ``a n``
    from the dilation moves nothing along it, and what lies beside the line by as many ``n`` as it is apart.
    """
    (i, k, o), (s, d, p) = sizes, geometry
    pairs = {(tap, output) for tap, low, high in meetings for output in (low, high)}
    if len(pairs) < 2 or any(high - low > 1 for _, low, high in meetings):
        return None
    (tap, output), (other_tap, other_output) = sorted(pairs)[:2]
    taps, outputs = other_tap - tap, output - other_output
    if taps < 1 or outputs < 1:
        return None
    a, b = outputs // math.gcd(outputs, taps), taps // math.gcd(outputs, taps)
    distance = 4 * (b * o + a * k + i)
    n = min(s // b, d // a) - distance
    smaller = s - b * n, d - a * n, p - n * (b * output + a * tap)
    if n < 1 or _meetings(i, k, o, *smaller) != meetings:
        return None
    is_equivalent = all(q * s + t * d - p == q * smaller[0] + t * smaller[1] - smaller[2] for t, q in pairs)
    return smaller if is_equivalent else None
