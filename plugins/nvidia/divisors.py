"""Sizes that kernels divide by as arguments, so that one program serves all of them; see ``divide.cl``.

A division by a literal is a multiplication by its reciprocal and a shift (Granlund and Montgomery, "Division by
Invariant Integers using Multiplication", 1994). Here both come with the launch.
"""

from __future__ import annotations

import numpy as np

LARGEST = 2**31 - 1
"""What is divided, at most."""


def divided_by(*sizes: int) -> list[np.uint32]:
    """The arguments of ``DIVISOR`` for each size, 1 to LARGEST."""
    found: list[np.uint32] = []
    for size in sizes:
        shift = (size - 1).bit_length()
        found += map(np.uint32, (size, (((1 << shift) - size) << 32) // size + 1, shift))
    return found
