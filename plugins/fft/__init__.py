"""Convolutions as products of transforms: large kernels at the cost of small ones, for CPUs and GPUs."""

from collections.abc import Sequence

from convdispatch.api import Solver, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers."""
    return ()
