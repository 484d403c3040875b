"""Views of a problem: as a solver sees it, as a layer of any size, and as bytes of operands."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from ..api.problem import ConvProblem
from ..api.solver import Solver

SIZES_OF_A_LAYER = 4
"""The number of sizes per layer that count as the net's own, because nets have equal layers at several resolutions."""
_LAYER = [each.name for each in fields(ConvProblem) if each.init and each.name not in ("mb", "id", "ih", "iw")]


def layer_of(problem: ConvProblem) -> tuple[Any, ...]:
    """All fields of a problem except the sizes of its images, which are equal for one layer at different sizes."""
    return tuple(getattr(problem, name) for name in _LAYER)


def visible_problem(solver: Solver, problem: ConvProblem) -> ConvProblem:
    """The problem as the solver sees it: without the parts of the epilogue that it does not fuse.

    Parts that follow an unfused one in the epilogue's order are left to the generic pass too.
    """
    if problem.quantized or not (problem.bias or problem.residual or problem.activation or problem.accumulate):
        return problem
    if problem.accumulate and "accumulate" not in solver.fuses:
        return problem.replace(bias=False, residual=False, activation=None, accumulate=False)
    changes: dict[str, Any] = {}
    for part, absent_value in (("bias", False), ("residual", False), ("activation", None)):
        if getattr(problem, part) and (part not in solver.fuses or changes):
            changes[part] = absent_value
    if changes and problem.accumulate:
        return problem.replace(bias=False, residual=False, activation=None, accumulate=False)
    return problem.replace(**changes) if changes else problem


def operand_sizes(problem: ConvProblem) -> tuple[int, ...]:
    """Bytes of x, w, y, bias (a quantized convolution's table) and residual; 0 for an operand that is missing."""
    sizes = [math.prod(shape) * problem.itemsize for shape in (problem.x_shape, problem.w_shape, problem.y_shape)]
    written_bytes = math.prod(problem.out_shape) * problem.out_itemsize
    sizes["xwy".index(problem.written)] = written_bytes
    channels = math.prod(problem.form("bias")[0]) if problem.bias or problem.quantized else 0
    return *sizes, channels * (4 if problem.quantized else problem.itemsize), written_bytes if problem.residual else 0
