"""Answers in sentences, the coverage map, plots, and a net as a timeline: on the page and as a Chrome trace."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner
from test_benchmark import example
from test_benchmark_page import KINDS
from test_benchmark_page import report as geometries

from convdispatch.tools.benchmark.pages.answers import answers, to_do, worst
from convdispatch.tools.benchmark.pages.coverage import CHANNELS, PIXELS, coverage_map, shares
from convdispatch.tools.benchmark.pages.export import write_json
from convdispatch.tools.benchmark.pages.figures import FAMILIES, colours
from convdispatch.tools.benchmark.pages.page import packaged, render
from convdispatch.tools.benchmark.pages.plots import candidates, roofline
from convdispatch.tools.benchmark.pages.timeline import chart, rows_of, training_events
from convdispatch.tools.benchmark.summary import lines, nets
from convdispatch.tools.cli import main

FAST = {"float32": {name: {"rate": 1e12, "how": "fast"} for name in ("flops", "bandwidth")}}

# --- coverage ---------------------------------------------------------------------------------------------------------


def test_each_geometry_stands_in_the_cell_of_its_sizes():
    panels = shares(lines(geometries()))
    assert list(panels) == ["depthwise", "1x1", "3x3", "5x5 and more"]
    ((place, held),) = panels["1x1"].items()
    assert PIXELS[place[0]] <= 256 < PIXELS[place[0] + 1], "16 x 16 pixels"
    assert CHANNELS[place[1]] <= 64 < CHANNELS[place[1] + 1]
    assert [line.winner for line in held] == ["implicitgemm.pointwise"]


def test_a_cell_shows_the_share_and_what_is_not_measured_is_empty():
    svg = coverage_map(lines(geometries()))
    cells = re.findall(r'style="fill:var\(--(\w+)\)"/><text[^>]*>(\d+%)</text><title>(.*?)</title>', svg)
    want = {f"{fraction:.0%}": solver for _, solver, fraction in KINDS.values()}
    assert {text for _, text, _ in cells} == set(want)
    assert {text: colour for colour, text, _ in cells} == {
        "90%": "high",
        "40%": "middle",
        "25%": "middle",
        "10%": "low",
    }
    assert all(want[text] in title for _, text, title in cells)
    empty = svg.count("nothing measured")
    assert empty == len(KINDS) * ((len(PIXELS) - 1) * (len(CHANNELS) - 1) - 1)
    assert coverage_map([]) == ""


def test_problems_of_one_cell_are_one_mean():
    report = geometries()
    first = next(iter(report.measured.values()))
    other = replace(first, problem=first.problem.replace("ic64", "ic65"))
    other.best = replace(first.best, median_ms=first.best.median_ms * 9)
    report.measured[other.problem] = other
    report.layers.append(replace(report.layers[0], problem=other.problem))
    ((_, held),) = shares(lines(report))["1x1"].items()
    assert len(held) == 2
    assert ">30%</text>" in coverage_map(lines(report)), "of 90 % and of a ninth of it, the geometric mean"


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_layers_stand_end_to_end_as_often_as_the_net_runs_them():
    rows = rows_of(lines(example()), ["torch"])
    assert "torch" not in rows, "it did not run one of the layers, and would seem shorter"
    assert [(s.layer, s.start_ms, s.ms) for s in rows["fastest"]] == [
        ("L0", 0.0, 1.0), ("L0", 1.0, 1.0), ("L0", 2.0, 1.0), ("L1", 3.0, 2.0)]  # fmt: skip
    assert sum(span.ms for span in rows["chosen"]) == 6.5
    assert {span.what for span in rows["chosen"]} == {"b.one"}
    assert all(span.what.startswith("bound by ") for span in rows["roofline"])


def test_the_picture_has_one_scale_for_all_rows():
    svg = chart(rows_of(lines(example()), ["torch"]), {"a": "red", "b": "blue"})
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height', svg)]
    assert len(widths) == 12
    assert widths[3] == pytest.approx(2 * widths[0], rel=0.05)
    assert widths[4] == pytest.approx(1.5 * widths[0], rel=0.05)
    assert "5 ms</text>" in svg
    assert "6.5 ms</text>" in svg
    assert chart({}, {}) == ""


def test_a_trace_is_of_what_was_measured(tmp_path):
    """Medians laid end to end are no timeline: `bench --trace` says where one is to be had."""
    write_json(example(), tmp_path / "r.json")
    done = CliRunner().invoke(
        main, ["bench", "--render", str(tmp_path / "r.json"), "--trace", str(tmp_path / "t.json")]
    )
    assert done.exit_code == 2
    assert "`convdispatch run MODEL --trace FILE` times a model's run" in " ".join(done.output.split())
    assert "convdispatch run --trace" in render(example())


def test_a_training_steps_trace_is_by_the_devices_clock(tmp_path):
    events = training_events(
        "lenet", [("convolution", "forward_ms", 0.0, 2.0), ("convolution", "backward_ms", 2.5, 4.0)]
    )
    spans = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [("convolution", 1, 0.0, 2000.0), ("convolution", 2, 2500.0, 4000.0)]
    path = tmp_path / "t.json"
    done = CliRunner().invoke(main, ["bench", "--net", "lenet", "--train", "--batch", "1", "--trace", str(path)])
    assert done.exit_code == 0, done.output
    spans = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"convolution", "linear", "optimiser"} <= {e["name"] for e in spans}
    starts = [e["ts"] for e in spans]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert starts[-1] > 0


# --- answers ----------------------------------------------------------------------------------------------------------


def test_five_questions_are_answered():
    report = example()
    report.again = {"float32": {"flops": 1e9, "bandwidth": 1e9}}
    told = dict(answers(report))
    assert list(told) == [
        "Which engine?", "Why?", "How sure?", "How far from the limit?", "What about the worst layer?"]  # fmt: skip
    assert told["Which engine?"] == "Of 4 layers a.one is fastest in 4 (100% of the time)."
    assert "L0: a.one, of 3 of 4 candidates measured. Without measuring b.one would run: predicted." in told["Why?"]
    assert told["How sure?"].startswith("2 of 2 problems had 3 candidates measured or more")
    assert "nothing says that it was busy" in told["How sure?"]
    assert "where 5 ms are taken" in told["How far from the limit?"]


def test_the_worst_layer_loses_most_in_its_net_and_is_told_what_helps():
    report = example()
    for found in report.measured.values():
        found.rows[2].reason, found.rows[2].status = "3x3 only, got 1x1", "refused"
    report.roofs = FAST
    lost = {line.layer.name: line.layer.count * (line.ms - line.roof_ms) for line in lines(report)}
    line = worst(lines(report))
    assert lost[line.layer.name] == max(lost.values())
    assert line.layer.name == "L0"
    words = " ".join(to_do(line))
    assert f"convdispatch find {line.measured.problem}" in words
    assert "candidates have no time yet" in words
    assert "Refused: b.one: 3x3 only, got 1x1." in words
    assert "A plugin for this geometry would fill the gap" in words


def test_a_choice_that_costs_and_a_peer_that_wins_are_told():
    report = example()
    report.roofs = FAST
    line = next(line for line in lines(report) if line.layer.name == "L0")
    words = " ".join(to_do(line))
    assert "Without a record b.one runs and takes 1.50 times as long" in words
    assert "torch" not in words, "it is slower"
    line.measured.peers[1].median_ms = 0.5
    assert "torch needs 0.50 of the time, so there is a faster way." in " ".join(to_do(line))
    told = " ".join(to_do(line, doubtful=True))
    assert "torch" not in told
    assert "measure it again on a quiet machine first" in told


def test_nothing_measured_nothing_answered():
    report = example()
    report.measured = {}
    assert answers(report) == []


def test_an_engine_is_named_only_where_enough_was_measured():
    report = example()
    for found in report.measured.values():
        found.rows = found.rows[:1]
    assert dict(answers(report))["Which engine?"] == "Of 4 layers too little was measured to know it in 4 (5 ms)."


def test_a_refusal_that_speaks_of_the_device_is_no_hint():
    report = example()
    report.roofs = FAST
    for found in report.measured.values():
        found.rows[2].reason, found.rows[2].status = "nvidia only, got intel", "refused"
    assert "Refused" not in " ".join(to_do(worst(lines(report))))


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


def test_candidates_stand_by_time_error_and_workspace():
    every = lines(example())
    colour = colours(["a.one", "b.one"])
    by_error = places(candidates(every, colour, "error"))
    assert len(by_error) == 2, "two candidates have an error"
    by_workspace = places(candidates(every, colour, "workspace"))
    assert len(by_workspace) == 2
    assert candidates([], colour, "error") == ""


def test_an_algorithm_has_one_colour_on_all_pages():
    few, many = colours(["winograd.f4x3"]), colours(["acme.x", "fft.tiled", "im2col", "winograd.f2x3"])
    assert few["winograd"] == many["winograd"]
    assert len(set(many.values())) == 4
    assert len({colours([f"{name}.x"])[name] for name in FAMILIES}) == len(FAMILIES)
    assert all(css.removeprefix("var(").removesuffix(")") + ":" in packaged("page.css") for css in many.values())


def test_bars_compare_an_algorithm_with_the_best_of_the_same_layers():
    """1.45 ms of one layer stood beside a bar of 16.52 ms for all of them."""
    (net,) = nets(lines(example()), [])
    for name, (total, layers) in net.algorithms.items():
        assert net.best_of_same[name] <= total
        if layers == net.layers:
            assert net.best_of_same[name] == pytest.approx(net.best_ms)
    page = render(example())
    assert "best of the same, ms" in page


def test_what_is_unknown_stands_in_the_legend():
    report = example()
    assert "unknown, too few candidates" not in render(report)
    next(iter(report.measured.values())).rows = []
    assert "unknown, too few candidates" in render(report)
