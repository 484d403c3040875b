"""nvidia.grouped: 16-bit NHWC convolutions of small groups, and strided gradients, on tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from convdispatch.api import (
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Launch,
    StepPlan,
    build,
    define,
    kernel_text,
    phase_count,
)
from convdispatch.api.matrix import MATRIX_TILES, Parts, reduction_launch, written

from ..instructions import Instructions
from ..probe import require
from ..solving import TileSolver
from .choice import choices, least, seconds
from .tiling import GroupedSums, GroupedTile, GroupedTiling, SumsTile

MAX_PHASES = 16
"""Most phases of a strided data gradient: the program contains one body of code per phase."""
MAX_CHANNELS = 1 << 16
"""Most channels of all groups together: their slabs are counted in a loop on the host."""


class Grouped(TileSolver):
    """Convolutions of 16-bit NHWC tensors, all directions, in which a slab of 32 channels reads few other slabs."""

    seconds, engine = staticmethod(seconds), "grouped"

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

    def least(self, problem: ConvProblem, units: int, copy: float) -> float:
        return least(problem, copy)

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


def _instructions(bfloat: bool, emulate: bool) -> str:
    return Instructions("bf16" if bfloat else "f16", ("copies", "mma")).text(emulate)


class GroupedPlan(StepPlan):
    """The plan of forward and data gradient (``product.cl.mako``). With ``emulate`` tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling, self._emulate = GroupedTiling(problem, GroupedTile.of(config)), emulate
        self.tiling, items = tiling, tiling.tile.items
        operands = ["w", "x" if problem.direction == "fwd" else "y", *written(problem)]
        program, size = build(context, self.product_text()), (tiling.work_groups * items,)
        super().__init__(0, [Launch(program, "grouped", size, (items,), operands, names=OPERANDS)])

    def product_text(self) -> str:
        tiling, emulate = self.tiling, self._emulate
        text = tiling.problem.macros() + define(OUT_INDEX=tiling.out_index, PARTIAL=0, PARTIAL_AT="0L", OCTETS=0)
        text += _instructions(tiling.bfloat, emulate)
        format_only = SimpleNamespace(format=SimpleNamespace(bfloat=tiling.bfloat))
        text += kernel_text(MATRIX_TILES, "narrow.cl.mako", tiling=format_only) + kernel_text(MATRIX_TILES, "finish.cl")
        return text + kernel_text(__package__, "product.cl.mako", tiling=tiling, emulate=emulate)


class GroupedSumsPlan(StepPlan):
    """The plan of the weights' gradient; ``sums.cl.mako`` explains the kernel. ``emulate``: tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling, self._emulate = GroupedSums(problem, SumsTile.of(config)), emulate
        self.tiling, count, size = tiling, tiling.tile.parts, (tiling.work_groups * tiling.items,)
        parts = Parts(count, tiling.size, "int" if tiling.size * count < 2**31 else "long")
        program = build(context, self.product_text())
        sums = Launch(program, "sums", size, (tiling.items,), "y x workspace", names=OPERANDS)
        super().__init__(tiling.workspace_size, [sums, reduction_launch(context, problem, parts, ["w"])])

    def product_text(self) -> str:
        """The text of the program that computes partial sums."""
        text = _instructions(self.tiling.bfloat, self._emulate)
        return text + kernel_text(__package__, "sums.cl.mako", tiling=self.tiling, emulate=self._emulate)
