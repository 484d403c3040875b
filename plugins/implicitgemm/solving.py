"""The part that all solvers of this plugin share: what a configuration takes is told by an object of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, StepPlan


class KernelSolver(Solver):
    """A solver whose ``kernel(problem, config)`` has ``workspace_size``, ``seconds(device)`` and ``plan(context)``."""

    kernel: Any

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """The kernel's own."""
        return self.kernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The kernel's own."""
        return self.kernel(problem, config).seconds(device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """The kernel's own."""
        return self.kernel(problem, config).plan(context)
