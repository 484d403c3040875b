"""The plans of nvidia.grouped: one launch; the weights' gradient as sums of parts and a launch that adds them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, StepPlan, build, kernel_text

from .. import SHARED
from ..instructions import Instructions
from ..reduction import reduction_launch
from .sums import GroupedSums, SumsTile
from .tiling import GroupedTile, GroupedTiling, reads_of


class GroupedPlan(StepPlan):
    """A Plan; see ``product.cl.mako`` for what the launch computes. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        self.tiling, self._emulate = GroupedTiling(problem, GroupedTile.of(config)), emulate
        source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
        given = ["w", source, written, *(name for name in ("bias", "residual") if getattr(problem, name))]
        size, items = (self.tiling.work_groups * self.tiling.tile.items,), (self.tiling.tile.items,)
        step = Launch(build(context, self.product_text()), "grouped", size, items, given, names=OPERANDS)
        super().__init__(0, [step])

    def product_text(self) -> str:
        """The program."""
        tiling = self.tiling
        text = tiling.problem.macros() + f"#define OUT_INDEX {tiling.out_index}\n"
        text += "#define PARTIAL 0\n#define PARTIAL_AT 0L\n#define OCTETS 0\n"
        text += Instructions("bf16" if tiling.bfloat else "f16", ("copies", "mma")).text(self._emulate)
        text += kernel_text(
            SHARED, "narrow.cl.mako", tiling=SimpleNamespace(format=SimpleNamespace(bfloat=tiling.bfloat))
        )
        text += kernel_text(SHARED, "finish.cl")
        return text + kernel_text(
            __package__, "product.cl.mako", tiling=tiling, emulate=self._emulate, reads_of=reads_of
        )


class GroupedSumsPlan(StepPlan):
    """A Plan of the weights' gradient; see ``sums.cl.mako``. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling = self.tiling = GroupedSums(problem, SumsTile.of(config))
        lanes, parts = 8 if tiling.tile.parts >= 16 else 1, tiling.tile.parts
        index = "int" if tiling.size * parts < 2**31 else "long"
        size, items = (tiling.work_groups * tiling.items,), (tiling.items,)
        steps = [
            Launch(build(context, self.sums_text(tiling, emulate)), "sums", size, items, "y x workspace",
                   names=OPERANDS),
            reduction_launch(context, problem, index, tiling.size, parts, lanes, ["w"]),
        ]  # fmt: skip
        super().__init__(tiling.workspace_size, steps)

    @staticmethod
    def sums_text(tiling: GroupedSums, emulate: bool) -> str:
        """The program of the parts' sums."""
        text = Instructions("bf16" if tiling.bfloat else "f16", ("copies", "mma")).text(emulate)
        return text + kernel_text(__package__, "sums.cl.mako", tiling=tiling, emulate=emulate)
