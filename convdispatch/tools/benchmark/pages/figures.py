"""Where each algorithm wins, by geometry, and the colour of each algorithm on every page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from zlib import crc32

from ..summary import Line, family
from .plots import UNKNOWN, Axis, Mark, plot

FAMILIES = ("im2col", "winograd", "fft", "nvidia", "implicitgemm", "onednn", "amx", "cudnn", "int8")
"""Algorithms in the order of the colours of the page's style sheet, ``--c0`` and on: one colour on all pages."""
OTHERS = 3
"""Further colours, which other plugins share by their names."""
MARKS = {"1x1": "circle", "3x3": "square", "5x5 +": "diamond", "depthwise": "triangle"}


def colours(solvers: Sequence[str]) -> dict[str, str]:
    """A CSS colour for each algorithm, the same whatever else is on a page."""
    return {name: f"var(--c{_place(name)})" for name in sorted({family(solver) for solver in solvers})}


def _place(name: str) -> int:
    return FAMILIES.index(name) if name in FAMILIES else len(FAMILIES) + crc32(name.encode()) % OTHERS


def geometry_map(every: Sequence[Line], colour: dict[str, str]) -> str:
    """Output pixels against channels (both logarithmic): marker by kernel, colour by winner, filled by the fraction
    of the roofline. Empty without a measured layer."""
    marks = [
        Mark(pixels(line), channels(line), _title(line), colour.get(family(line.winner), UNKNOWN),
             min(1.0, max(0.08, line.fraction or 0.08)), MARKS[_kernel(line)])
        for line in {line.measured.problem: line for line in every if line.ms}.values()
    ]  # fmt: skip
    across = Axis("output pixels x batch", 2, count)
    return plot(marks, across, Axis("geometric mean of channels in and out", 2, count))


def _title(line: Line) -> str:
    share = "" if line.fraction is None else f", {line.fraction:.0%} of the roofline"
    return f"{line.layer.net} {line.layer.name} {line.problem.direction}: {line.verdict}{share}"


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


def count(value: float) -> str:
    """A number in a few letters: ``64``, ``16k``."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
