"""Implicit GEMM on CPUs: register tiles, one work item a run of them, no local memory, no barriers."""

from __future__ import annotations

from convdispatch.api import Solver

from .depthwise import Depthwise
from .depthwise_weights import DepthwiseWeights
from .direct import Direct
from .flat_weights import FlatWeights
from .phases import Phases
from .pointwise import Pointwise
from .stem import Stem
from .weights import Weights

__all__ = ["solvers"]


def solvers() -> list[Solver]:
    """The solvers of this room."""
    return [Depthwise(), DepthwiseWeights(), Direct(), FlatWeights(), Phases(), Pointwise(), Stem(), Weights()]
