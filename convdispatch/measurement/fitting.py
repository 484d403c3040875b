"""Fits a solver's cost to its measured records: non-negative least squares of relative errors over three counts.

The model is ``a * flops / rates.flops + b * bytes / rates.bandwidth + c * rates.launch``: operations, bytes of the
operands, launches. Errors are relative, because choices compare ratios of times, for short layers as for long ones.
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

LEAST_SAMPLES = 4
"""The least number of measured problems that determines the model's three constants."""


@dataclass(frozen=True)
class Sample:
    """One measured problem, with its time and the present prediction of the solver's ``cost``, in milliseconds."""

    problem: ConvProblem
    measured_ms: float
    predicted_ms: float | None


@dataclass(frozen=True)
class Fit:
    """The constants of the model, its prediction for each sample, and the errors of model and present cost."""

    flops: float
    bytes: float
    launches: float
    fitted_ms: tuple[float, ...]
    off: float
    """The geometric mean of the factor, at least 1, between the fitted model's predictions and the measured times."""
    off_today: float | None
    """The geometric mean of that factor for the solver's present ``cost``; None if it predicts nothing."""

    def code(self) -> str:
        """The model as the Python text of a solver's method."""
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
    """Seconds of a problem's operations, of moving each tensor once, and of a launch, at a device's rates."""
    return problem.flops / rates.flops, problem.bytes / rates.bandwidth, rates.launch


def fit(samples: Sequence[Sample], rates: DeviceRates) -> Fit:
    """The best constants for the samples. Raises InvalidArgument if there are too few."""
    if len(samples) < LEAST_SAMPLES:
        raise InvalidArgument(
            f"{LEAST_SAMPLES} measured problems at least are needed to fit a cost, there are {len(samples)}: "
            "measure more with convdispatch find"
        )
    counts = np.array([terms(sample.problem, rates) for sample in samples])
    times = np.array([sample.measured_ms / 1e3 for sample in samples])
    constants = _least_squares(counts / times[:, None])
    fitted = counts @ constants
    predicted = [sample.predicted_ms for sample in samples]
    off_today = None if None in predicted else _mean_factor(np.array(predicted, float) / 1e3, times)
    return Fit(*map(float, constants), tuple(1e3 * fitted), _mean_factor(fitted, times), off_today)


def _least_squares(relative: np.ndarray) -> np.ndarray:
    """Non-negative constants by which the columns of ``relative`` add up to 1 best; all subsets are tried."""
    columns, ones = range(relative.shape[1]), np.ones(len(relative))
    best_constants, least_residual = np.zeros(relative.shape[1]), math.inf
    for chosen in itertools.chain.from_iterable(itertools.combinations(columns, count) for count in (1, 2, 3)):
        constants = np.linalg.lstsq(relative[:, chosen], ones, rcond=None)[0]
        residual = float(np.square(relative[:, chosen] @ constants - 1).sum())
        if (constants > 0).all() and residual < least_residual - 1e-12:
            best_constants, least_residual = np.zeros(relative.shape[1]), residual
            best_constants[list(chosen)] = constants
    return best_constants


def _mean_factor(predicted: Iterable[float], times: np.ndarray) -> float:
    return float(np.exp(np.abs(np.log(np.array(predicted) / times)).mean()))
