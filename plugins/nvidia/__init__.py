"""nvidia: convolutions on tensor cores, from OpenCL C with inline PTX, at float32's accuracy and below.

    y[place, oc] = sum over (tap, ic) of x[place * step + origin + tap * spread, ic] w[oc, tap, ic]

Operands are packed as planes of 16-bit numbers, channels last: one plane for 16-bit tensors, two or three whose sum is
the float32 value; products of planes are multiplied by ``mma.sync`` (Ampere and later) or ``wgmma`` (Hopper) and
summed in float32. The files: ``formats`` (planes), ``walk`` (geometry), ``tile`` and ``choice`` (tuning), ``job``
(numbers of the kernels), ``ptx.cl.mako`` (the instructions), ``product.cl.mako`` (the algorithm), ``hopper`` (from
OpenCL C to a program for sm_90a), ``probe`` (what the device proves).
"""

from __future__ import annotations

from collections.abc import Sequence

from convdispatch.api import Solver, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers."""
    from .solver import solvers

    return solvers()
