"""Minimal filtering's matrices are exact, and the printed programs compute them in few operations."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest
from convdispatch_winograd.program import program
from convdispatch_winograd.transforms import default_points, transform

SIZES = [(m, r) for r in (1, 2, 3, 4, 5, 7) for m in range(1, 9) if m + r <= 11]


def times(matrix, values):
    return [sum(a * b for a, b in zip(row, values, strict=True)) for row in matrix]


@pytest.mark.parametrize("once", ["g", "at"])
@pytest.mark.parametrize(("m", "r"), SIZES)
def test_filters_exactly(m, r, once):
    t = transform(m, r, None, once)
    source = random.Random(10 * m + r)
    d, g = ([Fraction(source.randint(-9, 9)) for _ in range(n)] for n in (t.alpha, r))
    products = [a * b for a, b in zip(times(t.g, g), times(t.bt, d), strict=True)]
    assert times(t.at, products) == [sum(g[k] * d[i + k] for k in range(r)) for i in range(m)]


def test_other_points():
    """The textbook's matrices of F(2, 3), up to the rows' scale."""
    t = transform(2, 3, (Fraction(0), Fraction(1), Fraction(-1)))
    assert t.bt[1] == (0, 1, 1, 0)
    assert t.g[1] == (Fraction(1, 2),) * 3
    assert t.at == ((1, 1, 1, 0), (0, 1, -1, 1))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: transform(0, 3), "1 or more"),
        (lambda: transform(2, 3, (Fraction(0), Fraction(1), Fraction(1))), "3 different finite points"),
        (lambda: transform(2, 3, None, "bt"), "once is"),
        (lambda: default_points(10), "9 finite points at most"),
        (lambda: program([[Fraction(1)]], ["a", "b"], ["c"]), "1 rows by 2 columns"),
    ],
)
def test_errors_say_what_was_expected(call, reason):
    with pytest.raises(ValueError, match=reason):
        call()


@pytest.mark.parametrize("once", ["g", "at"])
@pytest.mark.parametrize(("m", "r"), SIZES)
def test_programs_compute_the_matrices(m, r, once):
    t = transform(m, r, None, once)
    for matrix in (t.bt, t.g, t.at):
        inputs, outputs = [f"x{i}" for i in range(len(matrix[0]))], [f"o{i}" for i in range(len(matrix))]
        made = program(matrix, inputs, outputs, declare=True)
        values = {name: float(i * i + 1) for i, name in enumerate(inputs)}
        for line in made.text.splitlines():
            exec(re.sub(r"(\d)f\b", r"\1", line.removeprefix("const float ").rstrip(";")), values)
        expected = times([[float(v) for v in row] for row in matrix], [values[name] for name in inputs])
        assert [values[name] for name in outputs] == pytest.approx(expected, rel=1e-12, abs=1e-9)
        # Never more than one multiply-add for each factor.
        assert made.operations <= sum(value != 0 for row in matrix for value in row)


@pytest.mark.parametrize(("m", "counts"), [(2, (4, 5, 4)), (4, (12, 11, 12)), (6, (24, 15, 20))])
def test_operations_are_few(m, counts):
    """As few as the hand-made programs of the literature: F(4, 3)'s input transform is 12 with multiply-adds."""
    t = transform(m, 3)
    found = [
        program(matrix, [f"x{i}" for i in range(len(matrix[0]))], [f"o{i}" for i in range(len(matrix))]).operations
        for matrix in (t.bt, t.g, t.at)
    ]
    assert all(a <= b for a, b in zip(found, counts, strict=True)), found


def test_types_and_names():
    made = program(((Fraction(1, 2), Fraction(1)),), ["a", "b"], ["c[3]"], type="float16", dtype="double")
    assert made.text == "c[3] = 0.5 * a + b;\n"
    assert made.operations == 1
