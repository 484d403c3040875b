"""Several kinds of device: one JSON file of all, a page a kind of the benchmark."""

from __future__ import annotations

import json

import pytest
from command_line import run_cli
from reports import DEVICE, ENVIRONMENT, ROOFS

from convdispatch.api.errors import InvalidArgument
from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.conformance import outcome
from convdispatch.tools.benchmark import report
from convdispatch.tools.benchmark.pages.page import render
from convdispatch.tools.benchmark.report import Choice, Layer, Measured, Report, Row

FIRST, SECOND = (str(ConvProblem.parse(text)) for text in ("mb1ic16ih8oc16kh1", "mb1ic16ih8oc16kh3ph1"))
LAYERS = [Layer("net", "a", FIRST, 2), Layer("net", "b", SECOND)]


def measured(problem, solver, ms):
    best = Choice(solver, {}, "fastest", ms, ms, ms, 9)
    rivals = [Row(name, {}, "measured", "", 2 * ms, ms, ms, 9) for name in ("other.one", "other.two")]
    row = Row(solver, {}, "measured", "", ms, ms, ms, 9, 1e-7, 0, 5.0, True)
    return Measured(problem, ConvProblem.parse(problem).flops, 1000, best, best, [row, *rivals])


def bench(name, times):
    """A report of a device of this name; ``times`` are milliseconds by problem."""
    environment = {
        **ENVIRONMENT,
        "device": {**DEVICE, "name": name, "title": f"Simulated: {name}", "key": name.lower()},
    }
    return Report(
        LAYERS, environment, {"peers": {}}, ROOFS, {p: measured(p, f"{name}.x", ms) for p, ms in times.items()}
    )


@pytest.fixture
def two():
    return [bench("One", {FIRST: 1.0, SECOND: 4.0}), bench("Two", {FIRST: 2.0, SECOND: 3.0})]


def test_the_files_of_several_kinds_are_one_each_and_are_read_again(two, tmp_path):
    told, shown = tmp_path / "b.json", tmp_path / "b.html"
    told.write_text(json.dumps([each.to_json() for each in two]))
    again = tmp_path / "again.json"
    run_cli("bench", "--render", str(told), "--json", str(again), "--html", str(shown), status=0)
    assert json.loads(again.read_text()) == json.loads(told.read_text())
    for each in report.load_all(told):
        assert (tmp_path / f"b-{each.environment['device']['key']}.html").read_text() == render(each)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again.json",
        "b-one.html",
        "b-two.html",
        "b.json",
    ]
    with pytest.raises(InvalidArgument, match="the reports of 2 kinds of device, where one was expected"):
        report.load(told)


def verified(name, wide, *more):
    """The kit's report of a device of this name; ``wide`` is what became of one case."""
    said = {"fwd": "passed", "wide": wide, "tall": "refused"}
    outcomes = [outcome.Outcome("a.x", case, SECOND, "core", status, reason=status) for case, status in said.items()]
    environment = {**ENVIRONMENT, "device": {**DEVICE, "name": name, "title": f"Simulated: {name}"}}
    plugin = {"name": "acme", "version": "1", "source": "x", "solvers": ["a.x"]}
    return outcome.Report(plugin, environment, "core", 1, "", [*outcomes, *more])


def test_a_plugin_on_several_kinds_has_a_report_of_each(tmp_path):
    new = outcome.Outcome("a.x", "new", SECOND, "core", "passed")
    reports = [verified("One", "passed"), verified("Two", "failed", new)]
    told, again = tmp_path / "v.json", tmp_path / "again.json"
    told.write_text(json.dumps([each.to_json() for each in reports]))
    done = run_cli("verify", "--render", str(told), "--json", str(again), status=1)
    assert outcome.load_all(again) == reports
    assert "on Simulated: One: passed" in done.output
    assert "on Simulated: Two: failed" in done.output
