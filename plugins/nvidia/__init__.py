"""nvidia: convolutions on tensor cores, from OpenCL C with inline PTX, at float32's accuracy and below.

    y[pixel, oc] = sum over (tap, ic) of x[pixel * step + origin + tap * spread, ic] w[oc, tap, ic]

Each solver has a folder, which turns a problem and a tile into numbers (``tiling``), rates tiles (``choice``), renders
kernels (``plan``) and declares what it accepts (``solver``). What several of them share is here, or in
the header's ``matrix`` where other vendors' matrix cores use it too; an instruction goes into ``ptx.cl.mako``.

- ``direct``: 1x1 kernels of float32, split in registers.
- ``grouped``: 16-bit tensors, channels last: small groups and strided gradients, read as fragments.
- ``instructions``: the PTX that a program calls, and programs for sm_90a.
- ``int8``: quantized problems, of integers or floats of 8 bits, channels last.
- ``pace``: how a device's speed differs from an H200's.
- ``packed``: any problem, by the product of the header's ``matrix`` with ``mma.sync`` or ``wgmma``.
- ``probe``: checks that a device's driver accepts an engine's instructions.
- ``solving``: the base of the solvers.
- ``tma``: 16-bit or TF32 tensors, channels last, fed by the copy engine.
- ``winograd``: 3x3 kernels of float32, whose transformed tiles are planes of ``packed``.
"""

from __future__ import annotations

from collections.abc import Sequence

from convdispatch.api import EPILOGUE, Declared, DeviceInfo, Solver, hookimpl


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; of solvers with equal costs the first is chosen."""
    narrow, wide = ("float16", "bfloat16"), ("float32", "float16", "bfloat16")
    found = (
        ("tma", "Tma", "tma", (), wide),
        ("packed", "TensorCores", "wgmma", ("wgmma",), wide),
        ("direct", "Direct", "direct", (), ("float32",)),
        ("winograd", "Winograd", "winograd", (), ("float32",)),
        ("grouped", "Grouped", "grouped", (), narrow),
        ("packed", "TensorCores", "mma", ("mma",), wide),
        ("int8", "Int8", "int8", (), ("int8", "uint8", "float8_e4m3", "float8_e5m2")),
    )
    return [
        Declared(f"{__name__}.{room}.solver", kind, *arguments, name=f"nvidia.{name}", serves=_gpus_only,
                 fuses={"bias", "residual"} if room == "int8" else EPILOGUE, dtypes=dtypes,
                 exact=room != "winograd", spreads_nonfinite=room == "winograd", batch_invariant=True)
        for room, kind, name, arguments, dtypes in found
    ]  # fmt: skip


def _gpus_only(device: DeviceInfo) -> str | None:
    served = device.vendor == "nvidia" and device.type == "gpu"
    return None if served else f"nvidia gpus only, got {device.vendor} {device.type}"
