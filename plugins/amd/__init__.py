"""amd: convolutions on the matrix cores of AMD's GPUs, by MFMA (gfx90a, gfx94*) and WMMA (gfx11*, gfx12*).

The kernel of the matrix product is in ``convdispatch.api.matrix``; this plugin describes the instructions, whose text
is ``instruction.cl.mako``. None of them has run on AMD's hardware: see docs/plugins/matrix-cores.md.

- ``solver``: the solvers, and their instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from convdispatch.api import EPILOGUE, Declared, DeviceInfo, Solver, hookimpl

__all__ = ["NEVER_RUN", "convdispatch_solvers"]

NEVER_RUN = "gfx90a, gfx942, gfx1100 and gfx1201 are compiled for, and emulated on CPUs"
"""How far the solvers were tested, and why they are chosen only after ``convdispatch verify`` passed on the machine."""


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers, one for each family of instructions."""
    return [
        Declared(f"{__name__}.solver", make, name=f"amd.{make.lower()}", serves=serves, fuses=EPILOGUE, exact=True,
                 dtypes=("float32", "float16", "bfloat16"), spreads_nonfinite=False)
        for make, serves in (("Mfma", _has_mfma), ("Wmma", _has_wmma))
    ]  # fmt: skip


def _has_mfma(device: DeviceInfo) -> str | None:
    return _only(device, "gfx90a", "gfx94")


def _has_wmma(device: DeviceInfo) -> str | None:
    return _only(device, "gfx11", "gfx12")


def _only(device: DeviceInfo, *families: str) -> str | None:
    served = device.vendor == "amd" and device.type == "gpu" and device.arch.startswith(families)
    return None if served else f"AMD's {' and '.join(families)} only, got {device.vendor} {device.arch}"
