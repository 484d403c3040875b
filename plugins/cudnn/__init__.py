"""cuDNN's convolutions on the memory of NVIDIA's OpenCL device."""

from collections.abc import Sequence

from convdispatch.api import Declared, DeviceInfo, Solver, hookimpl

__all__ = ["convdispatch_solvers", "unavailable"]


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; without CUDA or cuDNN they refuse every problem and say what is missing."""
    where = f"{__name__}.solver"
    return (
        Declared(where, "Convolution", name="cudnn.convolution", serves=_serves, deterministic=False, predicts=False),
        Declared(where, "Deterministic", name="cudnn.deterministic", serves=_serves, predicts=False),
    )


def _serves(device: DeviceInfo) -> str | None:
    return None if device.vendor == "nvidia" else f"nvidia only, got {device.vendor}"


def unavailable() -> str | None:
    """Why the plugin can do nothing on this machine, for ``convdispatch doctor``; None when it can."""
    from . import solver

    return solver.unavailable()
