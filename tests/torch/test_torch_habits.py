"""Models whose code reads and writes Python's state, asks tensors and modes, or enters contexts: compiled models do as
the model itself, at each call. The habits are bench's, whose fuzzer combines them."""

import pytest
import torch
from habit_programs import FULL, program, without_a_compiler  # noqa: F401 (a fixture)

from bench import fuzz_habits as habits
from bench.cases import fuzz_torch as fuzz
from bench.fuzz_writes import CHANGES

Step = fuzz.Step


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


def test_seeds_are_programs_that_pytorch_runs():
    """Nearly each program's first step; some are what PyTorch does not do."""
    ran = 0
    for seed in range(60):
        habits.reset()
        world = fuzz.World(fuzz.Program.of(seed), "own")
        world.step = world.program.steps[0]
        ran += fuzz._raised(world, seed)[1] is None
    assert ran > 45
