"""Models whose code reads and writes Python's state, asks tensors and modes, or enters contexts: compiled models do as
the model itself, at each call. The habits and changes are bench's, whose fuzzer combines them."""

import pytest
import torch

from bench import fuzz_habits as habits
from bench.cases import fuzz_torch as fuzz
from bench.fuzz_writes import CHANGES
from convdispatch.torch.graph import inductor

Step = fuzz.Step
FULL = [pytest.param(door, marks=pytest.mark.full) for door in ("backend", "enable", "converted")]


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    monkeypatch.setattr(inductor, "available", lambda device: False)
    defaults = fuzz.Backend.__init__.__defaults__
    yield
    fuzz.Backend.__init__.__defaults__ = defaults
    habits.reset()


def program(*steps, habit=(), engine="form"):
    return fuzz.Program(1, habit, steps, False, engine, None, simple=True)


def test_a_state_that_is_set_changes_what_is_read():
    for name in habits.READS:
        habits.reset()
        world = fuzz.World(program(habit=(f"reads {name}",)), "own")
        results = []
        for value in (1.0, 3.0):
            world.step = Step(state=f"reads {name}", value=value)
            torch.manual_seed(0)
            results.append(world.run()["result"])
        assert not torch.allclose(*results), name


@pytest.mark.parametrize(
    ("habit", "change"),
    [*((habit, "nothing") for habit in habits.HABITS), *(("functional", change) for change in CHANGES)],
)
def test_pytorch_does_what_is_compared(habit, change):
    habits.reset()
    world = fuzz.World(program(habit=(habit,)), "own")
    last = "no_grad" if habit == "writes its input" else "grad"  # which needs it as it was
    for step in (Step(), Step(change=change, other="another"), Step(other="scalar", mode=last)):
        world.step = step
        assert fuzz._raised(world, 0)[1] is None


WRITING = [habit for habit in habits.HABITS if not habit.startswith(("reads ", "asks "))]


@pytest.mark.parametrize(
    ("habit", "door"),
    [
        *((habit, "fused") for habit in habits.HABITS),
        *((habit, "backend") for habit in WRITING),
        *(pytest.param(habit, door.values[0], marks=pytest.mark.full) for habit in habits.HABITS for door in FULL),
    ],
)
def test_habits(habit, door):
    reads = habit if habit.startswith("reads ") else "an attribute"
    steps = (
        Step(other="same"),
        Step(state=reads, value=3.0, other="another"),
        Step(state=reads, value=2.0, change=".data.mul_", mode="grad", size=1, other="scalar"),
    )
    assert fuzz.run(program(*steps, habit=(habit,)), door) is None


@pytest.mark.parametrize("engine", ["form", pytest.param("operators", marks=pytest.mark.full)])
@pytest.mark.parametrize("door", ["fused", *FULL])
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


def test_seeds_are_programs_that_pytorch_runs():
    """Nearly each program's first step; some are what PyTorch does not do."""
    ran = 0
    for seed in range(60):
        habits.reset()
        world = fuzz.World(fuzz.Program.of(seed), "own")
        world.step = world.program.steps[0]
        ran += fuzz._raised(world, seed)[1] is None
    assert ran > 45
