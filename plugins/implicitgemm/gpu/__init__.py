"""Implicit GEMM for GPUs, in portable OpenCL C 1.2: tiles in local memory, sums in registers."""

from __future__ import annotations

from convdispatch.api import Solver

from .depthwise import Depthwise
from .depthwise_sums import DepthwiseSums
from .depthwise_weights import DepthwiseWeights
from .narrow import Narrow
from .solver import Tiled

__all__ = ["Depthwise", "DepthwiseSums", "DepthwiseWeights", "Narrow", "Tiled", "gpu_solvers"]


def gpu_solvers() -> list[Solver]:
    """The solvers for GPUs."""
    return [Tiled(), Narrow(), Depthwise(), DepthwiseSums(), DepthwiseWeights()]
