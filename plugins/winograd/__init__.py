"""winograd: minimal filtering, a convolution of small kernels at stride 1 with fewer multiplications.

    Y = AT ((G g GT) * (BT d B)) A      tile by tile, the products summed over the channels in between

Intermediates are larger than results, by up to 11 (root mean square) for the tiles that ``"float32"`` admits, up to 30
in weights' gradients, as powers of two go from the data's transform to the results'. Infinities come at most a factor
of ten before a direct sum's (see docs/use/accuracy.md).

A new tile size is a pair of ``_TILES`` with a measured error in ``geometry.ERROR_RATES``.

- ``transforms``: the exact transform matrices of F(m, r).
- ``geometry``: a problem in tiles and their transforms.
- ``program``: a product with a constant matrix as straight-line OpenCL C.
- ``cpu``: the solver for CPUs.
- ``gpu``: the solvers for GPUs.
"""

from __future__ import annotations

from convdispatch.api import EPILOGUE, FLOATS, Declared, Solver, cpus_only, gpus_only, hookimpl

__all__ = ["convdispatch_solvers"]

_TILES = ((2, 3), (4, 3), (5, 3), (6, 3), (7, 3), (2, 5), (4, 5), (2, 7), (4, 7))
"""Outputs and taps of the tiles whose error is of use; F(7, 3) needs short sums, which CPUs' products have."""


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """Return the solvers of both folders, for CPUs and for GPUs."""
    cpu, gpu = (f"{__name__}.{folder}" for folder in ("cpu", "gpu"))
    solvers: list[Solver] = []
    for module, kind, name, serves in (
        (f"{cpu}.solver", "Winograd", "winograd.f", cpus_only),
        (f"{gpu}.solver", "Tiles", "winograd.tiled_f", gpus_only),
    ):
        for m, r in _TILES:
            if kind == "Winograd" or (m, r) != (7, 3):
                solvers.append(Declared(module, kind, m, r, name=f"{name}{m}x{r}", serves=serves, fuses=EPILOGUE,
                                     dtypes=FLOATS, spreads_nonfinite=True, batch_invariant=True))  # fmt: skip
    return solvers
