"""nvidia.tma: channels-last tensors of 16 bits, or of float32 for TF32, read where they lie by Hopper's copy engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, phase_count

from ..pace import memory
from ..packed.layout import Layout
from ..packed.solver import TensorCores
from ..probe import refusal, require
from .choice import choices, seconds
from .gather import gathers
from .maps import missing
from .plan import TmaPlan
from .tiling import TmaTile, TmaTiling


def _engine(problem: ConvProblem) -> str:
    """What the device must prove (``probe``)."""
    return "tma" if problem.itemsize == 2 else "tma_tf32"


class Tma(TensorCores):
    """``wgmma`` fed by a warp that does nothing else; see ``product.cl.mako``."""

    def __init__(self) -> None:
        super().__init__("wgmma")

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What the copy engine cannot gather, and devices without one."""
        return self.limits(problem, device) or missing() or refusal(device, _engine(problem))

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if problem.dtype == "float32":
            if problem.math not in ("tf32", "fast"):
                return f"float32 for math tf32 and fast only, got {problem.math}"
        elif problem.dtype not in ("float16", "bfloat16"):
            return f"float16, bfloat16 and float32 only, got {problem.dtype}"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        number, depth = (problem.dtype, 32) if problem.itemsize == 2 else ("tf32", 16)
        depth = 64 if problem.direction == "bwd_weights" else depth
        tiling = TmaTiling.of(problem, TmaTile(64, 64, 1, 1, number, "wgmma", depth, block=32, taps=gathers(problem)))
        reason = tiling.misfit
        return f"{reason} only" if reason else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        for tile in choices(problem, device.compute_units):
            config = tile.config()
            config.pop("engine", None)
            yield config

    def _tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> TmaTiling:
        return TmaTiling.of(problem, TmaTile.of({**config, "engine": "wgmma"}))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Partial sums and the work groups' maps."""
        return Layout(self._tiling(problem, config)).size

    def seconds(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted."""
        return seconds(self._tiling(problem, config), device.compute_units, memory(device))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> TmaPlan:
        """Compile a configuration."""
        require(context, _engine(problem))
        return TmaPlan(context, problem, config, "wgmma")
