"""Models whose code writes Python's state, enters contexts or draws numbers: fused and compiled, as the model."""

import pytest
from habit_programs import WRITING, without_a_compiler, wrong  # noqa: F401 (a fixture)


@pytest.mark.parametrize("door", ["fused", "backend"])
@pytest.mark.parametrize("habit", WRITING)
def test_habits_that_write(habit, door):
    assert wrong(habit, door) is None
