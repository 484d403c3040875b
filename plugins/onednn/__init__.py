"""oneDNN's convolutions on the memory of an OpenCL CPU device."""

from collections.abc import Sequence

from convdispatch.api import EPILOGUE, Declared, DeviceInfo, Solver, cpus_only, hookimpl

__all__ = ["convdispatch_solvers", "unavailable"]

_NO_NATIVE_KERNELS = {"oclgrind": "a simulator whose kernels are not the machine's code"}


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; without the library they refuse every problem and say what to install."""
    where = f"{__name__}.solver"
    return (
        Declared(where, "Forward", name="onednn.forward", serves=_serves, fuses=EPILOGUE, exact=True, predicts=False),
        Declared(
            where, "Gradient", name="onednn.gradient", serves=_serves, exact=True, predicts=False,
            spreads_nonfinite=True,  # in bfloat16, by the library's own zeros
        ),
    )  # fmt: skip


def _serves(device: DeviceInfo) -> str | None:
    if device.vendor in _NO_NATIVE_KERNELS:
        return f"native kernels only, got {device.vendor}, {_NO_NATIVE_KERNELS[device.vendor]}"
    return cpus_only(device)


def unavailable() -> str | None:
    """Why the plugin can do nothing on this machine, for ``convdispatch doctor``; None when it can."""
    from .library import missing

    return missing()
