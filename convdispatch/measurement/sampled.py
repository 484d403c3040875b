"""Judges a computed tensor by float64 at a sample of its places, on a caller's own data."""

from __future__ import annotations

import numpy as np

from ..api.dtypes import FLOAT8
from ..api.problem import ConvProblem
from .reference import positions, relative_error, sample
from .search.trialdata import error_limit


def sampled_fault(problem: ConvProblem, got: np.ndarray, **operands: np.ndarray) -> str | None:
    """Return as text what is wrong with ``got``, the written tensor in the problem's layout; None if it is right.

    The error (root mean square) is held against what is summed, |x| times |w|, or against the whole tensor where that
    is more: a caller's data may cancel, and are no fault of the solver's. Data that are not finite are not judged.
    """
    got = np.asarray(got).reshape(-1).astype(np.float64)
    if problem.dtype in FLOAT8:
        expected = sample(problem, at := positions(problem), **operands)
        error, limit = relative_error(got[at], expected), 2 * error_limit(problem)
        said = f"relative error {error:.2g} over {at.size} sampled elements, at most {limit:.2g} counts as right"
        return said if np.isfinite(expected).all() and not error <= limit else None
    if problem.quantized:
        at = positions(problem)
        return _differing(got[at], sample(problem, at, **operands), at)
    wide = {name: np.asarray(array).astype(np.float64) for name, array in operands.items()}
    if not got.size or not all(np.isfinite(array).all() for array in wide.values()):
        return None
    at = positions(problem)
    expected = sample(problem, at, **wide)
    summed = sample(problem.replace(activation=None), at, **{name: np.abs(array) for name, array in wide.items()})
    most = 65504.0 if problem.dtype == "float16" else 3e38
    judged = np.abs(summed) < most  # Larger sums are not judged: a partial sum may exceed the dtype's range on the way.
    if not judged.any():
        return None
    found = got[at][judged]
    if not np.isfinite(found).all():
        return f"{int((~np.isfinite(found)).sum())} of {found.size} sampled elements are not finite"
    whole = got[np.isfinite(got)]
    size = max(_rms(summed[judged]), _rms(whole), np.finfo(np.float32).tiny)
    error = _rms(found - expected[judged]) / size
    limit = 2 * error_limit(problem)
    if error <= limit:
        return None
    worst = int(np.argmax(np.abs(found - expected[judged])))
    return (
        f"relative error {error:.2g} over {found.size} sampled elements, at most {limit:.2g} counts as right; element "
        f"{int(at[judged][worst])} is {found[worst]:.6g}, float64 says {expected[judged][worst]:.6g}"
    )


def _differing(found: np.ndarray, expected: np.ndarray, at: np.ndarray) -> str | None:
    """What is wrong with elements that must be equal."""
    wrong = np.flatnonzero(found != expected)
    if not wrong.size:
        return None
    first = int(wrong[0])
    return (
        f"{wrong.size} of {found.size} sampled elements differ; element {int(at[first])} is {found[first]:.9g}, "
        f"exactly it is {expected[first]:.9g}"
    )


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
