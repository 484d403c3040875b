"""Convolutions as products of spectra for GPUs, in portable OpenCL C 1.2."""

from __future__ import annotations

from convdispatch.api import Solver

from .solver import Spectra

__all__ = ["Spectra", "gpu_solvers"]


def gpu_solvers() -> list[Solver]:
    """The solvers for GPUs."""
    return [Spectra()]
