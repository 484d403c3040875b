"""A plot with two logarithmic axes as inline SVG, whose colours are the page's, so that they suit light and dark; and
the roofline of a report by it.

By hand and not with a plotting library: the page is then rendered where the device is, with nothing to install.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from zlib import crc32

from ..report import Report
from ..summary import Line, family

FAMILIES = ("im2col", "winograd", "fft", "nvidia", "implicitgemm", "onednn", "amx", "cudnn", "int8", "exact")
"""The algorithms in the order of the style sheet's colours ``--c0``, ``--c1``, ...; each has the same colour on all
pages."""
OTHERS = 3
"""The number of further colours, one of which each other plugin gets by its name."""
WIDTH, HEIGHT = 960, 460  # pixels of a plot
LEFT, BOTTOM, TOP, RIGHT = 76, 52, 16, 30  # pixels of a plot's margins
UNKNOWN = "var(--ink)"
"""The colour of a solver whose algorithm is unknown."""


def colours(solvers: Iterable[str]) -> dict[str, str]:
    """A CSS colour for each algorithm, the same whatever else is on a page."""
    return {name: f"var(--c{_colour_number(name)})" for name in sorted({family(solver) for solver in solvers})}


def _colour_number(name: str) -> int:
    return FAMILIES.index(name) if name in FAMILIES else len(FAMILIES) + crc32(name.encode()) % OTHERS


@dataclass(frozen=True)
class Mark:
    """A point: where, what it is, and its colour."""

    x: float
    y: float
    title: str
    colour: str


def plot(marks: Sequence[Mark], x: str, y: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """The marks, on axes with the titles ``x`` and ``y``, with ``lines`` under them by name; marks of one
    place stand side by side. Empty without marks."""
    if not marks:
        return ""
    xs = _Scale([mark.x for mark in marks], LEFT, WIDTH - RIGHT)
    heights = [*(mark.y for mark in marks), *(height for line in lines.values() for _, height in line)]
    ys = _Scale(heights, HEIGHT - BOTTOM, TOP)
    label = escape(f"{y} against {x}")
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
    low, high = HEIGHT - BOTTOM, TOP
    for value, position in xs.ticks():
        parts.append(f'<line class="grid" x1="{position:.1f}" x2="{position:.1f}" y1="{high}" y2="{low}"/>')
        parts.append(f'<text x="{position:.1f}" y="{low + 18}" text-anchor="middle">{_written(value)}</text>')
    for value, position in ys.ticks():
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{position:.1f}" y2="{position:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{position + 4:.1f}" text-anchor="end">{_written(value)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    middle = f'transform="translate(16 {(low + high) / 2}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {middle}>{escape(y)}</text>")
    for name, line in lines.items():
        points = " ".join(f"{xs.at(px):.1f},{ys.at(py):.1f}" for px, py in line)
        parts.append(f'<polyline class="ceiling" points="{points}"><title>{escape(name)}</title></polyline>')
        px, py = line[-1]
        parts.append(f'<text x="{xs.at(px):.1f}" y="{ys.at(py) - 6:.1f}" text-anchor="end">{escape(name)}</text>')
    marks_in_cell: dict[tuple[int, int], int] = {}
    for mark in marks:
        px, py = xs.at(mark.x), ys.at(mark.y)
        cell = (round(px / 12), round(py / 12))
        shift = marks_in_cell[cell] = marks_in_cell.get(cell, -1) + 1
        parts.append(_drawn(mark, px + 5 * shift, py))
    return "".join([*parts, "</svg>"])


class _Scale:
    """A logarithmic scale from values to pixels, with whole powers of ten at both ends."""

    def __init__(self, values: Iterable[float], first: float, last: float) -> None:
        self._low, self._high = _decades(values)
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + min(1.0, max(0.0, share)) * (self._last - self._first)

    def ticks(self) -> Iterable[tuple[float, float]]:
        step = max(1, round((self._high - self._low) / 12))
        for power in range(self._low, self._high + 1, step):
            value = 10.0**power
            yield value, self.at(value)


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """The exponents of the whole powers of ten between which all values lie."""
    powers = [math.log10(value) for value in values]
    return math.floor(min(powers) - 0.01), math.ceil(max(powers) + 0.01)


def _written(value: float) -> str:
    return f"{value:.0e}" if value < 1e-3 or value >= 1e6 else f"{value:g}"


def _drawn(mark: Mark, x: float, y: float) -> str:
    style = f"fill:{mark.colour};stroke:{mark.colour};fill-opacity:0.6"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" style="{style}"><title>{escape(mark.title)}</title></circle>'


def roofline(report: Report, every: Sequence[Line], colour: Mapping[str, str]) -> str:
    """Speed against operations a byte: how far below the measured ceilings a layer is, and which of them bounds it."""
    points = {line.measured.problem: line for line in every if line.gflops and line.measured.traffic}.values()
    marks = [
        Mark(
            line.measured.flops / line.measured.traffic,
            line.gflops,
            f"{line.layer.net} {line.layer.name} {line.problem.direction}: {line.verdict}, {line.gflops:,.0f} GFLOP/s",
            colour.get(family(line.winner), UNKNOWN),
        )
        for line in points
    ]
    lines = {}
    for dtype, roof in report.roofs.items() if marks else ():
        for kind, name_of_ceiling in (("flops", "multiply-add"), ("matrix", "matrix units")):
            if roof.get(kind):
                rate, bandwidth = roof[kind]["rate"] / 1e9, roof["bandwidth"]["rate"] / 1e9
                low, high = (10.0**limit for limit in _decades([mark.x for mark in marks]))
                bend = min(max(rate / bandwidth, low), high)
                name = f"{name_of_ceiling}, {dtype}: {rate:,.0f} GFLOP/s"
                lines[name] = [(intensity, min(rate, intensity * bandwidth)) for intensity in (low, bend, high)]
    return plot(marks, "operations a byte that must move", "GFLOP/s of the direct sum", lines)
