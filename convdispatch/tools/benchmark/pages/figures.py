"""Draws a report's figures as inline SVG whose colours are the page's, so that they suit light and dark.

By hand and not with a plotting library: the page is then rendered where the device is, with nothing to install.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ..summary import Line, family

PALETTE = 8
"""Colours that the page's style sheet defines: ``--c0`` and on."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 960, 460, 70, 52, 16, 16
MARKS = {"1x1": "circle", "3x3": "square", "5x5 +": "diamond", "depthwise": "triangle"}


def colours(solvers: Sequence[str]) -> dict[str, str]:
    """A CSS colour for each algorithm, in the order of the names."""
    names = sorted({family(solver) for solver in solvers})
    return {name: f"var(--c{i % PALETTE})" for i, name in enumerate(names)}


def geometry_map(every: Sequence[Line], colour: dict[str, str]) -> str:
    """Output pixels against channels (both logarithmic): marker by kernel, colour by winner, filled by the fraction
    of the roofline. Empty without a measured layer."""
    points = list({line.measured.problem: line for line in every if line.ms}.values())
    if not points:
        return ""
    xs = [math.log2(pixels(line)) for line in points]
    ys = [math.log2(channels(line)) for line in points]
    (x0, x1), (y0, y1) = ((math.floor(min(v)) - 0.5, math.ceil(max(v)) + 0.5) for v in (xs, ys))
    span_x, span_y = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - x0) / (x1 - x0) * span_x, TOP + span_y - (y - y0) / (y1 - y0) * span_y

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Geometry against winner">']
    step = max(1, round((x1 - x0) / 12))
    for power in range(math.ceil(x0), math.floor(x1) + 1, step):
        px, _ = at(power, y0)
        parts.append(f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{TOP + span_y}"/>')
        parts.append(f'<text x="{px:.1f}" y="{TOP + span_y + 18}" text-anchor="middle">{count(power)}</text>')
    for power in range(math.ceil(y0), math.floor(y1) + 1):
        _, py = at(x0, power)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + span_x}" y1="{py:.1f}" y2="{py:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{count(power)}</text>')
    parts.append(f'<text x="{LEFT + span_x / 2}" y="{HEIGHT - 8}" text-anchor="middle">output pixels x batch</text>')
    middle = TOP + span_y / 2
    place = f'transform="translate(16 {middle}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {place}>geometric mean of channels in and out</text>")
    taken: dict[tuple[int, int], int] = {}
    for line, x, y in zip(points, xs, ys):
        px, py = at(x, y)
        place = (round(px / 12), round(py / 12))
        shift = taken[place] = taken.get(place, -1) + 1  # problems of one size stand side by side
        parts.append(_mark(line, px + 11 * shift, py, colour.get(family(line.winner), "var(--ink)")))
    return "".join([*parts, "</svg>"])


def _mark(line: Line, x: float, y: float, colour: str) -> str:
    fill = min(1.0, max(0.08, line.fraction or 0.08))
    shape = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7"',
        "square": f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12"',
        "diamond": f'<path d="M{x:.1f} {y - 8:.1f} l8 8 l-8 8 l-8 -8z"',
        "triangle": f'<path d="M{x:.1f} {y - 8:.1f} l8 14 l-16 0z"',
    }[MARKS[_kernel(line)]]
    share = "" if line.fraction is None else f", {line.fraction:.0%} of the roofline"
    title = escape(f"{line.layer.net} {line.layer.name} {line.problem.direction}: {line.verdict}{share}")
    style = f"fill:{colour};stroke:{colour};fill-opacity:{fill:.2f}"
    return f'{shape} style="{style}"><title>{title}</title></{shape[1:].split()[0]}>'


def _kernel(line: Line) -> str:
    if line.kind == "depthwise":
        return "depthwise"
    size = max(getattr(line.problem, "k" + axis) for axis in line.problem.axes)
    return "1x1" if size == 1 else "3x3" if size <= 3 else "5x5 +"


def pixels(line: Line) -> int:
    """Of all images' outputs."""
    p = line.problem
    return max(1, p.mb) * p.od * p.oh * p.ow


def channels(line: Line) -> float:
    """Geometric mean of those in and out, of one group."""
    return math.sqrt(line.problem.ic // line.problem.g * line.problem.oc / line.problem.g)


def count(power: int) -> str:
    """Two to that power in a few letters: ``64``, ``16k``."""
    value = 2**power if power >= 0 else 1
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if value >= size:
            return f"{value // size}{unit}"
    return str(value)
