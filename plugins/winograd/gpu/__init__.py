"""Minimal filtering on GPUs, in portable OpenCL C 1.2."""

from __future__ import annotations

from convdispatch.api import Solver

from .error import TILES
from .solver import Batched

__all__ = ["Batched", "gpu_solvers", "solvers"]


def gpu_solvers() -> list[Solver]:
    """The solvers for GPUs: F(m, r) for the kernels and tiles whose error is of use."""
    return [Batched(m, r) for m, r in TILES]


solvers = gpu_solvers
