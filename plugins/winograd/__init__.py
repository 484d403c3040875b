"""winograd: minimal filtering, a convolution of small kernels at stride 1 with fewer multiplications.

    Y = AT ((G g GT) * (BT d B)) A      tile by tile, the products summed over the channels in between

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
