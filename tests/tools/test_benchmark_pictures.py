"""The roofline, and time under each ceiling."""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import replace

from test_benchmark import example

from convdispatch.tools.benchmark.pages.page import packaged, render
from convdispatch.tools.benchmark.pages.plots import FAMILIES, ceilings, colours, roofline
from convdispatch.tools.benchmark.summary import lines

FAST = {"float32": {name: {"rate": 1e12, "how": "fast"} for name in ("flops", "bandwidth")}}

# --- the roofline, and candidates' time against error and workspace ---------------------------------------------------


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


# --- time under a ceiling of the workspace ---------------------------------------------------------------------------


def test_a_staircase_falls_where_another_candidate_fits():
    """One net of two layers, one of which runs twice: its sums are 9, 7 and 4 ms from 0, 1 and 4 MiB on."""
    report = example()
    every = [line for line in lines(report) if line.layer.name == "L0"][:1] * 2
    every = [copy.deepcopy(line) for line in every]
    timed = [[(0, 5.0), (1 << 20, 3.0)], [(0, 2.0), (4 << 20, 0.5), (8 << 20, 1.0)]]
    for line, rows, count in zip(every, timed, (1, 2), strict=True):
        object.__setattr__(line, "layer", replace(line.layer, count=count))
        line.measured.rows = [replace(line.measured.rows[0], workspace=size, median_ms=ms) for size, ms in rows]
    drawn = ceilings(every)
    name = f"{every[0].layer.net} {every[0].problem.direction}"
    told = re.findall(r"<title>([^<]*)</title>", drawn)
    steps = "2.25 times, from 0.000977 MiB", "1.75 times, from 1 MiB", "1 times, from 4 MiB"
    assert told == [name, *(f"{name}: {step} on" for step in steps)]
    (points,) = re.findall(r'polyline class="ceiling" points="([^"]*)"', drawn)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    assert len(places) == 5
    for before, after in itertools.pairwise(places):
        assert before[0] == after[0] or before[1] == after[1], "a staircase runs level or straight down"
        assert after[0] >= before[0]
        assert after[1] >= before[1]
    assert name in render(report)


def test_a_layer_without_a_time_leaves_its_net_out():
    report = example()
    every = lines(report)
    for line in every:
        line.measured.rows = [replace(row, median_ms=None) for row in line.measured.rows]
    assert ceilings(every) == ""
