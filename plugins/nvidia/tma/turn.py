"""The data gradient's weights for TF32, whose tensor cores take rows along the summed channels alone."""

from __future__ import annotations

import math
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, define, kernel_text

_SIDE = 32
"""Of the squares that a work group turns."""


def turn_launch(context: Any, problem: ConvProblem, at: int) -> Launch:
    """Writes float32 weights [oc][taps][ic/g] as [ic][taps][oc/g], ``at`` elements into the operand ``workspace``."""
    o, i = problem.oc // problem.g, problem.ic // problem.g
    taps = math.prod(getattr(problem, "k" + axis) for axis in problem.axes)
    text = define(G=problem.g, O=o, I=i, T=taps, TO_AT=f"{at}L") + kernel_text(__package__, "turn.cl")
    groups = -(-o // _SIDE) * -(-i // _SIDE) * taps * problem.g
    return Launch(build(context, text), "turn", (groups * 256,), (256,), ["w", "workspace"], names=OPERANDS)
