"""fft: convolution as a product of spectra, whose cost hardly depends on the kernel's size.

    y = inverse(sum over ic of forward(x tile) * conj(forward(w)))

Tiles overlap by the kernel's extent and the wrapped sums are dropped (overlap-save); a tile may be the whole image.
A new transform is a case of ``transforms``; what a kind of device needs is in its folder.

- ``network``: straight-line arithmetic as a graph.
- ``transforms``: discrete Fourier transforms as such networks.
- ``tiling``: a convolution cut into tiles whose transforms multiply.
- ``cpu``: the solver for CPUs.
- ``gpu``: the solver for GPUs.
"""

from __future__ import annotations

from convdispatch.api import EPILOGUE, Declared, Solver, cpus_only, gpus_only, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """Return the solvers of both folders, for CPUs and for GPUs."""
    folders = ("cpu", "Tiled", "tiled", cpus_only), ("gpu", "Spectra", "gpu", gpus_only)
    return [
        Declared(f"{__name__}.{folder}.solver", kind, name=f"fft.{name}", serves=serves, fuses=EPILOGUE,
                 # The transforms' constants are float32.
                 dtypes=("float32", "float16", "bfloat16"), spreads_nonfinite=True,
                 batch_invariant=True)
        for folder, kind, name, serves in folders
    ]  # fmt: skip
