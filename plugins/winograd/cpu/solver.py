"""The solvers ``winograd.f<m>x<r>`` for CPUs: F(m, r) along every axis with r taps, in every direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Plan, Solver, rates
from convdispatch.api.activations import ACTIVATIONS, parse_activation
from convdispatch.api.cpu import lanes, registers

from ..geometry import ERROR_RATES, unsuited
from .case import Case, summed
from .choice import Pace, configs, kernel, predicted

MIN_CHANNELS = 16
"""Least channels per group: with 8, implicit GEMM takes 0.4 to 1.1 of the time (docs/results/cpu-layers.md)."""
MIN_SAVING = 1.2
"""Least multiplications of the direct convolution over Winograd's: below, transforms cost more than they save."""


class Winograd(Solver):
    """Tiles of m along every axis with r taps: stride 1, 1-D and 2-D, groups, any padding, layout and dtype."""

    def __init__(self, m: int, r: int) -> None:
        self.m, self.r = m, r

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        reason = unsuited(problem, self.r)
        if reason:
            return reason
        channels = min(problem.ic, problem.oc) // problem.g
        if channels < MIN_CHANNELS:
            return f"{MIN_CHANNELS} channels a group or more, got {channels}"
        reason = refusal(problem, self.m, self.r)
        if reason:
            return reason
        saving = Case(problem, self.m, lanes(device, problem.dtype)).saving
        return None if saving >= MIN_SAVING else f"multiplications spared {MIN_SAVING} times or more, got {saving:.2f}"

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Forms, chunks and register tiles by predicted cost, then ever smaller workspaces."""
        case = Case(problem, self.m, lanes(device, problem.dtype))
        return configs(case, registers(device), Pace.of(device, case.lanes))

    def _kernel(self, problem: ConvProblem, config: Mapping[str, Any]) -> Any:
        return kernel(Case(problem, self.m, config["lanes"]), config)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return self._kernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        pace = Pace.of(device, config["lanes"])
        return predicted(Case(problem, self.m, config["lanes"]), config, pace) / rates(device).flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        return self._kernel(problem, config).plan(context)


TILES = tuple(ERROR_RATES)
"""Tiles and kernels, (m, r), that have a solver."""
MAX_ERRORS = {"float32": 1e-5, "tf32": 2e-3, "fast": 5e-2}
"""Relative error that each math mode allows."""
EXPECTED_SHARE = 0.8
"""Share of a limit that the expected error may reach, because other data may have a larger error."""


def _length(problem: ConvProblem) -> int:
    """Number of products that one element of the result sums in the direct convolution."""
    if problem.direction == "bwd_weights":
        return problem.mb * problem.oh * problem.ow
    channels = problem.oc if problem.direction == "bwd_data" else problem.ic
    return channels // problem.g * problem.kh * problem.kw


def expected_error(problem: ConvProblem, m: int, r: int) -> float:
    """Relative error of F(m, r) on standard normal data.

    It grows with the root of the number of products that a transformed element sums one after the other.
    """
    axes = (problem.kh > 1) + (problem.kw > 1)
    merged = m**axes if problem.direction == "bwd_weights" else r**axes
    terms = max(1, _length(problem) // merged)
    run = summed(m, r)
    # A transformed element is a sum of running sums; for sums of fewer than 32 products its own rounding error
    # dominates.
    return ERROR_RATES[m, r][2 - axes] * math.sqrt(max(32, min(terms, run) + terms / run))


def shrunk(problem: ConvProblem) -> float:
    """Factor by which the activation increases the relative error on standard normal data."""
    name, numbers = parse_activation(problem.activation or "relu")
    factor = 0.9 / math.sqrt(max(numbers[1] - numbers[0], 1e-9) / 2) if name == "clip" else ACTIVATIONS[name].shrinks
    return max(1.0, factor * _length(problem) ** 0.25)


def plain_error(problem: ConvProblem) -> float:
    """Relative error of one running float32 sum of the direct method's length."""
    return 1.4e-8 * math.sqrt(max(_length(problem), 32))


def refusal(problem: ConvProblem, m: int, r: int) -> str | None:
    """Why the problem's math does not admit the tile, or None; 16-bit data round worse than any tile does."""
    if problem.dtype != "float32":
        return None
    error = expected_error(problem, m, r)
    if problem.math == "ieee":
        limit = 2 * plain_error(problem)
        return (
            None
            if error <= EXPECTED_SHARE * limit
            else f"twice a plain sum's error, {limit:.1e}, at most, got {error:.1e}"
        )
    limit, growth = MAX_ERRORS[problem.math], shrunk(problem)
    if error * growth <= EXPECTED_SHARE * limit:
        return None
    note = f", {growth:.1f} times that behind {problem.activation}" if growth > 1 else ""
    return f"an error surely within {limit:.0e} only, got {error:.1e}{note}"
