"""The check of the level accuracy: a plan on every family of data, its worst plane against what normal data cost it."""

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
    """Compute every family of the problem's direction. Raises Fault naming those whose error is beyond its limit.

    Every output that reads an infinity or NaN must be one. They may reach others of its plane where a solver says so
    (``spreads_nonfinite``) and where those of weights, or of dy in weights' gradients, meet a stored zero, but no other
    plane.
    """
    problem, spread, lost = examination.problem, examination.solver.spreads_nonfinite, []
    normal = 0.0
    for family in families(problem.direction):
        operands, expected, entered = _drawn(_plain(problem), family)
        got = examination.compute(operands)
        errors = plane_errors(problem, got, expected, entered, spread=spread or family == "nonfinite_partner")
        worst = float(errors.max(initial=0))
        normal = worst if family == "normal" else normal
        limit = 3 * error_limit(problem) if family == "normal" else family_limit(problem, family, normal)
        examination.errors[family] = worst
        if not worst <= limit:
            where = tuple(int(i) for i in np.unravel_index(np.argmax(errors), errors.shape))
            lost.append(f"{family} ({FAMILIES[family]}): plane {where} errs by {worst:.2g}, at most {limit:.2g}")
    if lost:
        raise Fault("families", f"{'; '.join(lost)}; normal data: {normal:.2g}")


def _plain(problem: ConvProblem) -> ConvProblem:
    return problem.replace(constant_weights=False, math="float32")


@functools.lru_cache(maxsize=32)
def _drawn(problem: ConvProblem, family: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Operands, what they should give, and what enters it; kept, as every solver and ``math`` is asked the same."""
    operands = draw(family, problem, seed=3)
    with np.errstate(invalid="ignore"):
        expected = reference.compute(problem, **operands_of(problem, operands))
    return operands, expected, entering(problem, operands)
