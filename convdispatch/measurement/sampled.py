"""Compares a computed tensor with float64 at sampled elements, for a caller's own data."""

from __future__ import annotations

import numpy as np

from ..api.dtypes import FLOAT8
from ..api.problem import ConvProblem
from .reference import positions, relative_error, sample
from .search.trialdata import error_limit


def sampled_fault(problem: ConvProblem, got: np.ndarray, **operands: np.ndarray) -> str | None:
    """The fault of ``got``, the written tensor in the problem's layout, as text; None if it is right.

    The error (root mean square) is relative to the sums of |x| times |w|, or to the whole tensor if that is larger,
    because the terms of a caller's data may cancel. Data that are not finite are not compared.
    """
    got = np.asarray(got).reshape(-1).astype(np.float64)
    if problem.dtype in FLOAT8:
        expected = sample(problem, at := positions(problem), **operands)
        error, limit = relative_error(got[at], expected), 2 * error_limit(problem)
        message = f"relative error {error:.2g} over {at.size} sampled elements, at most {limit:.2g} counts as right"
        return message if np.isfinite(expected).all() and not error <= limit else None
    if problem.quantized:
        at = positions(problem)
        return _inequality(got[at], sample(problem, at, **operands), at)
    wide = {name: np.asarray(array).astype(np.float64) for name, array in operands.items()}
    if not got.size or not all(np.isfinite(array).all() for array in wide.values()):
        return None
    at = positions(problem)
    expected = sample(problem, at, **wide)
    summed = sample(problem.replace(activation=None), at, **{name: np.abs(array) for name, array in wide.items()})
    largest = 65504.0 if problem.dtype == "float16" else 3e38
    is_judged = np.abs(summed) < largest  # A partial sum of larger ones may exceed the range of the dtype.
    if not is_judged.any():
        return None
    values = got[at][is_judged]
    if not np.isfinite(values).all():
        return f"{int((~np.isfinite(values)).sum())} of {values.size} sampled elements are not finite"
    finite = got[np.isfinite(got)]
    size = max(_rms(summed[is_judged]), _rms(finite), np.finfo(np.float32).tiny)
    error = _rms(values - expected[is_judged]) / size
    limit = 2 * error_limit(problem)
    if error <= limit:
        return None
    worst = int(np.argmax(np.abs(values - expected[is_judged])))
    return (
        f"relative error {error:.2g} over {values.size} sampled elements, at most {limit:.2g} counts as right; element "
        f"{int(at[is_judged][worst])} is {values[worst]:.6g}, float64 says {expected[is_judged][worst]:.6g}"
    )


def _inequality(values: np.ndarray, expected: np.ndarray, at: np.ndarray) -> str | None:
    """The fault of elements that must equal the expected ones, as text; None if they do."""
    wrong = np.flatnonzero(values != expected)
    if not wrong.size:
        return None
    first = int(wrong[0])
    return (
        f"{wrong.size} of {values.size} sampled elements differ; element {int(at[first])} is {values[first]:.9g}, "
        f"exactly it is {expected[first]:.9g}"
    )


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
