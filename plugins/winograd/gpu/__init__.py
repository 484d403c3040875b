"""Minimal filtering on GPUs, in portable OpenCL C 1.2: in passes for many channels, in one launch for few."""

from __future__ import annotations

from convdispatch.api import Solver

from .error import TILES
from .fused import Fused
from .solver import Batched

__all__ = ["Batched", "Fused", "gpu_solvers", "solvers"]


def gpu_solvers() -> list[Solver]:
    """The solvers for GPUs: F(m, r) for the kernels and tiles whose error is of use."""
    fused = [(m, r) for m, r in TILES if m + r - 1 <= 6]
    return [*(Batched(m, r) for m, r in TILES), *(Fused(m, r) for m, r in fused)]


solvers = gpu_solvers
