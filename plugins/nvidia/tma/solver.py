"""nvidia.tma: tensors of 16 bits, or of float32 for TF32, which Hopper's copy engine reads, in NHWC in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, phase_count

from ..packed.solver import TensorCores
from ..probe import refusal, require
from ..solving import TileSolver
from .choice import choices, seconds
from .maps import missing
from .plan import TmaPlan
from .rewriting import gathers
from .tiling import TmaTile, TmaTiling


class Tma(TensorCores):
    """Products by ``wgmma``, whose operands one warp copies by tensor maps (TMA); ``product.cl.mako`` explains it."""

    seconds, least = staticmethod(seconds), TileSolver.least

    def __init__(self) -> None:
        super().__init__("wgmma")

    def engine_of(self, problem: ConvProblem) -> str:
        if problem.ndim > 2:
            return "tma_deep"
        return "tma" if problem.itemsize == 2 else "tma_tf32"

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Refuses tensors that the copy engine (TMA) cannot gather, and devices without a copy engine."""
        return self.limits(problem, device) or missing(device) or refusal(device, self.engine_of(problem))

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.dtype == "float32" and problem.math not in ("tf32", "fast"):
            return f"float32 for math tf32 and fast only, got {problem.math}"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        format_name, depth = (problem.dtype, 32) if problem.itemsize == 2 else ("tf32", 16)
        depth = 64 if problem.direction == "bwd_weights" else depth
        tile = TmaTile(64, 256, 1, 1, format_name, "wgmma", depth, block=32, taps=gathers(problem))
        reason = TmaTiling.of(problem, tile).misfit
        return f"{reason} only" if reason else None

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[TmaTile]:
        return choices(problem, device.compute_units)

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> TmaTiling:
        return TmaTiling.of(problem, TmaTile.of({**config, "engine": "wgmma"}))

    def sums_by_batch(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> bool:
        """Whether folded pixels may span images: pixels are counted over all images of the batch."""
        return TmaTile.of({**config, "engine": "wgmma"}).pixels > 1

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> TmaPlan:
        require(context, self.engine_of(problem))
        return TmaPlan(context, problem, config, "wgmma")
