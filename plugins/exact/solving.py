"""Base classes of both solvers: a kernel a pass, launches that pack one operand first, and constant weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
from convdispatch.api.cpu import PAGE, cdiv

from .order import finish_macros, refuses
from .passes import Numbers, macros, passes
from .probe import require


class Kernel:
    """One pass of a problem with its tile: every size is computed, nothing is compiled."""

    template: str
    slots = 0
    """Bytes of the workspace besides the packed operand."""

    def __init__(self, problem: ConvProblem, numbers: Numbers, bm: int) -> None:
        """``bm`` target channels are a tile of the packed operand: the weights, or dy of a weights' gradient."""
        self.problem, self.weights, self.n = problem, problem.direction == "bwd_weights", dict(numbers)
        self.size, n = problem.accumulator_size, self.n
        n |= {"WEIGHTS": int(self.weights), "BM": bm, "MB": cdiv(n["N"], bm)}
        places, taps = n["IMAGES"] * n["PLACES"], n["C"] * n["TAPS"]
        n["COLUMNS"], n["KA"] = (taps, places) if self.weights else (places, taps)
        self.packed = n["G"] * n["MB"] * n["KA"] * bm * self.size
        """Bytes of the packed operand."""

    def compute(self, program: Any, arguments: Sequence[Any], written: Sequence[str]) -> list[Launch]:
        """The launches that read the packed operand; ``arguments`` are the first of them, then what is written."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        """What the template takes beside the macros."""
        raise NotImplementedError

    def launches(self, context: Any, packed: str, offset: np.int64) -> list[Launch]:
        """The launch that packs an operand into the workspace, from element ``offset`` on; then those that read it from
        ``packed``."""
        n, dtype = self.n, self.problem.dtype
        source, operand, written = {"fwd": "xwy", "bwd_data": "ywx", "bwd_weights": "xyw"}[self.problem.direction]
        head = storage_macros(dtype) + finish_macros(self.problem) + macros(n) + kernel_text(__package__, "order.cl")
        program = build(context, head + kernel_text(__package__, self.template, weights=self.weights, **self.values()))
        runs = n["IMAGES"] * n["YD"] * n["YH"] if self.weights else n["TAPS"] * cdiv(n["C"], n["CB"])
        size, extras = (n["BM"], runs, n["G"] * n["MB"]), [e for e in ("bias", "residual") if getattr(self.problem, e)]
        packing = Launch(program, "pack", size, None, [operand, "workspace", offset], names=OPERANDS)
        return [packing, *self.compute(program, [source, packed, offset], [written, *extras])]


class ExactSolver(Solver):
    """Every direction, rank, group, stride, dilation, padding and layout, in float32 and float64."""

    kernel: Callable[[ConvProblem, Numbers, Mapping[str, Any], int], Kernel]
    """From a problem, the numbers of a pass, a configuration and the device's compute units."""

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], units: int) -> list[Kernel]:
        """A kernel a pass."""
        return [self.kernel(problem, numbers, config, units) for numbers in passes(problem)]

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
    return offsets, areas.size, cdiv(max(kernel.slots for kernel in kernels), PAGE) * PAGE
