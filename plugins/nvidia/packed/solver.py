"""nvidia.wgmma and nvidia.mma: what they accept, what they offer to tune, and what they expect to be fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, Solver, phase_count

from ..configured import MOST_BYTES
from ..formats import formats
from ..pace import memory, pace
from ..probe import refusal, require
from .choice import choices, fits, seconds
from .layout import Layout
from .plan import NvidiaPlan
from .tile import Tile
from .tiling import Tiling

_LEAST = 4  # channels of a group


class TensorCores(Solver):
    """Implicit GEMM on tensor cores, all directions; ``engine`` is the instruction that multiplies."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Devices without the instruction, shapes that leave tensor cores idle."""
        return self.limits(problem, device) or refusal(device, self.engine)

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if not formats(problem):
            return f"float32, float16 and bfloat16 only, got {problem.dtype}"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.bytes > MOST_BYTES:
            return f"at most {MOST_BYTES} bytes, got {problem.bytes}"
        least = min(problem.ic, problem.oc) // problem.g
        if problem.g > 1 and least < _LEAST:
            return f"{_LEAST} channels a group or more, got {least}"
        if not fits(problem, self.engine):
            return "no tile fits"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        for tile in choices(problem, self.engine, device.compute_units):
            config = tile.config()
            config.pop("engine", None)
            yield config

    def _tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        return Tiling(problem, Tile.of({**config, "engine": self.engine}))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Packed operands and partial sums."""
        return Layout(self._tiling(problem, config)).size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted, as fitted on an H200."""
        return float(self.seconds(problem, device, config)) * pace(device)

    def seconds(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted."""
        return seconds(self._tiling(problem, config), device.compute_units, memory(device))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> NvidiaPlan:
        """Compile a configuration."""
        require(context, self.engine)
        return NvidiaPlan(context, problem, config, self.engine)
