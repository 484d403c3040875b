"""The plan of nvidia.mma and nvidia.wgmma: the product of ``convdispatch.api.matrix`` with NVIDIA's instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem
from convdispatch.api.matrix import ProductPlan

from .tiling import Tile, Tiling


class NvidiaPlan(ProductPlan):
    """The plan of nvidia.mma and nvidia.wgmma; with ``emulate`` tests build plain C."""

    vendor = "nvidia"

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        return Tiling(problem, Tile.of(config))
