"""nvidia.grouped: 16-bit convolutions of small groups and of strided gradients on tensor cores, channels last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Solver, phase_count

from ..pace import memory, pace
from ..probe import refusal, require
from .choice import choices, seconds
from .plan import GroupedPlan, GroupedSumsPlan
from .sums import GroupedSums, SumsTile
from .sums import choices as sums_choices
from .sums import seconds as sums_seconds
from .tiling import GroupedTile, GroupedTiling

_PHASES = 16  # a program has a body for each
_MOST_CHANNELS = 1 << 16
"""Slabs of channels are counted one by one."""


class Grouped(Solver):
    """All directions, 16-bit, channels last, where a slab of channels reads few others."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Devices without the instructions, other dtypes and layouts."""
        return self.limits(problem, device) or refusal(device, "grouped")

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What ``rejects`` says before it asks the device."""
        if problem.dtype not in ("float16", "bfloat16"):
            return f"float16 and bfloat16 only, got {problem.dtype}"
        if problem.layout != "nhwc":
            return f"channels last only, got {problem.layout}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if problem.ic % 8 or problem.oc % 8:
            return f"channels in multiples of eight, got {problem.ic} and {problem.oc}"
        if max(problem.ic, problem.oc) > _MOST_CHANNELS:
            return f"{_MOST_CHANNELS} channels at most, got {problem.ic} and {problem.oc}"
        if problem.direction == "bwd_weights":
            return GroupedSums(problem, SumsTile(places=64)).misfit
        if problem.ndim > 2:
            return f"1 or 2 axes, got {problem.ndim}"
        if phase_count(problem) > _PHASES:
            return f"strides of up to {_PHASES} phases, got {phase_count(problem)}"
        return GroupedTiling(problem, GroupedTile(frag_m=1)).misfit

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        tiles = sums_choices if problem.direction == "bwd_weights" else choices
        for tile in tiles(problem, device.compute_units):
            yield tile.config()

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Parts of the weights' gradient."""
        return GroupedSums(problem, SumsTile.of(config)).workspace_size if problem.direction == "bwd_weights" else 0

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted, as fitted on an H200."""
        if problem.direction == "bwd_weights":
            sums = GroupedSums(problem, SumsTile.of(config))
            return sums_seconds(sums, device.compute_units, memory(device)) * pace(device)
        tiling = GroupedTiling(problem, GroupedTile.of(config))
        return seconds(tiling, device.compute_units, memory(device)) * pace(device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> GroupedPlan | GroupedSumsPlan:
        """Compile a configuration."""
        require(context, "grouped")
        return (GroupedSumsPlan if problem.direction == "bwd_weights" else GroupedPlan)(context, problem, config)
