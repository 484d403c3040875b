"""Views of a problem: as a solver sees it, as a layer of any size, and as bytes of operands."""

from __future__ import annotations

import functools
import math
from dataclasses import fields
from typing import Any

from ..api.device import DeviceInfo
from ..api.dtypes import ALL_DTYPES
from ..api.problem import EXTRAS, ConvProblem
from ..api.solver import Solver
from ..device.plans.norms_and_sums import summing_launches
from ..device.rates import rates

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
    return problem if problem.quantized else _visible(frozenset(solver.fuses), problem)


@functools.lru_cache(maxsize=1024)
def _visible(fuses: frozenset[str], problem: ConvProblem) -> ConvProblem:
    plain = {"bias": False, "residual": False, "activation": None, "accumulate": False}
    changes: dict[str, Any] = {}
    if problem.norm and not problem.masked and "norm" not in fuses:
        changes["norm"] = None
    stages = {**plain, "norm": None, "sums": False} if problem.masked else {**plain, "sums": False}
    unfused: dict[str, Any] = {}
    for part, absent_value in stages.items():
        if getattr(problem, part) and (part not in fuses or unfused):
            unfused[part] = absent_value
    # What is added to the output's old content must be whole.
    if unfused and problem.accumulate:
        unfused |= plain
    changes |= unfused
    return problem.replace(**changes) if changes else problem


def unfused_seconds(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> float:
    """Predicted seconds of the passes for a norm and sums that a solver does not fuse: their bytes and launches."""
    if not (problem.norm or problem.sums):
        return 0.0
    seen, peaks, moved, launches = visible_problem(solver, problem), rates(device), 0, 0
    if problem.norm and not seen.norm:
        moved, launches = (2 + problem.masked) * operand_bytes(problem, "x"), 1
    if problem.sums and not seen.sums:
        moved += (1 + problem.masked) * operand_bytes(problem, problem.written)
        launches += summing_launches(problem)
    return moved / peaks.bandwidth + launches * peaks.launch


def operand_sizes(problem: ConvProblem) -> tuple[int, ...]:
    """Bytes of x, w, y, bias (a quantized convolution's table) and residual; 0 for an operand that is missing.

    Those of a problem with a norm or sums are followed by the sizes of the other EXTRAS.
    """
    sizes = [operand_bytes(problem, name) for name in "xwy"]
    extras = EXTRAS if problem.norm or problem.sums else EXTRAS[:2]
    return *sizes, *(operand_bytes(problem, name) if name in problem.extras else 0 for name in extras)


def operand_bytes(problem: ConvProblem, name: str) -> int:
    """Bytes of an operand."""
    shape, dtype = problem.form(name)
    return math.prod(shape) * ALL_DTYPES[dtype].itemsize
