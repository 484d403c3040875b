"""By a tile's engine: which numbers its kernel needs."""

from __future__ import annotations

from convdispatch.api import ConvProblem

from .halo import HaloTiling
from .stream import StreamTiling
from .tiling import Int8Tile, Int8Tiling

__all__ = ["tiling_of"]

_TILINGS = {"mma": Int8Tiling, "wgmma": Int8Tiling, "tma": StreamTiling, "halo": HaloTiling}


def tiling_of(problem: ConvProblem, tile: Int8Tile) -> Int8Tiling:
    """The tiling of a tile's engine."""
    return _TILINGS[tile.engine](problem, tile)
