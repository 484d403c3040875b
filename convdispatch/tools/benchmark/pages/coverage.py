"""Draws where a device's gaps are: geometry against the share of the measured roofline, a panel for each kind of layer.

A cell holds the problems of some output pixels and some channels; its number is the geometric mean of their shares of
the roofline. What nobody measured is an empty cell: a gap in knowledge, beside the gaps in speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from ..summary import TYPES, Line, geomean
from .figures import channels, count, pixels

PIXELS = (1, 64, 256, 1024, 4096, 16384, 65536, 262144, 1 << 40)
CHANNELS = (1, 8, 32, 128, 512, 1 << 40)
"""Bounds of a cell: from one, included, to the next, excluded."""
CELLS = (len(PIXELS) - 1, len(CHANNELS) - 1)
WIDE, HIGH, LEFT, TOP, GAP, ACROSS = 46, 22, 52, 26, 18, 2
Cells = dict[tuple[int, int], list[Line]]


def shares(every: Sequence[Line]) -> dict[str, Cells]:
    """Kind of layer to its cells, (place by pixels, place by channels), each with the distinct lines in it."""
    found: dict[str, Cells] = {}
    distinct = {line.measured.problem: line for line in every if line.fraction is not None}.values()
    for kind in TYPES:
        cells: Cells = {}
        for line in distinct:
            if line.kind == kind:
                cells.setdefault((_place(pixels(line), PIXELS), _place(_channels(line), CHANNELS)), []).append(line)
        if cells:
            found[kind] = cells
    return found


def coverage_map(every: Sequence[Line]) -> str:
    """The SVG; empty without a line that has a share."""
    panels = shares(every)
    if not panels:
        return ""
    wide, high = LEFT + CELLS[0] * WIDE, TOP + CELLS[1] * HIGH + 34
    rows = math.ceil(len(panels) / ACROSS)
    size = f"{ACROSS * wide + GAP} {rows * (high + GAP)}"
    parts = [f'<svg viewBox="0 0 {size}" role="img" aria-label="Geometry against share of the roofline">']
    for number, (kind, cells) in enumerate(panels.items()):
        row, column = divmod(number, ACROSS)
        parts.append(
            f'<g transform="translate({column * (wide + GAP)} {row * (high + GAP)})">{_panel(kind, cells)}</g>'
        )
    return "".join([*parts, "</svg>"])


def _panel(kind: str, cells: Cells) -> str:
    parts = [f'<text x="{LEFT}" y="14" font-weight="600">{escape(kind)}</text>']
    for y in range(CELLS[1]):
        top = TOP + (CELLS[1] - 1 - y) * HIGH
        parts.append(f'<text x="{LEFT - 6}" y="{top + 15}" text-anchor="end">{_range(CHANNELS, y)}</text>')
        for x in range(CELLS[0]):
            parts.append(_cell(LEFT + x * WIDE, top, cells.get((x, y), [])))
    bottom = TOP + CELLS[1] * HIGH
    for x in range(CELLS[0]):
        middle = LEFT + (x + 0.5) * WIDE
        parts.append(f'<text x="{middle}" y="{bottom + 14}" text-anchor="middle">{_range(PIXELS, x)}</text>')
    parts.append(f'<text x="{LEFT}" y="{bottom + 29}">output pixels x batch; upward: channels</text>')
    return "".join(parts)


def _cell(x: float, y: float, held: list[Line]) -> str:
    box = f'x="{x + 1}" y="{y + 1}" width="{WIDE - 2}" height="{HIGH - 2}" rx="2"'
    if not held:
        return f'<rect class="unknown" {box}><title>nothing measured</title></rect>'
    share = geomean(line.fraction for line in held) or 0.0
    colour = "low" if share < 0.25 else "middle" if share < 0.5 else "high"
    worst = sorted(held, key=lambda line: line.fraction or 0.0)[:5]
    title = "\n".join(f"{line.fraction:.0%} {line.measured.problem}: {line.verdict}" for line in worst)
    if len(held) > len(worst):
        title += f"\nand {len(held) - len(worst)} more"
    place = f'x="{x + WIDE / 2}" y="{y + 15}" text-anchor="middle"'
    return (
        f'<g class="cell"><rect {box} style="fill:var(--{colour})"/>'
        f"<text {place}>{share:.0%}</text><title>{escape(title)}</title></g>"
    )


def _channels(line: Line) -> float:
    """Of one group; a depthwise layer's groups are its channels."""
    return line.problem.ic if line.kind == "depthwise" else channels(line)


def _place(value: float, bounds: Sequence[int]) -> int:
    return next(i for i, (low, high) in enumerate(pairwise(bounds)) if low <= max(1, value) < high)


def _range(bounds: Sequence[int], place: int) -> str:
    if place == len(bounds) - 2:
        return f"{_short(bounds[place])}+"
    return f"<{_short(bounds[place + 1])}".replace("<", "&lt;")


def _short(value: int) -> str:
    return count(2 ** max(0, round(math.log2(value))))
