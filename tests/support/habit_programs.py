"""Programs of ``bench fuzz_torch`` whose one layer has habits in its code; without a compiler: each takes a second."""

from __future__ import annotations

import pytest

from bench import fuzz_habits as habits
from bench.cases import fuzz_torch as fuzz
from convdispatch.torch.graph import inductor

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
