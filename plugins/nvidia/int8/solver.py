"""nvidia.int8: quantized convolutions on tensor cores, channels last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo

from ..probe import refusal, require
from ..solving import TileSolver
from ..tma.maps import missing
from .choice import choices, seconds
from .plan import Int8Plan, areas_of
from .tiling import Int8Tile, Int8Tiling, tiling_of


class Int8(TileSolver):
    """Implicit GEMM of bytes, integers or floats, by ``mma.sync`` and, where the device has it, ``wgmma``."""

    seconds = staticmethod(seconds)

    def engine_of(self, problem: ConvProblem) -> str:
        return "float8" if problem.dtype.startswith("float8") else "int8"

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if (problem.out_dtype, problem.math, self.engine_of(problem)) == ("float32", "float32", "float8"):
            return "math tf32 or fast for float32 results, since Hopper sums float8 in 14 bits, got float32"
        return Int8Tiling(problem, Int8Tile(32, 64, 2, 2)).misfit

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Int8Tile]:
        others = ("wgmma", "tma", "halo") if missing(device) is None else ("wgmma",)
        engines = [each for each in others if refusal(device, f"{self.engine_of(problem)}_{each}") is None]
        return choices(problem, device.compute_units, ("mma", *engines))

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> Int8Tiling:
        return tiling_of(problem, Int8Tile.of(config))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace: tensor maps of work groups, and packed weights unless they are constant."""
        return areas_of(self.tiling(problem, config))[0]

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Int8Plan:
        engine, kind = Int8Tile.of(config).engine, self.engine_of(problem)
        require(context, kind if engine == "mma" else f"{kind}_{engine}")
        return Int8Plan(context, problem, config)
