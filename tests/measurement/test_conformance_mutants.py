"""The kit's cases show every one-letter slip of a sound kernel, each in the corner that a specialised kernel takes."""

from __future__ import annotations

import importlib.util

import pytest
from paths import SUPPORT

from convdispatch.measurement.conformance import levels
from convdispatch.measurement.conformance.contract import answer
from convdispatch.measurement.conformance.session import Kit

DROP_IN = SUPPORT / "mutant_plugin"
_spec = importlib.util.spec_from_file_location("mutant_names", DROP_IN / "mutants.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


def accepted(kit: Kit, name: str) -> list[levels.Case]:
    solver = kit.solvers[name]
    return [case for case in levels.cases() if answer(solver, case.problem, kit.info) is None]


UNSEEN = [pytest.param(name, marks=pytest.mark.full) for name in _module.UNSEEN]


@pytest.mark.parametrize("name", [*_module.MUTANTS, *_module.ADDING, *UNSEEN])
def test_a_wrong_letter_is_caught(drop_in, device, name):
    kit = Kit("mutants", device, solver=f"mutant.{name}")
    cases = accepted(kit, f"mutant.{name}")
    assert cases, "no case lies in the corner"
    if name in _module.ADDING:  # the only cases that can show it: they come first
        cases.sort(key=lambda case: not case.problem.accumulate)
    outcomes = (kit.examine(kit.solvers[f"mutant.{name}"], case) for case in cases)
    assert any(outcome.status == "failed" and outcome.check != "plan" for outcome in outcomes)


def test_the_same_kernels_without_a_slip_pass(drop_in, device, full):
    kit = Kit("mutants", device, solver="mutant.sound")
    cases = accepted(kit, "mutant.sound")
    assert len(cases) > 300
    outcomes = [kit.examine(kit.solvers["mutant.sound"], case) for case in cases[:: 7 if full else 15]]
    assert {outcome.status for outcome in outcomes} == {"passed"}, [o for o in outcomes if o.status == "failed"]
