"""nvidia: convolutions on tensor cores, from OpenCL C with inline PTX, at float32's accuracy and below.

    y[pixel, oc] = sum over (tap, ic) of x[pixel * step + origin + tap * spread, ic] w[oc, tap, ic]

Each solver has a folder, which turns a problem and a tile into numbers (``tiling``), rates tiles (``choice``), and
declares what it accepts and renders kernels (``solver``). What several solvers share is in this folder, or in
``convdispatch.api.matrix`` if other vendors' matrix cores use it too; an instruction goes into ``ptx.cl.mako``.

- ``direct``: 1x1 kernels of float32, which is split into 16-bit or TF32 numbers in registers.
- ``grouped``: 16-bit NHWC tensors: small groups and strided gradients.
- ``instructions``: the PTX that a program calls, and programs for sm_90a.
- ``int8``: quantized problems of 8-bit integers or floats in NHWC.
- ``pace``: how a device's speed differs from an H200's.
- ``packed``: any problem, by the product of ``convdispatch.api.matrix`` with ``mma.sync`` or ``wgmma``.
- ``probe``: checks that a device's driver accepts an engine's instructions.
- ``solving``: the base class of the solvers.
- ``tma``: 16-bit or TF32 tensors, which Hopper's copy engine reads channels last.
- ``usual``: the tiles that are taken where nothing was measured and they are nearly as fast as the fastest.
- ``winograd``: 3x3 kernels of float32, whose transformed tiles are planes of ``packed``.
"""

from __future__ import annotations

from collections.abc import Sequence

from convdispatch.api import EPILOGUE, PARTS, Declared, DeviceInfo, Solver, hookimpl


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers; of solvers with equal costs the first is chosen."""
    fused = {"tma": PARTS, "packed": PARTS, "int8": {"bias", "residual"}}
    dtypes_16_bits, all_dtypes = ("float16", "bfloat16"), ("float32", "float16", "bfloat16")
    solvers = (
        ("tma", "Tma", "tma", (), all_dtypes),
        ("packed", "TensorCores", "wgmma", ("wgmma",), all_dtypes),
        ("direct", "Direct", "direct", (), ("float32",)),
        ("winograd", "Winograd", "winograd", (), ("float32",)),
        ("grouped", "Grouped", "grouped", (), dtypes_16_bits),
        ("packed", "TensorCores", "mma", ("mma",), all_dtypes),
        ("int8", "Int8", "int8", (), ("int8", "uint8", "float8_e4m3", "float8_e5m2")),
    )
    return [
        Declared(f"{__name__}.{folder}.solver", kind, *arguments, name=f"nvidia.{name}", serves=_gpus_only,
                 fuses=fused.get(folder, EPILOGUE), dtypes=dtypes,
                 exact=folder != "winograd", spreads_nonfinite=folder == "winograd", batch_invariant=True)
        for folder, kind, name, arguments, dtypes in solvers
    ]  # fmt: skip


def _gpus_only(device: DeviceInfo) -> str | None:
    served = device.vendor == "nvidia" and device.type == "gpu"
    return None if served else f"nvidia gpus only, got {device.vendor} {device.type}"
