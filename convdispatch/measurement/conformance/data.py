"""The data of a case: integer and real operands, the expected float64 result, and the largest allowed error."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...api.activations import ACTIVATIONS, parse_activation
from ...api.dtypes import DTYPES, FLOAT8, numpy_dtype
from ...api.problem import ConvProblem
from .. import quantized, reference
from ..search.trialdata import error_limit, operand_shapes, operands_of, random_operands


@dataclass(frozen=True)
class Data:
    """One set of operands, in the problem's dtype, and the expected result, in float64."""

    kind: str
    operands: Mapping[str, np.ndarray]
    """The operands by name: x, w, y as the direction reads them, those of EXTRAS, and ``initial``, the output's
    previous content."""
    expected: np.ndarray


@functools.lru_cache(maxsize=64)
def data_for(problem: ConvProblem, kind: str, seed: int) -> Data:
    """``"nonfinite"`` data are integers, with a NaN and both infinities in the tensor that is convolved; of an even
    ``seed`` with one of them, so that few outputs read it.

    ``"integer"`` data lie within +-4, thinned until every sum is exact in the dtype; ``"real"`` are standard normal.

    Before an activation that saturates, all but the tensor that is convolved is divided by a power of two, so that sums
    deviate by about 1.
    Kept, as every solver is asked the same: the arrays must not be written to.
    """
    problem = problem.replace(constant_weights=False)
    if kind == "nonfinite":
        return _nonfinite(problem, data_for(problem, "integer", seed).operands, seed)
    if kind == "real" or problem.quantized:
        is_whole = kind == "integer" and problem.dtype in FLOAT8
        operands = quantized.random_operands(problem, seed, True) if is_whole else random_operands(problem, seed)
        expected = _compute(problem, operands)
    else:
        operands, expected = _integers(problem, seed)
    # A saturating activation hides errors of large sums, so operands are scaled until the sums deviate by about 1.
    if problem.activation is not None and ACTIVATIONS[parse_activation(problem.activation)[0]].saturates:
        deviation = float(_compute(problem.replace(activation=None), operands).std())
        scale = 2.0 ** -round(math.log2(max(deviation, 1.0)))
        unscaled = "y" if problem.direction == "bwd_data" else "x"
        operands = {
            name: array if name == unscaled else (array * array.dtype.type(scale)) for name, array in operands.items()
        }
        expected = _compute(problem, operands)
    return Data(kind, operands, expected)


def _nonfinite(problem: ConvProblem, operands: Mapping[str, np.ndarray], seed: int) -> Data:
    """Integer data with some infinities and NaNs in the tensor that is convolved."""
    name = "y" if problem.direction == "bwd_data" else "x"
    array = operands[name].copy()
    values = [np.inf, np.nan, -np.inf] if seed % 2 else [[np.inf, np.nan, -np.inf][seed // 2 % 3]]
    indices = np.random.default_rng(seed).choice(array.size, min(len(values), array.size), replace=False)
    array.reshape(-1)[indices] = np.array(values[: len(indices)], array.dtype)
    operands = {**operands, name: array}
    with np.errstate(all="ignore"):
        return Data("nonfinite", operands, _compute(problem, operands))


def _integers(problem: ConvProblem, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Operands whose sums are exact, with and without the epilogue, and the result."""
    plain = problem.replace(activation=None, bias=False, residual=False, accumulate=False, sums=False)
    plain = plain.replace(norm=None) if problem.masked else plain
    density = 1.0
    random = np.random.default_rng(seed)
    shapes = operand_shapes(problem)
    while True:
        operands = {
            name: (random.integers(-4, 5, shape) * (random.random(shape) < density)).astype(
                numpy_dtype(problem.form(name)[1])
            )
            for name, shape in shapes.items()
        }
        expected = _compute(problem, operands)
        plain_result = expected if plain == problem else _compute(plain, operands)
        largest = max(np.abs(expected).max(initial=0), np.abs(plain_result).max(initial=0) + 8)
        if largest <= 1 / DTYPES[problem.dtype].epsilon:
            return operands, expected
        density /= 2


def _compute(problem: ConvProblem, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    return reference.compute(problem, **operands_of(problem, operands))


def allowed(problem: ConvProblem, kind: str, exact: bool) -> float:
    """Largest relative error (norm, against float64) that counts as right; 0 means that every element must be equal.

    A solver that claims exactness must be exact on integer data. On other data, and for other solvers, the error limit
    of the dtype and the problem's ``math`` applies.
    """
    activations = [text for text in (problem.activation, problem.norm_activation) if text is not None]
    rounds = not all(ACTIVATIONS[parse_activation(text)[0]].exact for text in activations)
    return 0.0 if kind == "integer" and exact and not rounds else error_limit(problem)
