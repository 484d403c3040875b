"""oneDNN's convolutions on the memory of an OpenCL CPU device."""

from collections.abc import Sequence

from convdispatch.api import Solver, hookimpl

__all__ = ["convdispatch_solvers", "unavailable"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; without the library they refuse every problem and say what to install."""
    from .solver import Forward, Gradient

    return Forward(), Gradient()


def unavailable() -> str | None:
    """Why the plugin can do nothing on this machine, for ``convdispatch doctor``; None when it can."""
    from .library import missing

    return missing()
