"""nvidia.grouped: 16-bit NHWC convolutions of small groups, and strided gradients, on tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, phase_count

from ..probe import require
from ..solving import TileSolver
from .choice import choices, seconds
from .plan import GroupedPlan, GroupedSumsPlan
from .tiling import GroupedSums, GroupedTile, GroupedTiling, SumsTile

MAX_PHASES = 16
"""Most phases of a strided data gradient: the program contains one body of code per phase."""
MAX_CHANNELS = 1 << 16
"""Most channels of all groups together: their slabs are counted in a loop on the host."""


class Grouped(TileSolver):
    """Convolutions of 16-bit NHWC tensors, all directions, in which a slab of 32 channels reads few other slabs."""

    seconds = staticmethod(seconds)

    def engine_of(self, problem: ConvProblem) -> str:
        return "grouped"

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.layout != "nhwc":
            return f"channels last only, got {problem.layout}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ic % 8 or problem.oc % 8:
            return f"channels in multiples of eight, got {problem.ic} and {problem.oc}"
        if max(problem.ic, problem.oc) > MAX_CHANNELS:
            return f"{MAX_CHANNELS} channels at most, got {problem.ic} and {problem.oc}"
        if problem.direction == "bwd_weights":
            return GroupedSums(problem, SumsTile(places=64)).misfit
        if problem.ndim > 2:
            return f"1 or 2 axes, got {problem.ndim}"
        if phase_count(problem) > MAX_PHASES:
            return f"strides of up to {MAX_PHASES} phases, got {phase_count(problem)}"
        return GroupedTiling(problem, GroupedTile(frag_m=1)).misfit

    def tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[GroupedTile | SumsTile]:
        return choices(problem, device.compute_units)

    def tiling(self, problem: ConvProblem, config: Mapping[str, Any]) -> GroupedTiling | GroupedSums:
        if problem.direction == "bwd_weights":
            return GroupedSums(problem, SumsTile.of(config))
        return GroupedTiling(problem, GroupedTile.of(config))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of workspace: the parts of the weight gradient's sums; 0 in other directions."""
        return self.tiling(problem, config).workspace_size if problem.direction == "bwd_weights" else 0

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> GroupedPlan | GroupedSumsPlan:
        require(context, "grouped")
        return (GroupedSumsPlan if problem.direction == "bwd_weights" else GroupedPlan)(context, problem, config)
