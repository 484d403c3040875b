"""winograd: minimal filtering, a convolution of small kernels at stride 1 with fewer multiplications.

    Y = AT ((G g GT) * (BT d B)) A      tile by tile, the products summed over the channels in between

Intermediates are larger than results: by up to 57 (root mean square) for the tiles that ``"float32"`` admits, in
weights' gradients by up to 241. Operands of 1e16 each, or of a product of 1e32, overflow nowhere in sums of up to 1e5
terms; beyond, infinities come before a direct sum's, for F(6, 3) from 3e38 / (241 sqrt(terms)) on (docs/accuracy.md).

Each kind of device has a room of its own, ``cpu`` and ``gpu``; ``transforms`` makes the matrices, ``program`` prints
products with them.
"""

from __future__ import annotations

from convdispatch.api import Solver, hookimpl

from . import cpu, gpu

__all__ = ["convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """The solvers of every room."""
    return [*cpu.solvers(), *gpu.solvers()]
