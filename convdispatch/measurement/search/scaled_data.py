"""The second data of a trial: operands whose images, channels and summed axis differ in scale, and the error on them.

A solver that uses one scale for a whole tensor is right on normal data and loses digits on these. The error is that of
the worst of some planes, at sampled elements, relative to the size of their terms.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...api.problem import ConvProblem
from .. import reference
from .families import draw, entering, plane_positions
from .trialdata import error_limit, operands_of

PLANES = 8
"""The number of planes of the output that are compared."""
ELEMENTS_PER_PLANE = 8
"""The number of elements of each plane that are compared."""


class Scaled:
    """A problem's operands of the family "scaled", and the expected values of sampled planes."""

    def __init__(self, problem: ConvProblem, seed: int = 0) -> None:
        self.host: Mapping[str, np.ndarray] = draw("scaled", problem, seed)
        self.at = plane_positions(problem, PLANES, ELEMENTS_PER_PLANE, seed)
        self._expected: dict[ConvProblem, tuple[np.ndarray, np.ndarray]] = {}

    def error(self, problem: ConvProblem, got: np.ndarray) -> float:
        """The error of ``got``, the result's elements at ``at.ravel()``; infinite if one is not finite.

        ``problem`` is that of the operands, perhaps without a part of its epilogue.
        """
        if not self.at.size:
            return 0.0
        if problem not in self._expected:
            at, operands = self.at.ravel(), operands_of(problem, self.host)
            expected = reference.sample(problem, at, **operands)
            size = np.maximum(np.abs(expected), entering(problem, operands, at))
            self._expected[problem] = expected, np.maximum(size, np.finfo(np.float64).tiny)
        expected, size = self._expected[problem]
        got = np.asarray(got).astype(np.float64).ravel()
        if not np.isfinite(got).all():
            return float("inf")
        errors = ((got - expected) / size).reshape(self.at.shape)
        return float(np.sqrt((errors**2).mean(axis=1)).max())

    @staticmethod
    def limit(problem: ConvProblem, normal: float) -> float:
        """The largest error that counts as right, if the error on normal data is ``normal``."""
        return max(error_limit(problem), 3 * normal)
