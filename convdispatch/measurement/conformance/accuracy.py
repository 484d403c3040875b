"""The check of the level accuracy: a plan's worst error on every family of data, against its error on normal data."""

from __future__ import annotations

import functools

import numpy as np

from ...api.problem import ConvProblem
from .. import reference
from ..search.families import FAMILIES, draw, entering, families, family_limit, plane_errors
from ..search.trialdata import error_limit, operands_of
from .checks import Examination
from .memory import Fault


def examine(examination: Examination) -> None:
    """Compute every family of the problem's direction. Raises Fault that names those whose error exceeds its limit.

    Every output that reads an infinity or NaN must be infinite or NaN. Other outputs of its plane may be too if the
    solver states ``spreads_nonfinite``, or if the value is in the weights (or in dy, for weight gradients).
    """
    problem, spread, failures = examination.problem, examination.solver.spreads_nonfinite, []
    normal = 0.0
    for family in families(problem.direction):
        operands, expected, entered = _family_data(_in_float32(problem), family)
        result = examination.compute(operands)
        errors = plane_errors(problem, result, expected, entered, spread=spread or family == "nonfinite_partner")
        worst = float(errors.max(initial=0))
        normal = worst if family == "normal" else normal
        limit = 3 * error_limit(problem) if family == "normal" else family_limit(problem, family, normal)
        examination.errors[family] = worst
        if not worst <= limit:
            plane = tuple(int(i) for i in np.unravel_index(np.argmax(errors), errors.shape))
            failures.append(f"{family} ({FAMILIES[family]}): plane {plane} errs by {worst:.2g}, at most {limit:.2g}")
    if failures:
        raise Fault("families", f"{'; '.join(failures)}; normal data: {normal:.2g}")


def _in_float32(problem: ConvProblem) -> ConvProblem:
    return problem.replace(constant_weights=False, math="float32")


@functools.lru_cache(maxsize=32)
def _family_data(problem: ConvProblem, family: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Operands, expected result and size of its terms; cached, because every solver and ``math`` gets the same."""
    operands = draw(family, problem, seed=3)
    with np.errstate(invalid="ignore"):
        expected = reference.compute(problem, **operands_of(problem, operands))
    return operands, expected, entering(problem, operands)
