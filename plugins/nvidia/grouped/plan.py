"""The plans of nvidia.grouped: one launch; the weights' gradient as sums of parts and a launch that adds them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, StepPlan, build, define, kernel_text
from convdispatch.api.matrix import MATRIX_TILES, Parts, reduction_launch, written

from ..instructions import Instructions
from .tiling import GroupedSums, GroupedTile, GroupedTiling, SumsTile, reads_of


def _instructions(bfloat: bool, emulate: bool) -> str:
    return Instructions("bf16" if bfloat else "f16", ("copies", "mma")).text(emulate)


class GroupedPlan(StepPlan):
    """The plan of forward and data gradient; ``product.cl.mako`` explains the kernel. ``emulate``: tests build plain
    C."""

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
        return text + kernel_text(__package__, "product.cl.mako", tiling=tiling, emulate=emulate, reads_of=reads_of)


class GroupedSumsPlan(StepPlan):
    """The plan of the weights' gradient; ``sums.cl.mako`` explains the kernel. ``emulate``: tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling = self.tiling = GroupedSums(problem, SumsTile.of(config))
        count, size = tiling.tile.parts, (tiling.work_groups * tiling.items,)
        parts = Parts(count, tiling.size, "int" if tiling.size * count < 2**31 else "long")
        program = build(context, self.sums_text(tiling, emulate))
        sums = Launch(program, "sums", size, (tiling.items,), "y x workspace", names=OPERANDS)
        super().__init__(tiling.workspace_size, [sums, reduction_launch(context, problem, parts, ["w"])])

    @staticmethod
    def sums_text(tiling: GroupedSums, emulate: bool) -> str:
        """The text of the program that computes partial sums."""
        text = _instructions(tiling.bfloat, emulate)
        return text + kernel_text(__package__, "sums.cl.mako", tiling=tiling, emulate=emulate)
