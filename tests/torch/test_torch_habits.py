"""Models whose code reads and writes Python's state, asks tensors and modes, or enters contexts: compiled models do as
the model itself, at each call. The habits are bench's, whose fuzzer combines them."""

import pytest
import torch
from habit_programs import DOORS, WRITING, program, without_a_compiler, wrong  # noqa: F401 (a fixture)

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


@pytest.mark.parametrize("habit", [habit for habit in habits.HABITS if habit not in WRITING])
def test_habits_that_read_and_ask(habit):
    assert wrong(habit, "fused") is None


@pytest.mark.full
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("habit", habits.HABITS)
def test_habits_behind_every_door(habit, door):
    assert wrong(habit, door) is None


def test_seeds_are_programs_that_pytorch_runs():
    """Nearly each program's first step; some are what PyTorch does not do."""
    ran = 0
    for seed in range(60):
        habits.reset()
        world = fuzz.World(fuzz.Program.of(seed), "own")
        world.step = world.program.steps[0]
        ran += fuzz._raised(world, seed)[1] is None
    assert ran > 45
