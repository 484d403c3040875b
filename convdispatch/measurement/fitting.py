"""Fits a solver's cost to its measured records: non-negative least squares of relative errors over three counts.

The model is ``a * flops / rates.flops + b * bytes / rates.bandwidth + c * rates.launch``: direct sums, what must move
once, launches. Relative errors, because what matters between solvers is a ratio, for short layers as for long ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..api.rates import DeviceRates

LEAST = 4
"""The least number of measured problems that determines the model's three constants."""


@dataclass(frozen=True)
class Sample:
    """One problem that was measured, and what the solver's ``cost`` predicts for it today. Milliseconds."""

    problem: ConvProblem
    measured_ms: float
    predicted_ms: float | None


@dataclass(frozen=True)
class Fit:
    """The constants of the model, what it gives for each sample, and how far it and today's cost are off."""

    flops: float
    bytes: float
    launches: float
    fitted_ms: tuple[float, ...]
    off: float
    """The geometric mean of the factor, at least 1, between the fitted model's predictions and the measured times."""
    off_today: float | None
    """The geometric mean of that factor for the solver's present ``cost``; None if it predicts nothing."""

    def code(self) -> str:
        """The model as a solver's method."""
        parts = []
        if self.flops:
            parts.append(f"{self.flops:.3g} * problem.flops / rate.flops")
        if self.bytes:
            parts.append(f"{self.bytes:.3g} * problem.bytes / rate.bandwidth")
        if self.launches:
            parts.append(f"{self.launches:.3g} * rate.launch")
        lines = ["def cost(self, problem, device, config):", "    rate = rates(device)"]
        return "\n".join([*lines, f"    return {' + '.join(parts)}"])


def terms(problem: ConvProblem, rates: DeviceRates) -> tuple[float, float, float]:
    """Seconds of a problem's direct sum, of moving each tensor once, and of a launch, at a device's rates."""
    return problem.flops / rates.flops, problem.bytes / rates.bandwidth, rates.launch


def fit(samples: Sequence[Sample], rates: DeviceRates) -> Fit:
    """The best constants for the samples. Raises InvalidArgument where there are too few."""
    if len(samples) < LEAST:
        raise InvalidArgument(
            f"{LEAST} measured problems at least are needed to fit a cost, there are {len(samples)}: "
            "measure more with convdispatch find"
        )
    counts = np.array([terms(sample.problem, rates) for sample in samples])
    times = np.array([sample.measured_ms / 1e3 for sample in samples])
    best = _least_squares(counts / times[:, None])
    fitted = counts @ best
    today = [sample.predicted_ms for sample in samples]
    off_today = None if None in today else _off(np.array(today, float) / 1e3, times)
    return Fit(*map(float, best), tuple(1e3 * fitted), _off(fitted, times), off_today)


def _least_squares(relative: np.ndarray) -> np.ndarray:
    """Constants above 0 by which the columns of ``relative`` add up to 1 best: of every choice of columns the best."""
    columns, ones = range(relative.shape[1]), np.ones(len(relative))
    best, least = np.zeros(relative.shape[1]), math.inf
    for chosen in itertools.chain.from_iterable(itertools.combinations(columns, count) for count in (1, 2, 3)):
        some = np.linalg.lstsq(relative[:, chosen], ones, rcond=None)[0]
        left = float(np.square(relative[:, chosen] @ some - 1).sum())
        if (some > 0).all() and left < least - 1e-12:
            best, least = np.zeros(relative.shape[1]), left
            best[list(chosen)] = some
    return best


def _off(predicted: Iterable[float], times: np.ndarray) -> float:
    return float(np.exp(np.abs(np.log(np.array(predicted) / times)).mean()))
