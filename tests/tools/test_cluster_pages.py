"""Several kinds of device: one JSON and one CSV file of all, a page a kind; the kit's page has them side by side."""

from __future__ import annotations

import csv
import json
import re
from html import unescape

import pytest
from command_line import run_cli
from reports import DEVICE, ENVIRONMENT, ROOFS

from convdispatch.api.errors import InvalidArgument
from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.conformance import outcome, page
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
    told, sheet, shown = tmp_path / "b.json", tmp_path / "b.csv", tmp_path / "b.html"
    told.write_text(json.dumps([each.to_json() for each in two]))
    again = tmp_path / "again.json"
    run_cli("bench", "--render", str(told), "--json", str(again), "--csv", str(sheet), "--html", str(shown), status=0)
    assert json.loads(again.read_text()) == json.loads(told.read_text())
    for each in report.load_all(told):
        assert (tmp_path / f"b-{each.environment['device']['key']}.html").read_text() == render(each)
    with sheet.open(newline="") as file:
        best = [
            (row["device"], row["problem"], row["median_ms"]) for row in csv.DictReader(file) if row["what"] == "best"
        ]
    assert best == [("one", FIRST, "1.0"), ("one", SECOND, "4.0"), ("two", FIRST, "2.0"), ("two", SECOND, "3.0")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again.json",
        "b-one.html",
        "b-two.html",
        "b.csv",
        "b.json",
    ]
    with pytest.raises(InvalidArgument, match="the reports of 2 kinds of device, where one was expected"):
        report.load(told)


def table(page, heading):
    """The words of the cells of the table after a heading, row by row."""
    text = page.partition(f"<h2>{heading}</h2>")[2].partition("</table>")[0]
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)
        for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    ]
    return [[unescape(re.sub("<[^>]+>", "", words)) for words in row] for row in rows]


def verified(name, wide, *more):
    """The kit's report of a device of this name; ``wide`` is what became of one case."""
    said = {"fwd": "passed", "wide": wide, "tall": "refused"}
    outcomes = [outcome.Outcome("a.x", case, SECOND, "core", status, reason=status) for case, status in said.items()]
    environment = {**ENVIRONMENT, "device": {**DEVICE, "name": name, "title": f"Simulated: {name}"}}
    plugin = {"name": "acme", "version": "1", "source": "x", "solvers": ["a.x"]}
    return outcome.Report(plugin, environment, "core", 1, "", [*outcomes, *more])


def test_a_plugin_on_several_kinds_says_where_they_differ(tmp_path):
    new = outcome.Outcome("a.x", "new", SECOND, "core", "passed")
    reports = [verified("One", "passed"), verified("Two", "failed", new)]
    assert page.differences(reports) == [
        ("wide", SECOND, "a.x", ["passed", "failed"]),
        ("new", SECOND, "a.x", ["not asked", "passed"]),
    ]
    told, shown = tmp_path / "v.json", tmp_path / "v.html"
    told.write_text(json.dumps([each.to_json() for each in reports]))
    run_cli("verify", "--render", str(told), "--html", str(shown), "--json", str(told), status=1)
    found = table(shown.read_text(), "Where the kinds differ")
    assert found == [
        ["case", "problem", "solver", "One", "Two"],
        ["wide", SECOND, "a.x", "computed", "failed"],
        ["new", SECOND, "a.x", "not asked", "computed"],
    ]
    assert outcome.load_all(told) == reports
    assert "Nowhere: every solver computed" in page.render(reports[0], reports[0])
    assert "Where the kinds differ" not in page.render(reports[0])
