"""The solver ``fft.gpu``: which problems it accepts, which configurations it offers, and their predicted time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan

from ..tiling import unsuited
from .choice import fitting, layouts, seconds
from .plan import Layout, make_plan


class Spectra(Solver):
    """Stride 1, 1-D and 2-D, every direction, group, dilation and padding, on devices with local memory."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject strides and kernels of one tap."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ndim == 3:
            return "1-D and 2-D only, got 3-D"
        reason = unsuited(problem)
        if reason is not None:
            return reason
        if next(fitting(problem, device), None) is None:
            return f"no transform of 64 points or fewer holds a kernel of {problem.kh}x{problem.kw} and fits the device"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Transforms and product tiles, the fastest by prediction first; then the same in ever more parts."""
        return (layout.config() for layout in layouts(problem, device))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of the spectra of one part."""
        return Layout.of(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted time of products, transforms and the traffic of spectra."""
        return seconds(Layout.of(problem, config), device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile a configuration."""
        return make_plan(context, problem, config)
