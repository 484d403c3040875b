"""Base classes of both solvers: a kernel a pass, launches that pack one operand first, and constant weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convdispatch.api import (
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    build,
    kernel_text,
    storage_macros,
)  # fmt: skip
from convdispatch.api.cpu import PAGE

from .order import finish_macros, refuses
from .passes import Numbers, macros
from .probe import require


class Kernel:
    """One pass of a problem with its tile: every size is computed, nothing is compiled."""

    template: str
    packed: int
    """Bytes of the packed operand: the weights, or dy of a weights' gradient."""
    slots = 0
    """Bytes of the workspace besides."""

    def __init__(self, problem: ConvProblem, numbers: Numbers, config: Mapping[str, Any]) -> None:
        self.problem, self.weights, self.n = problem, problem.direction == "bwd_weights", dict(numbers)
        self.size = problem.accumulator_size
        self.source, self.operand, self.written = {"fwd": "xwy", "bwd_data": "ywx", "bwd_weights": "xyw"}[
            problem.direction
        ]
        self.extras = [name for name in ("bias", "residual") if getattr(problem, name)]

    def program(self, context: Any, vector: str, **values: Any) -> Any:
        """The compiled text; ``vector`` defines the vector type of sums."""
        head = storage_macros(self.problem.dtype) + finish_macros(self.problem) + macros(self.n)
        head += f"#define {vector}\n" + kernel_text(__package__, "order.cl")
        return build(context, head + kernel_text(__package__, self.template, weights=self.weights, **values))

    def launch(self, program: Any, name: str, size: Sequence[int], local: Any, arguments: Sequence[Any]) -> Launch:
        """A launch of a kernel of the program."""
        return Launch(program, name, tuple(size), local, arguments, names=OPERANDS)

    def launches(self, context: Any, operand: str, offset: np.int64) -> list[Launch]:
        """The launch that packs an operand into the workspace, from element ``offset`` on; then those that read it from
        ``operand``."""
        raise NotImplementedError


class ExactSolver(Solver):
    """Every direction, rank, group, stride, dilation, padding and layout, in float32 and float64."""

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], units: int) -> list[Kernel]:
        """The passes' kernels on a device of so many compute units."""
        raise NotImplementedError

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject what the definition does not cover."""
        return refuses(problem, device)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of the slots, and of the packed operand unless it is constant."""
        _, packed, slots = _areas(self.kernels(problem, config, device.compute_units))
        return slots + (0 if _constant(problem) else packed)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile the packing, then the passes."""
        require(context, problem.dtype)
        kernels = self.kernels(problem, config, context.devices[0].max_compute_units)
        offsets, packed, slots = _areas(kernels)
        constant = _constant(problem)
        operand, base = ("w", 0) if constant else ("workspace", slots)
        size = kernels[0].size
        steps = [each.launches(context, operand, np.int64((base + at) // size)) for each, at in zip(kernels, offsets)]
        packers, others = [each[0] for each in steps], [step for each in steps for step in each[1:]]
        if constant:
            key = json.dumps([self.name, str(problem), dict(config)], sort_keys=True)
            return StepPlan(slots, others, packed, packers, key)
        return StepPlan(slots + packed, [*packers, *others])


def _constant(problem: ConvProblem) -> bool:
    return problem.constant_weights and problem.direction != "bwd_weights"


def _areas(kernels: list[Kernel]) -> tuple[list[int], int, int]:
    """Byte offsets of the packed operands, the bytes of all, and of the slots, which passes share."""
    areas = Areas(PAGE)
    offsets = [areas.add(kernel.packed) for kernel in kernels]
    return offsets, areas.size, -(-max(kernel.slots for kernel in kernels) // PAGE) * PAGE
