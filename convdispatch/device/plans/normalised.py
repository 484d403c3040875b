"""The launch that writes a norm of x, for plans whose convolution does not take it as it reads x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...api.dtypes import storage_macros
from ...api.problem import ConvProblem, norm_macros
from ..programs.kernels import OPERANDS, Launch, build, define, kernel_text
from ..runtime import device_info

CPU_CHUNK = 1024
"""Neighbouring elements that one work item of a CPU computes; a GPU's computes four, or one."""


def normalising(
    context: Any,
    problem: ConvProblem,
    operands: Sequence[str] = ("workspace", "x", "norm"),
    *,
    start: int = 0,
    names: Sequence[str] = OPERANDS,
) -> Launch:
    """The launch that writes the norm of x from byte ``start`` of the first of ``operands`` on."""
    size, shape = math.prod(problem.x_shape), problem.x_shape
    inner = 1 if problem.layout == "nhwc" else math.prod(shape[2:])
    on_cpu = device_info(context.devices[0]).type == "cpu"
    quads = not on_cpu and (problem.ic if inner == 1 else inner) % 4 == 0
    chunk = CPU_CHUNK if on_cpu else 4 if quads else 1
    text = storage_macros(problem.dtype) + norm_macros(problem)
    text += define(SIZE=size, INNER=inner, CHUNK=chunk, QUADS=int(quads), START=f"{start // problem.itemsize}L")
    program = build(context, text + kernel_text(__package__, "normalised.cl"))
    return Launch(program, "normalise", (max(1, -(-size // chunk)),), None, operands, names=names)
