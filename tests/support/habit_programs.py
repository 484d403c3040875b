"""Programs of ``bench fuzz_torch`` whose one layer has habits in its code; without a compiler: each takes a second."""

from __future__ import annotations

import pytest

from bench import fuzz_habits as habits
from bench.cases import fuzz_torch as fuzz
from convdispatch.torch.graph import inductor

DOORS = ("backend", "enable", "converted")
"""Beside a fused model."""
WRITING = [habit for habit in habits.HABITS if not habit.startswith(("reads ", "asks "))]
Step = fuzz.Step


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    monkeypatch.setattr(inductor, "available", lambda device: False)
    defaults = fuzz.Backend.__init__.__defaults__
    yield
    fuzz.Backend.__init__.__defaults__ = defaults
    habits.reset()


def program(*steps, habit=(), engine="form"):
    return fuzz.Program(1, habit, steps, False, engine, None, simple=True)


def wrong(habit, door):
    """What is wrong with a model of one habit over three calls: what it reads, its weights and inputs change."""
    reads = habit if habit.startswith("reads ") else "an attribute"
    steps = (
        Step(other="same"),
        Step(state=reads, value=3.0, other="another"),
        Step(state=reads, value=2.0, change=".data.mul_", mode="grad", size=1, other="scalar"),
    )
    return fuzz.run(program(*steps, habit=(habit,)), door)
