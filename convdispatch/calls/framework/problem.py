"""One problem on one device for a framework, whatever its memory."""

from __future__ import annotations

import math
from typing import Any

import pyopencl as cl

from ...api.problem import ConvProblem
from ...device import runtime
from ...selection.prepared import operand_sizes
from ..bound_call import PLACES
from .fallback import Fallback


class FrameworkProblem:
    """What every framework's call knows of its problem. Raises Fallback for a dtype that the device lacks."""

    prepared: Any
    """The plan; None while there is none, or nothing to compute."""

    def __init__(self, problem: ConvProblem, device: cl.Device) -> None:
        self.problem, self.device = problem, device
        unsupported = runtime.device_info(device).supports(problem.dtype)
        if unsupported:
            raise Fallback(unsupported)
        self.places = PLACES[problem.direction]
        self.read, self.written = self.places[:2], self.places[2]
        self.sizes = operand_sizes(problem)
        self.empty = math.prod(problem.out_shape) == 0 or problem.mb == 0

    @property
    def solver(self) -> str:
        """What runs."""
        return "none: nothing to compute" if self.prepared is None else str(self.prepared.solver.name)
