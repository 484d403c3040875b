"""The page: the map of geometry against winner, gaps, types; and no folder's name."""

from __future__ import annotations

import re
from html import unescape

import pytest
from reports import ENVIRONMENT

from convdispatch.api.problem import ConvProblem
from convdispatch.tools.benchmark.pages.figures import colours, geometry_map
from convdispatch.tools.benchmark.pages.page import render
from convdispatch.tools.benchmark.report import Choice, Layer, Measured, Report, Row, placeless
from convdispatch.tools.benchmark.summary import gaps, lines

ROOFS = {"float32": {"flops": {"rate": 1e12, "how": "a"}, "bandwidth": {"rate": 1e15, "how": "b"}, "matrix": None}}
KINDS = {
    "mb1ic64ih16oc64kh1": ("circle", "implicitgemm.pointwise", 0.9),
    "mb1ic64ih34oc64kh3": ("rect", "winograd.f4x3", 0.4),
    "mb1ic16ih36oc16kh5": ("path", "fft.tiled", 0.25),
    "g32mb1ic32ih34oc32kh3": ("path", "im2col", 0.1),
}
"""Problem to its mark, its winner and its fraction of the roofline."""


def report() -> Report:
    layers, found = [], {}
    for number, (text, (_, solver, fraction)) in enumerate(KINDS.items()):
        problem = ConvProblem.parse(text)
        ms = problem.flops / 1e12 * 1e3 / fraction
        best = Choice(solver, {}, "fastest", ms, ms, ms, 9)
        row = Row(solver, {}, "measured", "", ms, ms, ms, 9, 1e-7, 0, 5.0, True)
        rivals = [Row(name, {}, "measured", "", 2 * ms, ms, ms, 9) for name in ("other.one", "other.two")]
        found[str(problem)] = Measured(str(problem), problem.flops, 1000, best, best, [row, *rivals])
        layers.append(Layer("alexnet", f"layer{number}", str(problem)))
    return Report(layers, ENVIRONMENT, {"peers": {}}, ROOFS, found)


def test_the_map_shows_each_geometry_its_winner_and_its_fraction():
    every = lines(report())
    colour = colours([line.winner for line in every])
    assert len(set(colour.values())) == len(KINDS)
    svg = geometry_map(every, colour)
    marks = re.findall(
        r'<(circle|rect|path) ([^>]*) style="fill:([^;]+);[^"]*fill-opacity:([\d.]+)"><title>(.*?)</title>', svg
    )
    assert len(marks) == len(KINDS)
    for (shape, _, fill, opacity, title), (want, solver, fraction) in zip(marks, KINDS.values()):
        assert shape == want
        assert fill == colour[solver.partition(".")[0]]
        assert float(opacity) == pytest.approx(fraction, abs=0.01)
        assert solver in title
        assert f"{fraction:.0%} of the roofline" in title


def test_more_pixels_stand_to_the_right_and_more_channels_above():
    every = lines(report())
    svg = geometry_map(every, colours([line.winner for line in every]))
    circle = re.search(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    square = re.search(r'<rect x="([\d.]+)" y="([\d.]+)"', svg)
    diamond, triangle = re.findall(r'<path d="M([\d.]+) ([\d.]+)', svg)
    assert float(circle[1]) < float(square[1]), "16 x 16 pixels against 32 x 32"
    assert float(circle[2]) < float(diamond[1]) < float(triangle[1]), "64 channels, 16, and one a group"
    assert geometry_map([], {}) == ""


def test_gaps_and_types_and_algorithms_are_listed():
    page = unescape(re.sub(r"<[^>]+>", " ", render(report()).replace("<wbr>", "")))
    low = [line.winner for line in gaps(lines(report()))]
    assert set(low) == {"winograd.f4x3", "fft.tiled", "im2col"}
    after = page.partition("Gaps: below")[2]
    assert all(winner in after for winner in low)
    kinds = page.partition("Types of layer")[2].partition("Where each algorithm wins")[0]
    assert all(kind in kinds for kind in ("1x1", "3x3", "depthwise"))
    by_net = page.partition("Algorithms, net by net")[2].partition("Layers")[0]
    assert all(name in by_net for name in ("implicitgemm", "winograd", "fft", "im2col"))


def test_no_folder_is_named():
    assert placeless("/home/me/registry.yaml:11") == "registry.yaml:11"
    assert placeless("it ended with status 1: No such file: '/home/me/x.so'") == (
        "it ended with status 1: No such file: 'x.so'"
    )
