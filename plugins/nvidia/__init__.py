"""nvidia: convolutions on tensor cores, from OpenCL C with inline PTX, at float32's accuracy and below.

    y[place, oc] = sum over (tap, ic) of x[place * step + origin + tap * spread, ic] w[oc, tap, ic]

Six rooms: ``packed`` (any problem, as planes of 16-bit numbers that a pass before has laid out; ``mma.sync`` and
``wgmma``), ``direct`` (1x1 kernels of float32, split in registers), ``tma`` (16-bit tensors, channels last, fed by
the copy engine), ``grouped`` (16-bit tensors, channels last: small groups and strided gradients, read as fragments),
``winograd`` (3x3 kernels of float32, tiles of which are packed's planes) and ``int8`` (quantized problems, channels
last, by ``mma.sync`` and ``wgmma``). What they share lies here: ``formats`` (planes), ``geometry``, ``hopper`` (from
OpenCL C to a program for sm_90a), ``probe`` (what the device proves), ``instructions`` (all PTX, in ``ptx.cl.mako``,
and stand-ins in plain C, ``emulated.cl.mako``), ``scales`` (powers of two before 16-bit numbers, ``shifted``),
``narrow``, ``sums`` and ``finish`` (16-bit numbers, sums of sums, and what follows them).
"""

from __future__ import annotations

from collections.abc import Sequence

from convdispatch.api import EPILOGUE, Declared, DeviceInfo, Solver, hookimpl

__all__ = ["SHARED", "convdispatch_solvers"]

SHARED = __name__
"""Where kernel text lies that several rooms use."""


@hookimpl
def convdispatch_solvers() -> Sequence[Solver]:
    """This plugin's solvers, in the order in which equal costs choose."""
    found = (
        ("tma", "Tma", "tma", (), True),
        ("packed", "TensorCores", "wgmma", ("wgmma",), True),
        ("direct", "Direct", "direct", (), True),
        ("winograd", "Winograd", "winograd", (), False),
        ("grouped", "Grouped", "grouped", (), True),
        ("packed", "TensorCores", "mma", ("mma",), True),
    )
    numbers = [
        Declared(f"{__name__}.{room}.solver", kind, *arguments, name=f"nvidia.{name}", serves=_gpus_only,
                 fuses=EPILOGUE, exact=exact, spreads_nonfinite=room == "winograd")
        for room, kind, name, arguments, exact in found
    ]  # fmt: skip
    integers = Declared(f"{__name__}.int8.solver", "Int8", name="nvidia.int8", serves=_gpus_only,
                        fuses={"bias", "residual"}, exact=True, quantized=True)  # fmt: skip
    return [*numbers, integers]


def _gpus_only(device: DeviceInfo) -> str | None:
    served = device.vendor == "nvidia" and device.type == "gpu"
    return None if served else f"nvidia gpus only, got {device.vendor} {device.type}"
