"""Minimal filtering on GPUs, in portable OpenCL C 1.2."""

from __future__ import annotations

from convdispatch.api import Solver

from .solver import Batched

__all__ = ["Batched", "gpu_solvers", "solvers"]


def gpu_solvers() -> list[Solver]:
    """The solvers for GPUs: F(m, r) for the kernels and tiles whose error is of use."""
    return [Batched(m, r) for m, r in ((2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (2, 7))]


solvers = gpu_solvers
