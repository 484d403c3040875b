"""Implicit GEMM on CPUs: register tiles, one work item a run of them, no local memory, no barriers."""

from __future__ import annotations

from convdispatch.api import Solver

from .depthwise import Depthwise
from .depthwise_weights import DepthwiseWeights
from .direct import Direct
from .pointwise import Pointwise
from .weights import Weights

__all__ = ["solvers"]


def solvers() -> list[Solver]:
    """The solvers of this room."""
    return [Depthwise(), DepthwiseWeights(), Direct(), Pointwise(), Weights()]
