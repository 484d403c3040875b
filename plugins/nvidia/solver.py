"""The plugin's solvers, in the order in which equal costs choose."""

from __future__ import annotations

from convdispatch.api import Solver

from .direct import Direct
from .tensor_cores import TensorCores
from .tma import Tma

__all__ = ["solvers"]


def solvers() -> list[Solver]:
    """Every solver of the plugin."""
    return [Tma(), TensorCores("wgmma"), Direct(), TensorCores("mma")]
