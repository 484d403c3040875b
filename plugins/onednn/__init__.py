"""onednn: oneDNN's convolutions on the memory of an OpenCL CPU device.

- ``library``: finds oneDNN, and calls its C interface.
- ``native``: a library's calls as one command of a queue.
- ``primitive``: a problem as the library's primitive.
- ``solver``: what is refused, layouts as configurations, and their plan: reorders and the convolution between them.
"""

import functools
from collections.abc import Sequence

from convdispatch.api import EPILOGUE, Declared, DeviceInfo, Solver, cpus_only, hookimpl

__all__ = ["convdispatch_solvers", "library_version", "unavailable"]

_NO_NATIVE_KERNELS = {
    "oclgrind": "a simulator whose kernels are not the machine's code",
    "pocl": "which hands a native kernel its buffers in another order",
}


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; without the library they refuse every problem and say what to install."""
    # In bfloat16 oneDNN multiplies padding zeros of its own with values that an output does not read: NaN spreads.
    declare = functools.partial(Declared, f"{__name__}.solver", serves=_serves, exact=True, spreads_nonfinite=True,
                                dtypes=("float32", "float16", "bfloat16"))  # fmt: skip
    return (
        declare("Forward", name="onednn.forward", fuses=EPILOGUE, predicts=False),
        declare("Gradient", name="onednn.gradient", predicts=False),
    )


def _serves(device: DeviceInfo) -> str | None:
    if device.vendor in _NO_NATIVE_KERNELS:
        return f"native kernels only, got {device.vendor}, {_NO_NATIVE_KERNELS[device.vendor]}"
    return cpus_only(device)


def library_version() -> str | None:
    """oneDNN's version, to which errata refer; None if oneDNN is not installed."""
    from .library import library, missing

    return None if missing() else library().version


def unavailable() -> str | None:
    """Why the plugin can do nothing on this machine, for ``convdispatch doctor``; None when it can."""
    from .library import missing

    return missing()
