"""Draws the SVGs of this folder from their texts: ``python docs/design/drawings/draw.py``.

A text has a title, rows of boxes, and arrows:

    A warm call: one look-up, one launch

    conv: calls/conv.py | the weights' last call
    cache: calls/call_cache.py | by all that decides     place: device/places/host.py | launches

    conv > cache
    conv > place: where nothing changed
    cache - place

A row is a line; boxes of a row are separated by at least three spaces. A box has a name for arrows, what it stands
for (a module or a folder of ``convdispatch`` or ``plugins``), and what that does. ``>`` is an arrow, ``-`` a dashed
one, for what happens sometimes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

BOX_HEIGHT = 54
ROW_HEIGHT = 96
GAP = 28
MARGIN = 12
NAME_WIDTH = 8.6
"""Width of a character of a box's name, in SVG's units; the text is monospaced."""
WORD_WIDTH = 6.4
"""Mean width of a character of what a box says."""
LEAST_WIDTH = 820
BOX = re.compile(r"(?P<key>\w+): (?P<module>[\w/.*]+) \| (?P<says>.+)")
ARROW = re.compile(r"(?P<start>\w+) (?P<kind>[>-]) (?P<end>\w+)(?:: (?P<label>.+))?")
STYLE = """
    text { font: 14px system-ui, sans-serif; fill: #1c2733; text-anchor: middle }
    .module { font-family: ui-monospace, monospace; font-weight: 600 }
    .says { font-size: 12px; fill: #4a5a6a }
    rect { fill: #eef3f8; stroke: #5b7c99; rx: 6 }
    path { stroke: #5b7c99; fill: none; marker-end: url(#end) }
    .sometimes { stroke-dasharray: 5 4 }
    marker path { fill: #5b7c99; stroke: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #e3eaf1 } .says { fill: #a9b8c6 } rect { fill: #22303c; stroke: #7fa3c2 }
      path { stroke: #7fa3c2 } marker path { fill: #7fa3c2 }
    }
"""


@dataclass
class Box:
    """A box at its place in the drawing."""

    module: str
    says: str
    left: float = 0
    top: float = 0

    @property
    def width(self) -> float:
        return max(len(self.module) * NAME_WIDTH, len(self.says) * WORD_WIDTH) + 20

    @property
    def middle(self) -> float:
        return self.left + self.width / 2

    def svg(self) -> str:
        return (
            f'  <rect x="{self.left:.0f}" y="{self.top:.0f}" width="{self.width:.0f}" height="{BOX_HEIGHT}"/>'
            f'<text class="module" x="{self.middle:.0f}" y="{self.top + 22:.0f}">{escape(self.module)}</text>\n'
            f'  <text class="says" x="{self.middle:.0f}" y="{self.top + 42:.0f}">{escape(self.says)}</text>'
        )


def draw(text: str) -> str:
    """The SVG of a drawing's text; ValueError names a line that is neither a row nor an arrow."""
    title, *lines = [line for line in text.splitlines() if line.strip()]
    rows: list[list[Box]] = []
    boxes: dict[str, Box] = {}
    arrows: list[re.Match[str]] = []
    for line in lines:
        parts = [BOX.fullmatch(part) for part in re.split(r" {3,}", line.strip())]
        if arrow := ARROW.fullmatch(line.strip()):
            arrows.append(arrow)
        elif all(parts):
            rows.append([Box(part["module"], part["says"]) for part in parts if part])
            boxes.update(zip([part["key"] for part in parts if part], rows[-1], strict=True))
        else:
            raise ValueError(f"a row of boxes or an arrow is expected, got {line!r}")
    widths = [sum(box.width for box in row) + GAP * (len(row) - 1) for row in rows]
    width = max(LEAST_WIDTH, *widths) + 2 * MARGIN
    for number, (row, taken) in enumerate(zip(rows, widths, strict=True)):
        left = (width - taken) / 2
        for box in row:
            box.left, box.top = left, MARGIN + number * ROW_HEIGHT
            left += box.width + GAP
    height = MARGIN * 2 + ROW_HEIGHT * (len(rows) - 1) + BOX_HEIGHT
    drawn = [_arrow(boxes[each["start"]], boxes[each["end"]], each["kind"], each["label"]) for each in arrows]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">\n'
        f"  <style>{STYLE}  </style>\n"
        '  <defs><marker id="end" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0 0 L9 4 L0 8 z"/></marker></defs>\n'
        + "\n".join([*(box.svg() for box in boxes.values()), *drawn])
        + "\n</svg>\n"
    )


def _arrow(start: Box, end: Box, kind: str, label: str | None) -> str:
    """From a box's lower edge to another's upper one; between boxes of a row from side to side."""
    if start.top == end.top:
        right = start.left < end.left
        x, y = start.left + start.width * right, start.top + BOX_HEIGHT / 2
        to_x, to_y = end.left + end.width * (not right), y
    else:
        down = start.top < end.top
        reach = min(start.width, end.width) / 2 - 16
        x = start.middle + max(-start.width / 2 + 16, min(start.width / 2 - 16, (end.middle - start.middle) / 2))
        to_x = end.middle + max(-end.width / 2 + 16, min(end.width / 2 - 16, x - end.middle))
        if abs(start.middle - end.middle) <= reach:
            x = to_x = (start.middle + end.middle) / 2
        y, to_y = start.top + BOX_HEIGHT * down, end.top + BOX_HEIGHT * (not down)
    dashes = ' class="sometimes"' if kind == "-" else ""
    path = f'  <path{dashes} d="M{x:.0f} {y:.0f} L{to_x:.0f} {to_y:.0f}"/>'
    if label:
        x, y = (x + to_x) / 2 + len(label) * WORD_WIDTH / 2 + 8, (y + to_y) / 2 + 4
        path += f'<text class="says" x="{x:.0f}" y="{y:.0f}">{escape(label)}</text>'
    return path


if __name__ == "__main__":
    for source in sorted(Path(__file__).parent.glob("*.txt")):
        source.with_suffix(".svg").write_text(draw(source.read_text()))
        print(source.with_suffix(".svg").name)
