"""Convolutions on NVIDIA's tensor cores, from OpenCL C with inline PTX."""

from collections.abc import Sequence

from convdispatch.api import Solver, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers."""
    return ()
