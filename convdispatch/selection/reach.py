"""Problems whose padding, strides or dilations lead far beyond the input: no solver is queried about them.

Along an axis, output ``q`` and tap ``t`` read index ``q s + t d - p`` of the input, if it is inside. Kernels compute
that index in 32 bits, for a few more outputs and taps than there are.
"""

from __future__ import annotations

from ..api.problem import ConvProblem

MAX_REACH = 1 << 20
"""The most elements by which a stride and a dilation together, or padding beyond the kernel's own extent, may lead."""
MAX_INDEXED = 1 << 31
"""The number of elements along an axis that 32-bit indices can count."""
_TILE = 64
"""The number of outputs and taps that kernels may count beyond the last one, because they compute whole tiles."""


def out_of_reach(problem: ConvProblem) -> str | None:
    """Why no kernel is given the problem, or None."""
    for axis in problem.axes:
        i, k, s, d = (getattr(problem, letter + axis) for letter in "iksd")
        padding = getattr(problem, "p" + axis) + getattr(problem, f"p{axis}_r")
        places = i + padding + _TILE * (s + d)
        if places >= MAX_INDEXED or s + d > MAX_REACH or padding - 2 * d * (k - 1) > MAX_REACH:
            return (
                f"axes of less than {min(MAX_INDEXED, i + MAX_REACH)} places, with padding and {_TILE} strides and "
                f"dilations, got {places} along {axis}"
            )
    return None
