"""The base class of this plugin's solvers: it probes the device, and scales predicted times to its speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver
from convdispatch.api.matrix import Configured

from .instructions import LEAST_LOCAL_LIMIT, LOCAL_LIMIT, LOCAL_LIMITS
from .pace import memory, pace
from .probe import refusal


class TileSolver(Solver):
    """Base of the solvers, whose configurations are tiles."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Refuses what ``limits`` refuses, then devices without the engine's instructions."""
        return self.limits(problem, device) or refusal(device, self.engine_of(problem))

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """The reason to refuse a problem that does not depend on a probe of the device; otherwise None."""
        raise NotImplementedError

    engine: str

    def engine_of(self, problem: ConvProblem) -> str:
        """The engine that a problem needs, a key of ``probe.ENGINES``."""
        return self.engine

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Configured]:
        """Tiles, the fastest by prediction first."""
        raise NotImplementedError

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> Any:
        """The numbers of a problem under a configuration, for ``cost`` and ``workspace``."""
        raise NotImplementedError

    def seconds(self, tiling: Any, units: int, copy: float) -> float:
        """Predicted seconds on ``units`` multiprocessors of an H200 whose memory copies ``copy`` bytes per second."""
        raise NotImplementedError

    def least_seconds(self, problem: ConvProblem, device: DeviceInfo) -> float:
        """``least`` scaled to this device's speed."""
        return self.least(problem, device.compute_units, memory(device)) * pace(device)

    def least(self, problem: ConvProblem, units: int, copy: float) -> float:
        """Seconds below which ``seconds`` is for no tile of a problem; 0.0 if unknown."""
        return 0.0

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The tiles as configurations, as far as the architecture has local memory for them."""
        limit = LOCAL_LIMITS.get(device.arch, LEAST_LOCAL_LIMIT)
        for tile in self.tiles(problem, device):
            if limit == LOCAL_LIMIT or self.tiling(problem, tile.config()).local_bytes <= limit:
                yield tile.config()

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted seconds: the model that was fitted on an H200, scaled to this device's speed."""
        predicted = self.seconds(self.tiling(problem, config), device.compute_units, memory(device))
        return float(predicted) * pace(device)


def kernel_words(problem: ConvProblem) -> str:
    """The kernel's sizes as text, such as 3x3."""
    return "x".join(str(getattr(problem, "k" + axis)) for axis in problem.axes)
