"""How an element is split into bfloat16 numbers: how many, and which pairs of planes are multiplied.

| split | planes | significant bits | products | for |
|---|---|---|---|---|
| ``bfloat1`` | 1 | 8 | 1 | bfloat16 |
| ``bfloat2`` | 2 | 16 | 3 | float16, and float32 within 1e-5 of float64 |
| ``bfloat3`` | 3 | 24 | 6 | float32 before a bounded activation |

Products smaller than the last bit of the sum of the others are omitted (Henry, Tang and Heinecke 2019). Sums are
float32; each plane has float32's range, so that no scales are needed. ``math="ieee"`` is refused: products of small
numbers in the third plane are subnormal, which these instructions flush to 0.

The result of a bounded activation such as ``tanh`` or ``sigmoid`` stays small while sums and their errors grow, so such
problems use ``bfloat3``.
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
