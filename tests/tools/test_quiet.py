"""A busy machine: loads that lie and repeats that scatter make headline figures withheld or marked."""

from __future__ import annotations

import pytest
from reports import DEVICE, ENVIRONMENT
from test_benchmark import example, shown

from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.shapes import Entry
from convdispatch.tools.benchmark import quiet, run
from convdispatch.tools.benchmark.quiet import OtherProcesses, busy, load_now, signs
from convdispatch.tools.benchmark.report import Report

CPU = {**ENVIRONMENT, "load": 0.1, "device": {**DEVICE, "type": "cpu"}}


def quiet_report() -> Report:
    """On four processors, every interval narrow."""
    report = example()
    report.environment = dict(CPU)
    for found in report.measured.values():
        found.load = 0.2
        for timed in (found.best, found.chosen, *found.peers):
            timed.ci_ms = (0.98 * timed.median_ms, 1.02 * timed.median_ms)
    return report


def loaded_at_the_start(report: Report) -> None:
    report.environment = {**report.environment, "load": 3.0}


def loaded_during_the_run(report: Report) -> None:
    for found in report.measured.values():
        found.load = 2.5


def repeats_that_scatter(report: Report) -> None:
    for found in report.measured.values():
        found.chosen.ci_ms = (found.chosen.median_ms, 1.6 * found.chosen.median_ms)


DISTURBED = {
    loaded_at_the_start: "a load of 3 on 4 processors at the start",
    loaded_during_the_run: "a load of 2.5 by others on 4 processors during the run",
    repeats_that_scatter: "repeats of 2 of 2 problems scatter by 60% of their median",
}


def test_a_quiet_run_has_its_headline():
    report = quiet_report()
    assert signs(report) == []
    assert not [words for words in ("Other work", "withheld", "not to be trusted") if words in shown(report)]
    assert "torch: its time over ours, geometric mean of 1 layers: 4.000" in shown(report)


@pytest.mark.parametrize("disturb", DISTURBED, ids=lambda one: one.__name__)
def test_each_sign_withholds_ratios_and_marks_every_tile(disturb):
    report = quiet_report()
    disturb(report)
    (sign,) = signs(report)
    assert sign == DISTURBED[disturb]
    said = shown(report)
    assert "Other work was running: " + sign in said
    assert "geometric mean of 1 layers: withheld, the machine was busy" in said
    assert "(busy machine: not to be trusted)" in said
    assert said.partition("Nets, sums")[2].count("withheld") == 3, "the sums' two ratios, and the mean"


def test_a_disturbed_layer_is_marked_in_its_row():
    report = quiet_report()
    repeats_that_scatter(report)
    assert " 1? " in shown(report)
    assert " 4? " in shown(report), "the ratio to a peer too"
    report = quiet_report()
    assert " 1? " not in shown(report)


def test_load_does_not_disturb_a_gpu_but_scatter_does():
    report = quiet_report()
    loaded_at_the_start(report)
    loaded_during_the_run(report)
    report.environment = {**report.environment, "device": DEVICE}
    assert signs(report) == []
    repeats_that_scatter(report)
    assert len(signs(report)) == 1


def test_a_report_without_a_load_says_what_it_knows():
    assert signs(example()) == []
    report = quiet_report()
    for found in report.measured.values():
        found.load = None
    assert signs(report) == []


def test_a_run_watches_itself(device, monkeypatch):
    """The load of others while each problem is measured."""
    peak = {"rate": 1e11, "how": "invented", "count": 1}
    roof = {"dtype": "float32", "flops": peak, "bandwidth": peak, "matrix": None}
    monkeypatch.setattr(run, "measure_roof", lambda device, dtype: roof)
    monkeypatch.setattr(run, "asdict", dict)
    monkeypatch.setattr(quiet.OtherProcesses, "load", lambda self: 0.125)
    entries = [Entry(text, ConvProblem.parse(text), 1) for text in ("mb1ic4ih9oc4kh3ph1", "mb1ic4ih6oc4kh1")]
    report = run.run({"tiny": entries}, device, search=False)
    assert [found.load for found in report.measured.values()] == [0.125, 0.125]


# --- loads ------------------------------------------------------------------------------------------------------------


def stat(path, busy_s: float, idle_s: float):
    rate = quiet.os.sysconf("SC_CLK_TCK")
    path.write_text(f"cpu  {int(busy_s * rate)} 0 0 {int(idle_s * rate)} 0 0 0 0 0 0\nintr 1\n")


def test_others_are_all_but_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 4)
    file, own = tmp_path / "stat", [1.0]
    stat(file, 100, 300)
    others = OtherProcesses(file, lambda: own[0])
    assert others.load() is None, "no time has passed"
    stat(file, 130, 310)
    own[0] = 11.0
    assert others.load() == 2.0, "in ten seconds of four processors thirty were busy, ten of them here"
    own[0] = 1000.0
    assert others.load() == 0.0


def test_load_now_is_of_a_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 4)
    file = tmp_path / "stat"
    stat(file, 100, 300)
    assert load_now(file, lambda seconds: stat(file, 101, 303)) == 1.0
    assert load_now(tmp_path / "none", lambda seconds: None) is None


def test_no_sign_no_words():
    assert busy([]) == ""
