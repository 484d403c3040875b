"""exact: convolutions whose bits are the same on every device; what ``math="reproducible"`` chooses among.

    sum = fma(a_n, b_n, ... fma(a_2, b_2, fma(a_1, b_1, +0)))   for each block; the blocks' sums are added in order

The order of the products and the blocks are defined in docs/use/reproducibility.md, with a reference in NumPy; they
depend on the kernel's and the channels' numbers alone, never on a device, a layout or a configuration. A new kernel is
a module that keeps this order, and a line of ``convdispatch_solvers``.

- ``solving``: what both solvers share: the order of sums, packing, launches, and the proof that a device rounds once.
- ``registers``: ``exact.registers``: tiles in a CPU's vector registers.
- ``tiles``: ``exact.tiles``: tiles in a GPU's local memory.
"""

from __future__ import annotations

from convdispatch.api import EPILOGUE, Declared, Solver, cpus_only, gpus_only, hookimpl

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """Return the solver for CPUs and the solver for GPUs."""
    return [
        Declared(f"{__name__}.{module}", make, name=f"exact.{module}", serves=serves, fuses=EPILOGUE, exact=True,
                 dtypes=("float32", "float64"), spreads_nonfinite=False, reproducible=True)
        for module, make, serves in (("registers", "Registers", cpus_only), ("tiles", "Tiles", gpus_only))
    ]  # fmt: skip
