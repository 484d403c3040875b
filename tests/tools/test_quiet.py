"""A busy machine: loads, clocks and ceilings that lie make headline figures withheld or marked, and waiting end."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from test_benchmark import DEVICE, ENVIRONMENT, example, shown

from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.shapes import Entry
from convdispatch.tools.benchmark import quiet
from convdispatch.tools.benchmark.measuring import run
from convdispatch.tools.benchmark.quiet import OtherProcesses, busy, load_now, signs, wait_quiet
from convdispatch.tools.benchmark.report import Report
from convdispatch.tools.cli.bench import bench

CPU = {**ENVIRONMENT, "load": 0.1, "device": {**DEVICE, "type": "cpu"}}


def quiet_report() -> Report:
    """On four processors, every interval narrow, ceilings alike at both ends."""
    report = example()
    report.environment = dict(CPU)
    report.again = {"float32": {"flops": 1.02e9, "bandwidth": 0.99e9}}
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


def ceilings_that_sank(report: Report) -> None:
    report.again["float32"]["flops"] = 0.6e9


def ceilings_that_rose(report: Report) -> None:
    """The first ones were measured beside other work, and every share of the roofline is too large."""
    report.again["float32"]["bandwidth"] = 1.4e9


def repeats_that_scatter(report: Report) -> None:
    for found in report.measured.values():
        found.chosen.ci_ms = (found.chosen.median_ms, 1.6 * found.chosen.median_ms)


def layers_beyond_the_ceiling(report: Report) -> None:
    """The 1x1 layer is made to be bound by compute, and four times as fast as that allows."""
    (found,) = [found for found in report.measured.values() if "kh1kw1" in found.problem]
    report.roofs = {"float32": {**report.roofs["float32"], "bandwidth": {"rate": 1e12, "how": "b"}}}
    report.again = {}
    found.best.median_ms = found.flops / 1e9 * 1e3 / 4
    found.best.ci_ms = (0.99 * found.best.median_ms, 1.01 * found.best.median_ms)


DISTURBED = {
    loaded_at_the_start: "a load of 3 on 4 processors at the start",
    loaded_during_the_run: "a load of 2.5 by others on 4 processors during the run",
    ceilings_that_sank: "the ceiling of multiply-adds (float32) was 0.60 of the first one at the end",
    ceilings_that_rose: "the ceiling of a copy (float32) was 1.40 of the first one at the end",
    layers_beyond_the_ceiling: "1 layers of 1x1 reach up to 400% of the ceiling, so that was measured too low",
    repeats_that_scatter: "repeats of 2 of 2 problems scatter by 60% of their median",
}


def test_a_quiet_run_has_its_headline():
    report = quiet_report()
    assert signs(report) == []
    assert "withheld" not in shown(report)
    assert "not to be trusted" not in shown(report)
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


def test_load_does_not_disturb_a_gpu_but_its_ceilings_do():
    report = quiet_report()
    loaded_at_the_start(report)
    loaded_during_the_run(report)
    report.environment = {**report.environment, "device": DEVICE}
    assert signs(report) == []
    ceilings_that_sank(report)
    assert len(signs(report)) == 1


def test_an_older_report_says_what_it_knows():
    report = example()
    assert signs(report) == []
    values = quiet_report().to_json()
    del values["again"]
    for found in values["measured"].values():
        del found["load"]
    assert signs(Report.from_json(values)) == []


def test_a_run_watches_itself(device, monkeypatch):
    """Ceilings at both ends, and the load of others while each problem is measured."""
    rates = iter([1e11, 0.5e11])

    def roof(self, dtype):
        peak = {"rate": next(rates), "how": "invented", "count": 1}
        return {"dtype": dtype, "flops": peak, "bandwidth": peak, "matrix": None}

    waited = []
    monkeypatch.setattr(run._LocalSession, "roof", roof)
    monkeypatch.setattr(run, "wait_quiet", lambda most, processors, say: waited.append(most) or 1.0)
    monkeypatch.setattr(quiet.OtherProcesses, "load", lambda self: 0.125)
    entries = [Entry(text, ConvProblem.parse(text), 1) for text in ("mb1ic4ih9oc4kh3ph1", "mb1ic4ih6oc4kh1")]
    report = run.run({"tiny": entries}, device, search=False, wait_quiet_s=60.0)
    assert report.again == {"float32": {"flops": 0.5e11, "bandwidth": 0.5e11}}
    assert any("the ceiling of multiply-adds (float32) was 0.50 of the first" in sign for sign in signs(report))
    assert [found.load for found in report.measured.values()] == [0.125, 0.125]
    assert waited == [60.0, 59.0, 58.0], "before the run and before each problem, out of one purse"
    assert report.environment["waited_s"] == 3.0


# --- waiting ----------------------------------------------------------------------------------------------------------


class Machine:
    """A clock that only sleeping moves, and loads by the second."""

    def __init__(self, ends: float) -> None:
        self.now, self.ends, self.said = 0.0, ends, []

    def load(self) -> float:
        return 3.0 if self.now < self.ends else 0.1

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, most: float) -> float:
        return wait_quiet(most, 4, load=self.load, clock=lambda: self.now, sleep=self.sleep, say=self.said.append)


def test_waiting_ends_with_the_other_work():
    machine = Machine(ends=7.0)
    assert machine.wait(60) == 8.0
    assert machine.said[0] == "waiting for quiet: a load of 3, 60 s at most"
    assert Machine(ends=0.0).wait(60) == 0


def test_waiting_ends_with_the_time():
    machine = Machine(ends=1e9)
    assert machine.wait(5.0) == 5.0
    assert machine.now == 5.0


def test_who_cannot_tell_does_not_wait():
    assert wait_quiet(60, 4, load=lambda: None, clock=lambda: 0.0, sleep=pytest.fail) == 0


def test_the_seconds_are_for_the_whole_run(device, monkeypatch):
    asked = []

    def wait(most, processors, say):
        asked.append(most)
        return 4.0

    monkeypatch.setattr(run, "wait_quiet", wait)
    layers = [Entry(text, ConvProblem.parse(text), 1) for text in ("mb1ic1ih4oc1kh1", "mb1ic1ih5oc1kh1")]
    whole = run._Run({"net": layers}, device, run.Options(wait_quiet_s=10.0))
    for _ in range(5):
        whole._wait_quiet(lambda words, advance: None, 2)
    assert asked == [10.0, 6.0, 2.0]
    assert whole._waited_s == 12.0


def test_the_command_takes_the_seconds(monkeypatch):
    monkeypatch.setattr(run, "wait_quiet", lambda most, processors, say: most / 2)
    given = {}

    def measure(nets, device, **options):
        given.update(options)
        return example()

    monkeypatch.setattr("convdispatch.tools.benchmark.measuring.run.run", measure)
    done = CliRunner().invoke(bench, ["cpu10", "--wait-quiet", "90"])
    assert done.exit_code == 0, done.output
    assert given["wait_quiet_s"] == 90


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
