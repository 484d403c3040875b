"""``int8.direct``: any quantized convolution on any device, one work item per element of y."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, KernelPlan, Solver, rates

__all__ = ["Direct"]

GROUP_ITEMS = 64
"""Work items of a work group."""
WORK_COST = 40.0
"""Cost of one operation of the convolution, in operations at the device's peak rate."""


class Direct(Solver):
    """Every quantized problem."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if math.prod(problem.y_shape) >= 1 << 31:
            return f"results of fewer than 2**31 elements, got {math.prod(problem.y_shape)}"
        return None

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        peaks = rates(device)
        return peaks.launch + WORK_COST * problem.flops / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> KernelPlan:
        operands = "x w y bias" + (" residual" if problem.residual else "")
        items = -(-math.prod(problem.y_shape) // GROUP_ITEMS) * GROUP_ITEMS
        launch = ("conv", (items,), (GROUP_ITEMS,), operands)
        return KernelPlan(context, __package__, "direct.cl", problem, config, [launch])
