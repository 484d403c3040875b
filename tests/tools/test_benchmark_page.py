"""The page: gaps, and no folder's name."""

from __future__ import annotations

import re
from html import unescape

from reports import ENVIRONMENT

from convdispatch.api.problem import ConvProblem
from convdispatch.tools.benchmark.pages.page import render
from convdispatch.tools.benchmark.report import Choice, Layer, Measured, Report, Row, without_folders
from convdispatch.tools.benchmark.summary import gaps, lines

ROOFS = {"float32": {"flops": {"rate": 1e12, "how": "a"}, "bandwidth": {"rate": 1e15, "how": "b"}, "matrix": None}}
KINDS = {
    "mb1ic64ih16oc64kh1": ("implicitgemm.pointwise", 0.9),
    "mb1ic64ih34oc64kh3": ("winograd.f4x3", 0.4),
    "mb1ic16ih36oc16kh5": ("fft.tiled", 0.25),
    "g32mb1ic32ih34oc32kh3": ("im2col", 0.1),
}
"""Problem to its winner and its fraction of the roofline."""


def report() -> Report:
    layers, found = [], {}
    for number, (text, (solver, fraction)) in enumerate(KINDS.items()):
        problem = ConvProblem.parse(text)
        ms = problem.flops / 1e12 * 1e3 / fraction
        best = Choice(solver, {}, "fastest", ms, ms, ms, 9)
        row = Row(solver, {}, "measured", "", ms, ms, ms, 9, 1e-7, 0, 5.0, True)
        rivals = [Row(name, {}, "measured", "", 2 * ms, ms, ms, 9) for name in ("other.one", "other.two")]
        found[str(problem)] = Measured(str(problem), problem.flops, 1000, best, best, [row, *rivals])
        layers.append(Layer("alexnet", f"layer{number}", str(problem)))
    return Report(layers, ENVIRONMENT, {"peers": {}}, ROOFS, found)


def test_gaps_are_listed():
    page = unescape(re.sub(r"<[^>]+>", " ", render(report()).replace("<wbr>", "")))
    low = [line.winner for line in gaps(lines(report()))]
    assert set(low) == {"winograd.f4x3", "fft.tiled", "im2col"}
    after = page.partition("Gaps: below")[2]
    assert all(winner in after for winner in low)


def test_no_folder_is_named():
    assert without_folders("/home/me/registry.yaml:11") == "registry.yaml:11"
    assert without_folders("it ended with status 1: No such file: '/home/me/x.so'") == (
        "it ended with status 1: No such file: 'x.so'"
    )
