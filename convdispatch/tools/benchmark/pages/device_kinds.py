"""Turns the reports of several kinds of device into one HTML page: the kinds side by side, then the page of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....measurement.conformance.page import labels
from ..quiet import busy, disturbed, signs
from ..report import Report
from ..summary import Line, geomean, lines
from . import page
from .terminal import interval, number, share


@dataclass(frozen=True)
class Side:
    """One kind of device: its report, and its layers' figures by net, layer and problem."""

    report: Report
    lines: dict[tuple[str, str, str], Line]
    label: str

    @property
    def device(self) -> dict[str, Any]:
        return self.report.environment["device"]

    @property
    def busy(self) -> str:
        """How other work disturbed the run, in words; empty where none did."""
        return busy(signs(self.report))

    @property
    def fraction(self) -> float | None:
        """Of the roofline, geometric mean."""
        return geomean(line.fraction for line in self.lines.values())

    def is_disturbed(self, line: Line) -> bool:
        """Whether other work ran beside this layer."""
        return disturbed(line.measured, self.device)


def write_html(reports: Sequence[Report], path: Path) -> None:
    """Write the page."""
    path.write_text(render(reports), encoding="utf-8")


def render(reports: Sequence[Report]) -> str:
    """The page's text; nothing in it is from elsewhere."""
    from mako.template import Template

    sides = [_side(*each) for each in zip(reports, labels([report.environment["device"] for report in reports]))]
    every = rows(sides)
    template = Template(page.packaged("kinds.html.mako"), strict_undefined=True, default_filters=["h"])
    return template.render(
        sides=sides,
        rows=every,
        sums=sums(every),
        pages=[page.render(report) for report in reports],
        sheet=page.packaged("page.css"),
        script=page.packaged("page.js"),
        number=number,
        interval=interval,
        share=share,
    )


def _side(report: Report, label: str) -> Side:
    return Side(report, {(line.layer.net, line.layer.name, line.layer.problem): line for line in lines(report)}, label)


@dataclass(frozen=True)
class Row:
    """One layer: every kind's line, None where it was not measured; and the place of the fastest of those with a time,
    None where that is one alone."""

    net: str
    name: str
    problem: str
    found: list[Line | None]
    least: int | None


def rows(sides: Sequence[Side]) -> list[Row]:
    """Each layer on every kind of device."""
    made = []
    for key in dict.fromkeys(key for side in sides for key in side.lines):
        found = [side.lines.get(key) for side in sides]
        made.append(Row(*key, found, _least([line and line.ms for line in found])))
    return made


def sums(every: Sequence[Row]) -> list[tuple[str, str, str, list[float], int | None]]:
    """By net and direction the milliseconds on each kind, of the layers that all have a time for; how many these are.

    ``("vgg_a", "fwd", "9 of 9", [31.2, 4.1], 1)``; the last is the place of the fastest.
    """
    groups: dict[tuple[str, str], list[list[tuple[float | None, int]]]] = {}
    for row in every:
        line = next(line for line in row.found if line is not None)
        times = [(each and each.ms, line.layer.count) for each in row.found]
        groups.setdefault((row.net, line.problem.direction), []).append(times)
    made = []
    for key, group in groups.items():
        timed = [times for times in group if all(ms for ms, _ in times)]
        total = [sum((ms or 0) * count for ms, count in column) for column in zip(*timed)]
        made.append((*key, f"{len(timed)} of {len(group)}", total, _least(total)))
    return made


def _least(times: Sequence[float | None]) -> int | None:
    known = [(ms, place) for place, ms in enumerate(times) if ms]
    return min(known)[1] if len(known) > 1 else None
