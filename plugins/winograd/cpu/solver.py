"""The solvers ``winograd.f<m>x<r>`` for CPUs: F(m, r) along every axis with r taps, in every direction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Plan, Solver, rates
from convdispatch.api.cpu import lanes, registers

from .case import Case
from .choice import Pace, configs, kernel, predicted
from .error import refusal

MIN_CHANNELS = 16
"""Least channels per group: with 8, implicit GEMM takes 0.4 to 1.1 of the time (docs/results/cpu-layers.md)."""
MIN_SAVING = 1.2
"""Least multiplications of the direct convolution over Winograd's: below, transforms cost more than they save."""


class Winograd(Solver):
    """Tiles of m along every axis with r taps: stride 1, 1-D and 2-D, groups, any padding, layout and dtype."""

    def __init__(self, m: int, r: int) -> None:
        self.m, self.r = m, r

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject other kernels, strides, dilations, errors beyond the math mode, layers that tiles slow down."""
        if problem.ndim > 2:
            return f"1-D and 2-D only, got {problem.ndim}-D"
        kernel = (problem.kh, problem.kw)
        if self.r not in kernel or set(kernel) - {1, self.r}:
            return f"{self.r}x{self.r}, {self.r}x1 or 1x{self.r} only, got {kernel[0]}x{kernel[1]}"
        if (problem.sh, problem.sw) != (1, 1):
            return f"stride 1 only, got {problem.sh}x{problem.sw}"
        if any(d != 1 for d, k in zip((problem.dh, problem.dw), kernel, strict=True) if k > 1):
            return f"dilation 1 only, got {problem.dh}x{problem.dw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
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
        """Return the bytes of transformed tiles, and of packed weights unless they are constant."""
        return self._kernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted seconds of products, transforms and their memory traffic."""
        pace = Pace.of(device, config["lanes"])
        return predicted(Case(problem, self.m, config["lanes"]), config, pace) / rates(device).flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """Compile the launches of the configuration's form."""
        return self._kernel(problem, config).plan(context)
