"""The measured error of each tile size, and whether a problem's math mode admits it.

Relative errors (norm, against float64, standard normal data) grow with the root of the number of products that a
transformed element sums one after the other. ``bench/cases/winograd_error.py`` prints the tables of
docs/results/accuracy.md, where the rates come from.
"""

from __future__ import annotations

import math

from convdispatch.api import ConvProblem
from convdispatch.api.activations import ACTIVATIONS, parse_activation

from .case import summed

# Relative error of F(m, r) over the square root of the number of products summed, in every direction: (kernels along
# both axes, kernels along one axis).
_RATE = {
    (2, 3): (3.3e-8, 2.5e-8),
    (4, 3): (9.4e-8, 4.4e-8),
    (5, 3): (2.0e-7, 6.3e-8),
    (6, 3): (4.1e-7, 9.5e-8),
    (7, 3): (1.02e-6, 1.5e-7),
    (2, 5): (1.1e-7, 4.6e-8),
    (4, 5): (3.8e-7, 8.7e-8),
    (2, 7): (4.9e-7, 1.0e-7),
    (4, 7): (2.2e-6, 2.2e-7),
}
TILES = tuple(_RATE)
"""Tiles and kernels, (m, r), that have a solver."""
MAX_ERRORS = {"float32": 1e-5, "tf32": 2e-3, "fast": 5e-2}
"""Relative error that each math mode allows."""
EXPECTED_SHARE = 0.8
"""Share of a limit that the expected error may reach, because other data may have a larger error."""


def _length(problem: ConvProblem) -> int:
    """Number of products that one element of the result sums in the direct convolution."""
    if problem.direction == "bwd_weights":
        return problem.mb * problem.oh * problem.ow
    channels = problem.oc if problem.direction == "bwd_data" else problem.ic
    return channels // problem.g * problem.kh * problem.kw


def expected_error(problem: ConvProblem, m: int, r: int) -> float:
    """Relative error of F(m, r) on standard normal data."""
    axes = (problem.kh > 1) + (problem.kw > 1)
    merged = m**axes if problem.direction == "bwd_weights" else r**axes
    terms = max(1, _length(problem) // merged)
    run = summed(m, r)
    # A transformed element is a sum of running sums; for sums of fewer than 32 products its own rounding error
    # dominates.
    return _RATE[m, r][2 - axes] * math.sqrt(max(32, min(terms, run) + terms / run))


def shrunk(problem: ConvProblem) -> float:
    """Factor by which the activation increases the relative error on standard normal data."""
    name, numbers = parse_activation(problem.activation or "relu")
    factor = 0.9 / math.sqrt(max(numbers[1] - numbers[0], 1e-9) / 2) if name == "clip" else ACTIVATIONS[name].shrinks
    return max(1.0, factor * _length(problem) ** 0.25)


def plain_error(problem: ConvProblem) -> float:
    """Relative error of one running float32 sum of the direct method's length."""
    return 1.4e-8 * math.sqrt(max(_length(problem), 32))


def refusal(problem: ConvProblem, m: int, r: int) -> str | None:
    """Why the problem's math does not admit the tile, or None; 16-bit data round worse than any tile does."""
    if problem.dtype != "float32":
        return None
    error = expected_error(problem, m, r)
    if problem.math == "ieee":
        limit = 2 * plain_error(problem)
        return (
            None
            if error <= EXPECTED_SHARE * limit
            else f"twice a plain sum's error, {limit:.1e}, at most, got {error:.1e}"
        )
    limit, growth = MAX_ERRORS[problem.math], shrunk(problem)
    if error * growth <= EXPECTED_SHARE * limit:
        return None
    note = f", {growth:.1f} times that behind {problem.activation}" if growth > 1 else ""
    return f"an error surely within {limit:.0e} only, got {error:.1e}{note}"
