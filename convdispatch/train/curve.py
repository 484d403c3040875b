"""A loss curve as text, drawn with Braille characters, each of which has two columns and four rows of dots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# _DOTS[r][c] is the bit of the dot in row r, column c of a Unicode Braille character.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def curve(values: Sequence[float], width: int = 60, height: int = 10) -> str:
    """Draw ``values`` from left to right; each column of dots is the mean of some values. The scale is at the left."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return ""
    columns = min(2 * width, len(finite))
    cuts = [len(finite) * i // columns for i in range(columns + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    rows, cells = 4 * height, [[0] * width for _ in range(height)]
    for i, mean in enumerate(means):
        column = i * (2 * width - 1) // max(1, columns - 1)
        row = round((high - mean) / (high - low) * (rows - 1)) if high > low else rows - 1
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    lines = ["".join(chr(0x2800 + cell) for cell in line).rstrip("\u2800") for line in cells]
    labels = [f"{high:8.3g}", *[" " * 8] * (height - 2), f"{low:8.3g}"]
    return "\n".join(f"{label} │{line}" for label, line in zip(labels, lines, strict=True))
