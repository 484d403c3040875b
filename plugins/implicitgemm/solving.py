"""Base class of this plugin's solvers, whose kernel objects know a configuration's workspace, time and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, DeviceInfo, Launch, Solver, StepPlan, build


def launch(
    context: Any, text: str, name: str, size: Sequence[int], local: Sequence[int], arguments: Sequence[Any]
) -> Launch:
    """A launch of kernel ``name`` of the program ``text``; arguments are names of operands and NumPy scalars."""
    return Launch(build(context, text), name, tuple(size), tuple(local), arguments, names=OPERANDS)


class KernelSolver(Solver):
    """A solver whose ``kernel(problem, config)`` has ``workspace_size``, ``seconds(device)`` and ``plan(context)``."""

    kernel: Any

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return self.kernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        return self.kernel(problem, config).seconds(device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        return self.kernel(problem, config).plan(context)
