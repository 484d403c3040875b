"""A plot with two logarithmic axes as inline SVG, whose colours are the page's, so that they suit light and dark; and
two pictures of a report by it: the roofline, and time against workspace.

By hand and not with a plotting library: the page is then rendered where the device is, with nothing to install.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """A point: where, what it is, its colour, and how full it is drawn."""

    x: float
    y: float
    title: str
    colour: str
    fill: float = 0.6


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: its title, its base (2 or 10), and how a number at it is written."""

    title: str
    base: int = 10
    write: Callable[[float], str] = lambda value: f"{value:.0e}" if value < 1e-3 or value >= 1e6 else f"{value:g}"


def plot(marks: Sequence[Mark], x: Axis, y: Axis, lines: Mapping[str, Sequence[tuple[float, float]]] = {}) -> str:
    """The marks, with ``lines`` under them by name; marks of one place stand side by side. Empty without marks."""
    if not marks:
        return ""
    xs = _Scale([mark.x for mark in marks], x, LEFT, WIDTH - RIGHT)
    heights = [*(mark.y for mark in marks), *(height for line in lines.values() for _, height in line)]
    ys = _Scale(heights, y, HEIGHT - BOTTOM, TOP)
    label = escape(f"{y.title} against {x.title}")
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
    low, high = HEIGHT - BOTTOM, TOP
    for value, position in xs.ticks():
        parts.append(f'<line class="grid" x1="{position:.1f}" x2="{position:.1f}" y1="{high}" y2="{low}"/>')
        parts.append(f'<text x="{position:.1f}" y="{low + 18}" text-anchor="middle">{x.write(value)}</text>')
    for value, position in ys.ticks():
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{position:.1f}" y2="{position:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{position + 4:.1f}" text-anchor="end">{y.write(value)}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.title)}</text>'
    )
    middle = f'transform="translate(16 {(low + high) / 2}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {middle}>{escape(y.title)}</text>")
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
    """A logarithmic scale from values to pixels, with whole powers of the base at both ends."""

    def __init__(self, values: Iterable[float], axis: Axis, first: float, last: float) -> None:
        self._low, self._high = _decades(values, axis.base)
        self._base, self._first, self._last = axis.base, first, last

    def at(self, value: float) -> float:
        share = (math.log(value, self._base) - self._low) / (self._high - self._low)
        return self._first + min(1.0, max(0.0, share)) * (self._last - self._first)

    def ticks(self) -> Iterable[tuple[float, float]]:
        step = max(1, round((self._high - self._low) / 12))
        for power in range(self._low, self._high + 1, step):
            value = float(self._base) ** power
            yield value, self.at(value)


def _decades(values: Iterable[float], base: int = 10) -> tuple[int, int]:
    """The exponents of the whole powers of the base between which all values lie."""
    powers = [math.log(value, base) for value in values]
    return math.floor(min(powers) - 0.01), math.ceil(max(powers) + 0.01)


def _drawn(mark: Mark, x: float, y: float) -> str:
    style = f"fill:{mark.colour};stroke:{mark.colour};fill-opacity:{mark.fill:.2f}"
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
    return plot(marks, Axis("operations a byte that must move"), Axis("GFLOP/s of the direct sum"), lines)


def ceilings(every: Sequence[Line]) -> str:
    """The time of each net's convolutions under each ceiling of the workspace, over that without one: a staircase."""
    nets: dict[str, list[tuple[int, list[tuple[int, float]]]]] = {}
    for line in every:
        timed = ((row.workspace, row.median_ms) for row in line.measured.rows)
        rows = [(size, ms) for size, ms in timed if size is not None and ms]
        nets.setdefault(f"{line.layer.net} {line.problem.direction}", []).append((line.layer.count, rows))
    marks, lines = [], {}
    for name, layers in nets.items():
        steps = list[tuple[float, float]]()
        for limit in sorted({size for _, rows in layers for size, _ in rows}):
            best = (min((ms for size, ms in rows if size <= limit), default=math.inf) for _, rows in layers)
            total = sum(count * ms for (count, _), ms in zip(layers, best, strict=True))
            if total < (steps[-1][1] if steps else math.inf):
                steps.append((max(limit, 1024) / 2**20, total))
        steps = [(size, total / steps[-1][1]) for size, total in steps]
        for size, ratio in steps:
            marks.append(Mark(size, ratio, f"{name}: {ratio:.3g} times, from {size:.3g} MiB on", UNKNOWN))
        corners = [(next_size, ratio) for (_, ratio), (next_size, _) in itertools.pairwise(steps)]
        if steps:
            lines[name] = sorted([*steps, *corners], key=lambda point: (point[0], -point[1]))
    x = Axis("ceiling of the workspace, MiB (1 KiB and less at the left)")
    return plot(marks, x, Axis("time over that without a ceiling", 2), lines)
