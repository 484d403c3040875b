"""cudnn: cuDNN's convolutions on the memory of NVIDIA's OpenCL device.

- ``graph``: a problem as cuDNN's operation graph, and its engines.
- ``library``: finds cuDNN, and calls its backend interface.
- ``solver``: what is refused, engines as configurations, and their plan on the memory and in the order of a queue.
"""

import functools
from collections.abc import Sequence

from convdispatch.api import FLOATS, Declared, DeviceInfo, Solver, hookimpl

__all__ = ["convdispatch_solvers", "library_version", "unavailable"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; without CUDA or cuDNN they refuse every problem and say what is missing."""
    # cuDNN may choose Winograd or FFT, whose transforms spread an Inf or NaN to neighbouring results.
    declare = functools.partial(Declared, f"{__name__}.solver", serves=_serves, dtypes=FLOATS, predicts=False,
                             spreads_nonfinite=True)  # fmt: skip
    return (
        declare("Convolution", name="cudnn.convolution", deterministic=False),
        declare("Deterministic", name="cudnn.deterministic"),
    )


def _serves(device: DeviceInfo) -> str | None:
    return None if device.vendor == "nvidia" else f"nvidia only, got {device.vendor}"


def library_version() -> str | None:
    """cuDNN's version, to which errata refer; None if cuDNN is not installed."""
    from .library import library, missing

    if missing():
        return None
    number = library().version
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def unavailable() -> str | None:
    """Why the plugin can do nothing on this machine, for ``convdispatch doctor``; None when it can."""
    from . import solver

    return solver.unavailable()
