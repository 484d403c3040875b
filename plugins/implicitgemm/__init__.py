"""implicitgemm: convolution as a matrix product whose lowered operand is never stored.

    y[oc, place] = sum over (ic, tap) of w[oc, ic, tap] x[ic, place * stride + tap * dilation - pad]

Tiles of the product live in registers, and the lowered operand's elements are read from the tensor itself, or from a
copy of a few of its rows that stays in the cache. Each kind of device has a room of its own: ``cpu``, ``gpu``.
"""

from __future__ import annotations

from convdispatch.api import Solver, hookimpl

from . import cpu, gpu

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """The solvers of every room."""
    return [*cpu.solvers(), *gpu.gpu_solvers()]
