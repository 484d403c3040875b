"""The benchmark: figures worked out by hand, what is written, what the terminal shows."""

from __future__ import annotations

import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from reports import ENVIRONMENT, ROOFS
from rich.console import Console

from convdispatch.api import ConvProblem
from convdispatch.tools.benchmark import session
from convdispatch.tools.benchmark.report import Choice, Layer, Measured, PeerTime, Report, Row, write_json
from convdispatch.tools.benchmark.summary import gaps, geomean, lines, nets
from convdispatch.tools.benchmark.terminal import show

TINY = "fwd_f32_mb1ic4ih6iw6oc4kh3kw3"


def measured(text: str, best: float, chosen: float, peer: float | None = None) -> Measured:
    """Figures of a problem: two solvers, ``a.one`` the best, and a peer in two layouts, the second one better."""
    problem, rest = ConvProblem.parse(text), {"p20_ms": best, "p80_ms": best, "count": 9}
    rows = [
        Row("a.one", {"t": 1}, "measured", "", 64, 5.0, True, median_ms=best, **rest, error=1e-7),
        Row("a.two", {}, "cut", "slower", median_ms=2 * best, **rest),
        Row("b.one", {}, "measured", median_ms=3 * best, **rest),
        Row("c.one", {}, "wrong", "relative error 1"),
    ]
    layouts = {"nchw": 2 * peer, "nhwc": peer} if peer else {}
    times = [PeerTime("torch", layout, median_ms=ms) for layout, ms in layouts.items()]
    return Measured(
        str(problem), problem.flops, problem.bytes, Choice("b.one", {}, "predicted", median_ms=chosen),
        Choice("a.one", {"t": 1}, "fastest", median_ms=best, **rest), rows, times,
    )  # fmt: skip


def example() -> Report:
    one, two = "fwd_f32_mb1ic8ih10oc8kh3", "fwd_f32_mb1ic8ih10oc8kh1"
    found = {m.problem: m for m in (measured(one, 1.0, 1.5, 4.0), measured(two, 2.0, 2.0))}
    layers = [Layer("convnet", f"L{i}", text, count) for i, (text, count) in enumerate(zip(found, (3, 1)))]
    return Report(layers, ENVIRONMENT, {"peers": {"torch": {"version": "2"}}}, ROOFS, found)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_sums_weigh_layers_by_their_count():
    (net,) = nets(lines(example()), ["torch"])
    assert (net.layers, net.best_ms, net.chosen_ms) == (4, 5.0, 6.5)
    assert net.peers["torch"] == (12.0, 3.0, 3)  # three runs of the layer that torch ran, against ours of the same
    assert net.ratios["torch"] == pytest.approx(4.0)


def test_regret_is_chosen_over_best_and_never_below_one():
    report = example()
    assert [line.measured.regret for line in lines(report)] == [1.5, 1.0]
    assert measured(TINY, 2.0, 1.9).regret == 1.0
    assert geomean([1.5, None, 6.0]) == pytest.approx(3.0)
    assert geomean([None]) is None


@pytest.mark.parametrize("candidates", [0, 1, 2])
def test_too_few_candidates_make_no_winner_no_regret_and_no_ratio(candidates):
    """Each of them said one "a perfect choice", with nothing measured beside the choice."""
    report = example()
    few = report.measured["fwd_f32_mb1ic8ih10iw10oc8kh3kw3"]
    untried = [Row("c.one", {}, "not tried", "the budget ended"), Row("d.one", {}, "refused", "no")]
    few.rows = [*few.rows[:candidates], *untried]
    line, other = lines(report)
    assert (line.winner, line.measured.regret, line.fastest) == ("", None, "a.one")
    assert line.ratio("torch") is None
    assert line.coverage == f"{candidates} of {candidates + 1}"
    assert line.verdict == "unknown (a.one ran)"
    assert (other.winner, other.measured.regret, other.coverage) == ("a.one", 1.0, "3 of 4")
    said = shown(report)
    assert "regret of the choice: 1, on 1 of 2 problems, of which 3 candidates or more were measured" in said
    assert "of the other 1 winner, regret and ratio are unknown" in said
    assert re.search(rf"L0 \*3.*unknown \(a.one ran\).* {candidates} of {candidates + 1} .*unknown", said)
    assert "torch: its time over ours" not in said


def test_nothing_searched_is_said():
    report = example()
    report.settings["search"] = False
    for found in report.measured.values():
        found.rows = []
    assert "nothing was searched: times and ratios are the immediate choice's" in shown(report)
    assert lines(report)[0].ratio("torch") == 4.0
    assert lines(report)[0].winner == ""


def shown(report: Report) -> str:
    console = Console(width=300, record=True, file=io.StringIO(), markup=False)
    show(report, console)
    return console.export_text()


def test_a_layer_has_one_number_with_its_interval():
    report = example()
    found = report.measured["fwd_f32_mb1ic8ih10iw10oc8kh3kw3"]
    found.best = replace(found.best, median_ms=3.6, ci_ms=(3.5, 3.75))
    found.rows = [
        Row("a.one", {"t": 1}, "measured", benchmarked=True, screening_ms=2.0, median_ms=1.8, ci_ms=(1.7, 1.9)),
        Row("b.one", {}, "measured", benchmarked=True, median_ms=2.7, count=9),
        Row("c.one", {}, "cut", "slower", benchmarked=False, median_ms=5.4, count=3),
    ]
    assert re.search(r"L0.* 3\.6 .* 3\.5-3\.75 ", shown(report))


def test_roofline_is_the_larger_of_compute_and_traffic():
    compute, memory = lines(example())
    assert compute.bound == "compute"
    assert compute.roof_ms == pytest.approx(compute.measured.flops / 1e9 * 1e3)
    assert compute.measured.flops == 2 * 8 * 8 * 9 * 64
    assert memory.measured.traffic == 4 * (800 + 64 + 800)
    assert memory.fraction == pytest.approx(memory.roof_ms / 2.0)


def test_gaps_come_with_the_most_lost_time_first():
    low = gaps(lines(example()), below=1.0)
    assert [line.layer.name for line in low] == sorted((line.layer.name for line in low), reverse=True)
    assert gaps(lines(example()), below=0.0) == []


# --- files ------------------------------------------------------------------------------------------------------------


def test_json_holds_the_whole_report(tmp_path):
    report = example()
    write_json(report, tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(json.dumps(asdict(report)))


def test_a_report_that_could_not_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    report, path = example(), tmp_path / "r.json"
    write_json(report, path)
    monkeypatch.setattr(Path, "replace", lambda *given: pytest.fail("the process ended"))
    with pytest.raises(pytest.fail.Exception):
        write_json(replace(report, layers=[]), path)
    assert json.loads(path.read_text())["layers"] == [asdict(layer) for layer in report.layers]


# --- the terminal -----------------------------------------------------------------------------------------------------


def test_a_wrong_solver_is_shown_and_what_is_no_markup_stays():
    said = shown(example())
    assert "c.one wrong: relative error 1" in said
    assert "<b>card</b>" in said


def test_sources_name_no_folder():
    assert session.without_folders("/home/me/registry.yaml:11") == "registry.yaml:11"
    assert session.without_folders("measured 1.2 ms, user record") == "measured 1.2 ms, user record"
    assert session.without_folders("lock file /a/b.lock") == "lock file b.lock"
    assert session.without_folders("it ended with status 1: No such file: '/home/me/x.so'") == (
        "it ended with status 1: No such file: 'x.so'"
    )


def test_an_interrupt_is_said():
    report = example()
    report.measured, report.interrupted = {}, True
    assert "interrupted: 2 problems are not measured" in shown(report)


def test_errors_on_normal_and_on_scaled_data_are_shown():
    report = example()
    found = next(iter(report.measured.values()))
    found.best.error, found.best.error_scaled = 1e-7, 2e-3
    found.chosen.error, found.chosen.error_scaled = 3e-7, 4e-7
    found.peers[1].error, found.peers[1].error_scaled = 5e-7, 6e-7
    assert all(words in shown(report) for words in ("1e-07 2e-03", "3e-07 4e-07", "5e-07 6e-07"))
