"""fft: convolution as a product of spectra, at the cost of a small kernel for a large one.

    y = inverse(sum over ic of forward(x tile) * conj(forward(w)))

Tiles overlap by the kernel's extent and the wrapped sums are dropped (overlap-save); a tile may be the whole image.
Each kind of device has a room of its own: ``cpu``, ``gpu``; the straight-line transforms and the tilings are shared.
"""

from __future__ import annotations

from convdispatch.api import EPILOGUE, Declared, Solver, cpus_only, gpus_only, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """The solvers of every room."""
    rooms = ("cpu", "Tiled", "tiled", cpus_only), ("gpu", "Spectra", "gpu", gpus_only)
    return [
        Declared(f"{__name__}.{room}.solver", kind, name=f"fft.{name}", serves=serves, fuses=EPILOGUE,
                 spreads_nonfinite=True)
        for room, kind, name, serves in rooms
    ]  # fmt: skip
