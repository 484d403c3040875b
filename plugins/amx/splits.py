"""How an element becomes bfloat16 numbers: their count, and which pairs of planes are multiplied.

| split | planes | significant bits | products | for |
|---|---|---|---|---|
| ``bfloat1`` | 1 | 8 | 1 | bfloat16 |
| ``bfloat2`` | 2 | 16 | 3 | float16, and float32 within 1e-5 of float64 |
| ``bfloat3`` | 3 | 24 | 6 | float32 before a bounded activation |

Products that are smaller than the last bit of the sum of the others are left out (Henry, Tang and Heinecke 2019). Sums
are float32; each plane has float32's range, so that nothing looks for scales. ``math="ieee"`` is not offered: the third
planes' products of small numbers fall below the least normal number, which these instructions take for 0.

What is bounded, as ``tanh`` and ``sigmoid`` are, stays small where the sums and their errors grow: ``bfloat3`` there.
"""

from __future__ import annotations

from convdispatch.api import ConvProblem
from convdispatch.api.activations import ACTIVATIONS, parse_activation

PRODUCTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    2: ((0, 1), (0, 0), (1, 0)),
    3: ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0)),
}
"""For each number of planes, the products (plane of A, plane of B), in an order that loads few tiles."""


def planes_of(problem: ConvProblem) -> int:
    """Number of bfloat16 planes that reach the accuracy that the problem asks for; 0 if no number does."""
    if problem.dtype == "float32":
        name = problem.activation and parse_activation(problem.activation)[0]
        return 0 if problem.math == "ieee" else 3 if name and ACTIVATIONS[name].saturates else 2
    return {"bfloat16": 1, "float16": 2}[problem.dtype]
