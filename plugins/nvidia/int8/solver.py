"""nvidia.int8: quantized convolutions on tensor cores, channels last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver

from ..pace import memory, pace
from ..probe import refusal, require
from ..tma.maps import missing
from .choice import choices, seconds
from .engines import tiling_of
from .plan import Int8Plan, areas_of
from .tiling import Int8Tile, Int8Tiling

__all__ = ["Int8"]

_LEAST = Int8Tile(32, 64, 2, 2)


class Int8(Solver):
    """Implicit GEMM of bytes by ``mma.sync`` and, where the device has it, ``wgmma``."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Floats, other layouts, few channels, and devices without the instruction."""
        return self.limits(problem, device) or refusal(device, "int8")

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if not problem.quantized:
            return f"quantized problems only, got {problem.dtype}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return Int8Tiling(problem, _LEAST).misfit

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        engines = ["mma"]
        engines += ["wgmma"] if refusal(device, "int8_wgmma") is None else []
        for each in ("tma", "halo") if missing() is None else ():
            engines += [each] if refusal(device, f"int8_{each}") is None else []
        for tile in choices(problem, device.compute_units, tuple(engines)):
            yield tile.config()

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Work groups' maps, and packed weights that are not kept."""
        return areas_of(tiling_of(problem, Int8Tile.of(config)))[0]

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted, at the rates of an H200."""
        tiling = tiling_of(problem, Int8Tile.of(config))
        return seconds(tiling, device.compute_units, memory(device)) * pace(device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Int8Plan:
        """Compile a configuration."""
        engine = Int8Tile.of(config).engine
        require(context, "int8" if engine == "mma" else f"int8_{engine}")
        return Int8Plan(context, problem, config)
