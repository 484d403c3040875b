"""The variants for CPUs: vectors run along channels, one work item a run of tiles, no barriers."""

from __future__ import annotations

from convdispatch.api import Solver

from .solver import Tiled

__all__ = ["solvers"]


def solvers() -> list[Solver]:
    """The solvers of this room."""
    return [Tiled()]
