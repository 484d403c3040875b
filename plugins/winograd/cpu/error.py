"""The measured error of each tile size, and whether a problem's math mode admits it.

Relative errors (norm, against float64, standard normal data) grow with the root of the number of products that a
transformed element sums; ``bench/winograd_error.py`` prints the table of docs/winograd.md, from which the rates come.
"""

from __future__ import annotations

import math

from convdispatch.api import ConvProblem

__all__ = ["TILES", "expected_error", "plain_error", "refusal"]

# (m, r): error over the root of the products summed, for kernels along both axes and along one; forward and data
# gradient, then the weights' gradient, whose rounding is of other sizes.
_RATE: dict[tuple[int, int], tuple[float, float, float, float]] = {
    (2, 3): (3.2e-8, 2.6e-8, 3.2e-8, 2.6e-8),
    (4, 3): (9.5e-8, 4.3e-8, 9.5e-8, 4.3e-8),
    (5, 3): (2.0e-7, 6.2e-8, 2.0e-7, 6.2e-8),
    (6, 3): (4.1e-7, 9.1e-8, 4.1e-7, 9.1e-8),
    (2, 5): (1.1e-7, 4.6e-8, 1.1e-7, 4.6e-8),
    (4, 5): (3.8e-7, 8.9e-8, 3.8e-7, 8.9e-8),
    (4, 7): (2.2e-6, 2.2e-7, 2.2e-6, 2.2e-7),
}
TILES = tuple(_RATE)
"""Tiles and kernels, (m, r), that have a solver."""
_LIMIT = {"float32": 1e-5, "tf32": 2e-3, "fast": 5e-2}


def _terms(problem: ConvProblem) -> int:
    """Products that an element of a transformed tile sums, at least those below which the rate says nothing."""
    if problem.direction == "bwd_weights":
        return max(32, min(512, problem.mb * problem.oh * problem.ow // 16))
    return max(32, (problem.oc if problem.direction == "bwd_data" else problem.ic) // problem.g)


def expected_error(problem: ConvProblem, m: int, r: int) -> float:
    """Relative error of F(m, r) on standard normal data."""
    one_axis = 1 in (problem.kh, problem.kw)
    rate = _RATE[m, r][int(one_axis) + 2 * int(problem.direction == "bwd_weights")]
    return rate * math.sqrt(_terms(problem))


def plain_error(problem: ConvProblem) -> float:
    """Relative error of a running float32 sum of the direct method's length."""
    taps = problem.kh * problem.kw
    if problem.direction == "bwd_weights":
        length = problem.mb * problem.oh * problem.ow
    else:
        length = (problem.oc if problem.direction == "bwd_data" else problem.ic) // problem.g * taps
    return 2.0e-8 * math.sqrt(max(length, 8))


def refusal(problem: ConvProblem, m: int, r: int) -> str | None:
    """Why the problem's math does not admit the tile, or None."""
    if problem.dtype == "float16" or problem.dtype == "bfloat16" or problem.dtype == "float64":
        return None
    error = expected_error(problem, m, r)
    if problem.math == "ieee":
        limit = 2 * plain_error(problem)
        return None if error <= limit else f"as good as a plain sum, {limit:.1e}, wanted by ieee, got {error:.1e}"
    limit = _LIMIT[problem.math]
    return None if error <= limit else f"an error of {limit:.0e} at most, got {error:.1e}"
