"""The solver ``fft.tiled``: transforms of tiles, products over channels, inverse transforms; a tile may be an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan, rates
from convdispatch.api.cpu import Balance

from ..tiling import unsuited
from .choice import choices, has_configs, predicted
from .geometry import Geometry
from .plan import make_plan


class Tiled(Solver):
    """Stride 1, sums of float32, all directions, 1-D to 3-D, on a CPU."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject strides, kernels of one tap, one channel per group, tiles that exceed a transform of 64 points."""
        reason = unsuited(problem)
        if reason:
            return reason
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ic == problem.oc == problem.g:
            return "more than one channel in or out a group only, got 1 and 1"
        if not has_configs(problem, device):
            return f"kernels that a transform of 64 points holds only, got {problem.kd}x{problem.kh}x{problem.kw}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Transforms and how much of the work a piece takes: the fastest by prediction, then falling workspaces."""
        return choices(problem, device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of the spectra of one piece."""
        return Geometry(problem, config).areas["size"]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted time of products, transforms and memory traffic."""
        peaks = rates(device)
        return predicted(Geometry(problem, config), Balance.of(peaks)) / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile the configuration."""
        return make_plan(context, Geometry(problem, config), self.name)
