"""The plan of nvidia.mma and nvidia.wgmma: the shared product with their instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem
from convdispatch.api.matrix import ProductPlan

from .tiling import Tile, Tiling


class NvidiaPlan(ProductPlan):
    """A Plan; ``emulate`` builds plain C (tests)."""

    vendor = "nvidia"

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        return Tiling(problem, Tile.of(config))
