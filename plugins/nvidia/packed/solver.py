"""nvidia.wgmma and nvidia.mma: the problems they accept, their configurations, and predicted costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.api.matrix import Layout, group_limits, size_limits

from ..probe import require
from ..solving import TileSolver
from .choice import choices, fits, least, seconds
from .plan import NvidiaPlan
from .tiling import Tile, Tiling


class TensorCores(TileSolver):
    """Implicit GEMM on tensor cores, all directions, by the instruction ``engine``: ``mma`` or ``wgmma``."""

    seconds = staticmethod(seconds)

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        reason = size_limits(problem) or group_limits(problem)
        return reason or (None if fits(problem, self.engine) else "no tile fits")

    def least(self, problem: ConvProblem, units: int, copy: float) -> float:
        return least(problem, self.engine, units, copy)

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Tile]:
        return choices(problem, self.engine, device.compute_units)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Configurations of the tiles, without the engine, which the solver fixes."""
        for config in super().configs(problem, device):
            yield {name: value for name, value in config.items() if name != "engine"}

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        return Tiling(problem, Tile.of({**config, "engine": self.engine}))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace: packed operands, partial sums and tensor maps."""
        return Layout(self.tiling(problem, config)).size

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> NvidiaPlan:
        require(context, self.engine)
        return NvidiaPlan(context, problem, config, self.engine)
