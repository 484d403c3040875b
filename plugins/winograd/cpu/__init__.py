"""Minimal filtering on CPUs: register tiles over transformed tiles, one work item a run of them, no barriers."""

from __future__ import annotations

from convdispatch.api import Solver

from .error import TILES
from .solver import Winograd

__all__ = ["solvers"]


def solvers() -> list[Solver]:
    """The solvers of this room: F(m, r) for the kernels and tiles whose error is of use."""
    return [Winograd(m, r) for m, r in TILES]
