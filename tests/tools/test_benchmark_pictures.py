"""The roofline, and the colours of algorithms."""

from __future__ import annotations

import re

from test_benchmark import example

from convdispatch.tools.benchmark.pages.page import packaged, render
from convdispatch.tools.benchmark.pages.plots import FAMILIES, colours, roofline
from convdispatch.tools.benchmark.summary import lines

FAST = {"float32": {name: {"rate": 1e12, "how": "fast"} for name in ("flops", "bandwidth")}}

# --- the roofline ----------------------------------------------------------------------------------------------------


def places(svg: str) -> list[tuple[float, float, str]]:
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>([^<]*)', svg)
    return [(float(x), float(y), title) for x, y, title in found]


def test_the_roofline_has_each_problem_below_or_above_its_ceiling():
    every = lines(example())
    svg = roofline(example(), every, colours(["a.one", "b.one"]))
    marks = places(svg)
    assert len(marks) == len({line.measured.problem for line in every})
    by_intensity = sorted(every, key=lambda line: line.measured.flops / line.measured.traffic)
    titles = [title for _, _, title in sorted(marks)]
    assert [title.split()[1] for title in titles] == [line.layer.name for line in by_intensity]
    fastest = max(every, key=lambda line: line.gflops)
    assert min(marks, key=lambda mark: mark[1])[2].split()[1] == fastest.layer.name, "faster stands higher"
    ceiling = re.search(r'<polyline class="ceiling" points="([^"]+)"', svg)[1]
    heights = [float(point.split(",")[1]) for point in ceiling.split()]
    assert heights[0] >= heights[1] == heights[2], "memory bounds on the left, arithmetic on the right"
    assert "multiply-add, float32: 1 GFLOP/s" in svg


def test_an_algorithm_has_one_colour_on_all_pages():
    few, many = colours(["winograd.f4x3"]), colours(["acme.x", "fft.tiled", "im2col", "winograd.f2x3"])
    assert few["winograd"] == many["winograd"]
    assert len(set(many.values())) == 4
    assert len({colours([f"{name}.x"])[name] for name in FAMILIES}) == len(FAMILIES)
    assert all(css.removeprefix("var(").removesuffix(")") + ":" in packaged("page.css") for css in many.values())


def test_what_is_unknown_stands_in_the_legend():
    report = example()
    assert "unknown, too few candidates" not in render(report)
    next(iter(report.measured.values())).rows = []
    assert "unknown, too few candidates" in render(report)
