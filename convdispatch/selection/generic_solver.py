"""The plan that is ready first: any convolution by one program that takes the geometry as arguments.

It is never a candidate: a call under ``policy(tier="ready")`` uses it while a better plan is compiled. There is one
program for each dtype and epilogue, which the kernel cache stores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.activations import activation_macro
from ..api.declared import outside_declaration
from ..api.device import DeviceInfo
from ..api.dtypes import DTYPES, storage_macros
from ..api.problem import ConvProblem
from ..api.solver import EPILOGUE, Solver
from ..device.plans.steps import StepPlan
from ..device.programs.kernels import OPERANDS, Launch, build, define, kernel_text

_LETTERS = [
    *("mb", "ic", "oc", "g", "id", "ih", "iw", "od", "oh", "ow", "kd", "kh", "kw"),
    *("sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw"),
]
_STRIDES = [f"{tensor}{axis}" for tensor, axes in (("X", "NC"), ("Y", "NC"), ("W", "OC")) for axis in f"{axes}DHW"]
_LEAST_FLOPS_PER_S = {"cpu": 3e8, "gpu": 3e10}
"""The least speed of the generic kernel in operations per second: of one compute unit of a CPU, and of a whole GPU."""


def generic_s(problem: ConvProblem, device: DeviceInfo) -> float:
    """The estimated time of the plan, in seconds."""
    units = device.compute_units if device.type == "cpu" else 1
    return problem.flops / (_LEAST_FLOPS_PER_S.get(device.type, _LEAST_FLOPS_PER_S["gpu"]) * units)


class GenericSolver(Solver):
    """Every problem on every device whose dtype it supports, slowly."""

    name = "general"
    exact = True
    spreads_nonfinite = False
    fuses = EPILOGUE
    dtypes = tuple(DTYPES)

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """An unsupported dtype, or no images."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return outside_declaration(self, problem, device)

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """A plan of one launch, with one work item for each element of the written tensor."""
        flags = {name.upper(): int(getattr(problem, name)) for name in ("bias", "residual", "accumulate")}
        names = [letter.upper() for letter in _LETTERS] + _STRIDES
        text = storage_macros(problem.dtype) + activation_macro(problem.activation) + define(**flags)
        text += "#define GEOMETRY " + ", ".join(f"long {name}" for name in names) + "\n"
        program = build(context, text + kernel_text(__package__, "general.cl"))
        numbers = [getattr(problem, letter) for letter in _LETTERS]
        for shape in (problem.x_shape, problem.y_shape, problem.w_shape):
            numbers += _strides(shape, problem)
        operands = {"fwd": "x w y", "bwd_data": "y w x", "bwd_weights": "x y w"}[problem.direction].split()
        written = operands[-1]
        extras = [name if getattr(problem, name) else written for name in ("bias", "residual")]
        arguments = [*operands, *extras, *map(np.int64, numbers)]
        sizes = (math.prod(problem.out_shape),)
        return StepPlan(0, [Launch(program, problem.direction, sizes, None, arguments, names=OPERANDS)])


def _strides(shape: tuple[int, ...], problem: ConvProblem) -> list[int]:
    """Strides in elements of (outer, channel, d, h, w); 0 for axes that a problem of fewer dimensions lacks."""
    steps = [*itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)][::-1]
    outer, *inner = steps
    channel, space = (inner[-1], inner[:-1]) if problem.layout == "nhwc" else (inner[0], inner[1:])
    return [outer, channel, *([0] * (3 - len(space))), *space]
