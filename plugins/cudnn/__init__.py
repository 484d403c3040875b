"""cuDNN's convolutions on the memory of NVIDIA's OpenCL device."""

from collections.abc import Sequence

from convdispatch.api import Solver, hookimpl

__all__ = ["convdispatch_solvers", "unavailable"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; without CUDA or cuDNN they refuse every problem and say what is missing."""
    from .solver import Convolution, Deterministic

    return Convolution(), Deterministic()


def unavailable() -> str | None:
    """Why the plugin can do nothing on this machine, for ``convdispatch doctor``; None when it can."""
    from . import solver

    return solver.unavailable()
