"""Budgets: a default one reaches every solver's first configuration, one that was asked for is a limit."""

from __future__ import annotations

import importlib
import json

import pytest
from command_line import run_cli
from searching import PROBLEM, searched

from convdispatch.measurement.find import find
from convdispatch.measurement.search import session


@pytest.mark.parametrize("command", ["find", "bench"])
def test_a_default_budget_reaches_every_solver_s_first_configuration(faults, tmp_path, monkeypatch, command):
    """However short it is; one that was asked for is kept, and what it did not reach is said."""
    faults("good", "many", "slow", "slow_compile")
    module = importlib.import_module(f"convdispatch.tools.cli.{command}")
    monkeypatch.setattr(module, "BUDGET_MS", 1.0)
    path = tmp_path / "results.json"
    words = ["find", "--json", "--again"] if command == "find" else ["bench", "--json", str(path)]

    def measured(*more):
        done = run_cli(*words, str(PROBLEM), "--no-isolate", *more, status=0, catch_exceptions=False)
        if command == "find":
            rows = json.loads(done.stdout)[0]["results"]
        else:
            rows = json.loads(path.read_text())["measured"][str(PROBLEM)]["rows"]
        timed = {row["solver"].removeprefix("faulty.") for row in rows if row["median_ms"] is not None}
        return timed, [row for row in rows if row["status"] == "not tried"]

    timed, untried = measured()
    assert timed == {"good", "many", "slow", "slow_compile"}
    assert untried  # second configurations are what a default budget bounds
    timed, untried = measured("--budget", "1")
    assert len(timed) == 1
    assert {row["solver"] for row in untried} >= {"faulty.many", "faulty.slow"}


def test_a_first_configuration_that_compiles_for_ever_is_left_behind(faults, device, monkeypatch):
    faults("good")
    find(PROBLEM, device, store=False)  # the first candidate of all may compile for as long as it likes
    faults("good", "slow_compile")
    monkeypatch.setattr(session, "FIRST_OF_SOLVER_S", 0.05)
    found, _ = searched(device, said=False, budget_ms=1, every_solver=True)
    assert (found["slow_compile"].status, found["good"].status) == ("not tried", "measured")
    assert "still compiling" in found["slow_compile"].reason
