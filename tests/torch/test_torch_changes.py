"""Models with habits, changed between two calls and called in other ways; how the fuzzer finds what is wrong."""

import pytest
from habit_programs import DOORS, program, without_a_compiler  # noqa: F401 (a fixture)

from bench.cases import fuzz_torch as fuzz
from bench.fuzz_writes import CHANGES

Step = fuzz.Step


@pytest.mark.parametrize("engine", ["form", pytest.param("operators", marks=pytest.mark.full)])
@pytest.mark.parametrize("door", ["fused", *(pytest.param(door, marks=pytest.mark.full) for door in DOORS)])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_calls(change, door, engine):
    steps = Step(), Step(change=change, value=2.0), Step(), Step(change=change, value=3.0, mode="grad")
    assert fuzz.run(program(*steps, habit=("functional",), engine=engine), door) is None


@pytest.mark.parametrize("way", ["copied", "methods", "one method", "thread", "twice", "checkpoint"])
def test_ways(way):
    assert (
        fuzz.run(program(Step(way=way), Step(change="mul_", way=way), habit=("reads an attribute",)), "fused") is None
    )


def test_what_is_wrong_is_found_and_made_small(monkeypatch):
    """As if a compiled model did not see that its weights were written."""
    own = CHANGES["mul_"]
    monkeypatch.setitem(CHANGES, "mul_", lambda world: None if world.door == "fused" else own(world))
    steps = Step(size=1), Step(change="mul_", mode="inference"), Step(way="thread")
    found = program(*steps, habit=("reads an attribute",))
    assert "step 1" in str(fuzz.run(found, "fused"))
    small = fuzz.shrunk(found, "fused")
    assert small.habits == ()
    assert small.steps == (Step(change="mul_"),)
