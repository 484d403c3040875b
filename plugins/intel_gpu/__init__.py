"""intel_gpu: convolutions on the matrix engines (XMX) of Intel's GPUs, by DPAS.

The kernel of the matrix product is in ``convdispatch.api.matrix``; this plugin describes the instructions, whose text
is ``instruction.cl.mako``. None of them has run on such a GPU: see docs/plugins/matrix-cores.md.

- ``solver``: the solver, and its instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from convdispatch.api import EPILOGUE, Declared, DeviceInfo, Solver, hookimpl

__all__ = ["NEVER_RUN", "convdispatch_solvers"]

EXTENSION = "cl_intel_subgroup_matrix_multiply_accumulate"
NEVER_RUN = "dg2 and pvc are compiled for, and emulated on CPUs"
"""How far the solver was tested, and why it is chosen only after ``convdispatch verify`` passed on the machine."""


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solver."""
    return [
        Declared(f"{__name__}.solver", "Dpas", name="intel_gpu.dpas", serves=_has_dpas, fuses=EPILOGUE, exact=True,
                 dtypes=("float32", "float16", "bfloat16"), spreads_nonfinite=False)
    ]  # fmt: skip


def _has_dpas(device: DeviceInfo) -> str | None:
    if device.vendor != "intel" or device.type != "gpu":
        return f"Intel's GPUs only, got {device.vendor} {device.type}"
    return None if EXTENSION in device.extensions else f"needs {EXTENSION}, which {device.name} lacks"
