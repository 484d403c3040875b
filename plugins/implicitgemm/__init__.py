"""implicitgemm: convolution as a matrix product whose lowered operand is never stored.

    y[oc, pixel] = sum over (ic, tap) of w[oc, ic, tap] x[ic, pixel * stride + tap * dilation - pad]

Tiles of the product are kept in registers. The lowered operand's elements are read from the tensor itself, or from a
copy of a few of its rows that stays in the cache. A new solver is a module of the folder of its kind of device and a
line of ``convdispatch_solvers``.

- ``solving``: the methods that all solvers share.
- ``cpu``: solvers for CPUs, whose vectors hold channels or pixels.
- ``gpu``: solvers for GPUs, whose work groups share slices in local memory, or whose work items share loads.
"""

from __future__ import annotations

import functools

from convdispatch.api import EPILOGUE, FLOATS, PARTS, Declared, Solver, cpus_only, gpus_only, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """Return the solvers of both folders, for CPUs and for GPUs."""
    declare = functools.partial(Declared, dtypes=FLOATS, exact=True, spreads_nonfinite=False, batch_invariant=True)
    cpu, gpu = (f"{__name__}.{folder}" for folder in ("cpu", "gpu"))
    epilogue, adds = EPILOGUE, {"accumulate"}
    return [
        declare(f"{cpu}.depthwise", "Depthwise", name="implicitgemm.depthwise", serves=cpus_only, fuses=epilogue),
        declare(f"{cpu}.depthwise_transposed", "DepthwiseTransposed", name="implicitgemm.depthwise_transposed",
            serves=cpus_only, fuses=epilogue),
        declare(f"{cpu}.depthwise_weights", "DepthwiseWeights", name="implicitgemm.depthwise_weights", serves=cpus_only,
            fuses=adds),
        declare(f"{cpu}.direct", "Direct", name="implicitgemm.direct", serves=cpus_only, fuses=epilogue),
        declare(f"{cpu}.pointwise", "Pointwise", name="implicitgemm.pointwise", serves=cpus_only, fuses=epilogue),
        declare(f"{cpu}.skinny", "Skinny", name="implicitgemm.skinny", serves=cpus_only, fuses=epilogue),
        declare(f"{cpu}.stem", "Stem", name="implicitgemm.stem", serves=cpus_only, fuses=epilogue),
        declare(f"{cpu}.weights", "Weights", name="implicitgemm.weights", serves=cpus_only, fuses=adds),
        declare(f"{gpu}.solver", "Tiled", name="implicitgemm.tiled", serves=gpus_only, fuses=PARTS),
        declare(f"{gpu}.narrow", "Narrow", name="implicitgemm.tiled_narrow", serves=gpus_only, fuses=epilogue),
        declare(f"{gpu}.depthwise", "Depthwise", name="implicitgemm.tiled_depthwise", serves=gpus_only, fuses=epilogue),
        declare(f"{gpu}.depthwise_sums", "DepthwiseSums", name="implicitgemm.tiled_depthwise_sums", serves=gpus_only,
            # The kernel multiplies zeros beyond dy's last row by elements of x, so a NaN there reaches other taps of
            # the gradient.
            fuses=adds, spreads_nonfinite=True),
    ]  # fmt: skip
