"""Two runs beside each other: what is faster, what is slower, what nobody can tell, and what makes it doubtful."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from command_line import run_cli
from rich.console import Console
from test_benchmark import DEVICE, ENVIRONMENT, example

from convdispatch.tools.benchmark.pages.compare import compare, heading, show_comparison
from convdispatch.tools.benchmark.report import Report, write_json

FIRST, SECOND = "fwd_f32_mb1ic8ih10iw10oc8kh3kw3", "fwd_f32_mb1ic8ih10iw10oc8kh1kw1"


def run(first: float, second: float, width: float = 0.01, solver: str = "a.one") -> Report:
    report = example()
    for problem, ms in ((FIRST, first), (SECOND, second)):
        found = report.measured[problem]
        found.best = replace(found.best, solver=solver, median_ms=ms, ci_ms=(ms * (1 - width), ms * (1 + width)))
        found.chosen = None
    return report


def shown(old: Report, new: Report) -> str:
    console = Console(width=300, record=True, file=io.StringIO(), markup=False)
    show_comparison(compare(old, new), console)
    return console.export_text()


@pytest.mark.parametrize(
    ("new", "width", "verdict"),
    [(0.5, 0.01, "faster"), (2.0, 0.01, "slower"), (1.015, 0.001, "same"), (1.3, 0.2, "same"), (1.0, 0.01, "same")],
)
def test_intervals_that_stand_apart_make_a_verdict(new, width, verdict):
    compared = compare(run(1.0, 2.0, width), run(new, 2.0, width))
    pair = next(pair for pair in compared.pairs if pair.new.measured.problem == FIRST)
    assert pair.verdict == verdict
    assert pair.speedup == pytest.approx(1 / new)


def test_the_most_time_lost_stands_first_and_the_mean_is_geometric():
    compared = compare(run(1.0, 2.0), run(4.0, 1.0))
    assert [pair.new.measured.problem for pair in compared.pairs] == [FIRST, SECOND]
    assert compared.speedup == pytest.approx((1 / 4 * 2) ** 0.5)
    assert heading(compared) == (
        "2 problems in both runs: 1 slower, 1 faster, 0 same; the old time over the new one is 0.707 (geometric mean)"
    )


def test_a_busy_run_has_no_mean_and_marks_its_rows():
    busy = run(1.0, 2.0, width=0.4)
    said = shown(run(1.0, 2.0), busy)
    assert "is withheld, for a machine was busy" in said
    assert "The machine was busy after. Other work was running: repeats of 2 of 2 problems" in said
    assert "1?" in said
    assert "1?" not in shown(run(1.0, 2.0), run(1.0, 2.0))


def test_devices_drivers_and_solvers_that_differ_are_said():
    old, new = run(1.0, 2.0), run(1.0, 2.0, solver="b.one")
    assert "a.one → b.one" in shown(old, new)
    new.environment = {**ENVIRONMENT, "device": {**DEVICE, "driver": "2"}}
    assert compare(old, new).notes == ["The driver changed: 1 before, 2 after."]
    new.environment = {**ENVIRONMENT, "device": {**DEVICE, "key": "other", "title": "Other"}}
    assert compare(old, new).notes == [f"Two devices: {DEVICE['title']} before, Other after."]


def test_what_one_run_alone_has_is_listed():
    new = run(1.0, 2.0)
    del new.measured[SECOND]
    assert f"only in the old run: {SECOND}" in shown(run(1.0, 2.0), new)
    assert f"only in the new run: {SECOND}" in shown(new, run(1.0, 2.0))
    new.measured = {}
    assert "0 problems in both runs" in shown(new, run(1.0, 2.0))


def test_the_command(tmp_path):
    write_json(run(1.0, 2.0), tmp_path / "old.json")
    write_json(run(0.5, 2.0), tmp_path / "new.json")
    words = ["bench", "--compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    done = run_cli(*words, status=0)
    assert "1 faster, 1 same" in done.output
    done = run_cli("bench", "--compare", str(tmp_path / "new.json"), str(tmp_path / "old.json"), status=1)
    assert "1 slower, 0 faster, 1 same" in done.output
