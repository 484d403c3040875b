"""``pytest --pyargs convdispatch.conformance --plugin NAME``: one test a solver and case, skipped where refused.

A failure names the check and the line that runs the case alone. The last test fails a plugin that computed nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from convdispatch.measurement.conformance.levels import cases
from convdispatch.measurement.conformance.session import Kit


def pytest_generate_tests(metafunc: Any) -> None:
    """Each case of the level."""
    if "case" in metafunc.fixturenames:
        option = metafunc.config.getoption
        level_cases = cases(option("--conformance-level", "full")) if option("--plugin", None) else []
        skip = pytest.param(None, marks=pytest.mark.skip(reason="name a plugin with --plugin"), id="no-plugin")
        metafunc.parametrize("case", [pytest.param(case, id=case.name) for case in level_cases] or [skip])


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest) -> Kit:
    """The plugin under test."""
    option = request.config.getoption
    return Kit(option("--plugin"), option("--conformance-device"), derived=option("--conformance-derived"))


@pytest.fixture(scope="module")
def computed() -> list[str]:
    """Names of the cases that some solver computed."""
    return []


def test_case(case: Any, kit: Kit, computed: list[str]) -> None:
    """Every solver of the plugin refuses the case in words or computes it right."""
    outcomes = kit.run(case)
    faults = [
        f"{o.solver}: {o.check}: {o.reason}\n  problem {o.problem}\n  rerun: {o.rerun(kit.plugin.name)}"
        for o in outcomes
        if o.status == "failed"
    ]
    assert not faults, "\n".join(faults)
    if all(outcome.status == "refused" for outcome in outcomes):
        pytest.skip("refused: " + "; ".join(dict.fromkeys(outcome.reason for outcome in outcomes)))
    computed.append(case.name)


def test_something_was_computed(request: pytest.FixtureRequest, computed: list[str]) -> None:
    """A plugin that refuses every case has proved nothing on this device."""
    if not request.config.getoption("--plugin", None) or request.node.session.testscollected < 10:
        pytest.skip("runs after a whole level")
    assert computed, "no case was computed; convdispatch verify lists the refusals"
