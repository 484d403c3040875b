"""The benchmark's runs: measured, cut short, refused."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from reports import ROOFS

from convdispatch.api import ConvProblem
from convdispatch.measurement.peaks import measure_roof
from convdispatch.measurement.shapes import Entry
from convdispatch.tools.benchmark import run, session
from convdispatch.tools.cli.bench import bench

TINY = "fwd_f32_mb1ic4ih6iw6oc4kh3kw3"


@pytest.fixture
def quick(monkeypatch):
    """Ceilings cost a second: invented here, measured in a test of their own."""
    roof = type("Roof", (), {})
    monkeypatch.setattr(run, "measure_roof", lambda device, dtype: roof)
    monkeypatch.setattr(run, "asdict", lambda value: ROOFS["float32"])
    monkeypatch.setattr(session, "ROUNDS", (5, 5))


def entries(*texts):
    return {"net": [Entry(text, ConvProblem.parse(text), 1) for text in texts]}


def test_command_measures_and_writes_everything(device, quick, tmp_path):
    path = tmp_path / "r.json"
    asked = [TINY, "mb1ic4ih6oc4kh1", "--no-isolate"]  # each solver is measured once, however busy the machine is
    done = CliRunner().invoke(bench, [*asked, "--json", str(path)])
    assert done.exit_code == 0, done.output
    report = json.loads(path.read_text())
    assert len(report["measured"]) == 2
    assert not report["interrupted"]
    for found in report["measured"].values():
        assert 0 < found["best"]["median_ms"] <= found["chosen"]["median_ms"]
        for choice in (found["best"], found["chosen"]):
            assert 0 < choice["error"] < 1e-5
            assert 0 < choice["error_scaled"] < 1e-5
        assert all(row["error_scaled"] is not None for row in found["rows"] if row["error"] is not None)
    assert str(tmp_path) not in path.read_text(), "a report names no folder of the machine it was made on"


def test_an_interrupt_keeps_what_was_measured(device, quick, monkeypatch):
    asked, true = [], session.Session.measure

    def measure(self, problem, without=None):
        asked.append(str(problem))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return true(self, problem)

    monkeypatch.setattr(session.Session, "measure", measure)
    problems = entries(TINY, "mb1ic4ih6oc4kh1")
    kept = []
    first = run.run(problems, device, search=False, keep=lambda report: kept.append(list(report.measured)))
    assert first.interrupted
    assert list(first.measured) == [str(ConvProblem.parse(TINY))]
    assert kept == [list(first.measured)]


def test_no_solver_is_said_and_ends_nothing(device, quick):
    report = run.run(entries(TINY), device, solver="nobody.*", search=False)
    (found,) = report.measured.values()
    assert "no solver" in found.failure


def test_ceilings_are_measured(device):
    roof = measure_roof(device, "float32")
    assert 1e8 < roof.flops.rate < 1e15
    assert 1e8 < roof.bandwidth.rate < 1e14
