"""oneDNN's convolutions on the memory of an OpenCL CPU device."""

from collections.abc import Sequence

from convdispatch.api import Solver, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; without the library they refuse every problem and say what to install."""
    from .solver import Forward, Gradient

    return Forward(), Gradient()
