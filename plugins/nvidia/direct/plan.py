"""The plan of nvidia.direct: the product, and the sum of its parts, as launches over the problem's buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, StepPlan, build, kernel_text

from .. import SHARED
from ..instructions import Instructions
from ..parts import parts_text
from ..reduction import reduction_launch
from .product import product_text
from .tiling import DirectTile, DirectTiling


class DirectPlan(StepPlan):
    """A Plan; see ``product.cl.mako`` for what the launches compute. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        self.tiling, self._emulate = DirectTiling(problem, DirectTile.of(config)), emulate
        self._partial = self.tiling.tile.split > 1 and not self.tiling.tile.fixup
        steps = [self._product(context)]
        if self._partial:
            steps.append(self._reduce(context))
        super().__init__(self.tiling.partial_bytes, steps)

    def _common(self, partial: bool) -> str:
        text = self.tiling.problem.macros() + f"#define OUT_INDEX {self.tiling.out_index}\n"
        text += f"#define PARTIAL {int(partial)}\n#define PARTIAL_AT 0L\n"
        return text + kernel_text(SHARED, "finish.cl")

    def product_text(self) -> str:
        """The product's program."""
        depth = self.tiling.tile.depth
        fixup = self.tiling.tile.fixup
        groups = ("copies", "mma", "parts") if fixup else ("copies", "mma")
        instructions = Instructions("bf16" if depth == 16 else "tf32", groups)
        text = self._common(self._partial) + instructions.text(self._emulate) + kernel_text(SHARED, "sums.cl")
        text += parts_text(self.tiling, self.tiling.tile.split, self.tiling.tile.frag_m) if fixup else ""
        text += kernel_text(__package__, "split.cl.mako", depth=depth)
        return text + product_text(self.tiling, self._emulate)

    def _written(self) -> list[str]:
        problem = self.tiling.problem
        return [problem.written, *(name for name in ("bias", "residual") if getattr(problem, name))]

    def _product(self, context: Any) -> Launch:
        tiling = self.tiling
        given = [operand.name for operand in tiling.operands]
        given += ["workspace"] if self._partial or tiling.tile.fixup else []
        given += [] if self._partial else self._written()
        size = (tiling.work_groups * tiling.tile.items,)
        return Launch(build(context, self.product_text()), "direct", size, (tiling.tile.items,), given, names=OPERANDS)

    def _reduce(self, context: Any) -> Launch:
        tiling = self.tiling
        return reduction_launch(
            context, tiling.problem, tiling.out_index, tiling.partial_elements, tiling.tile.split, tiling.lanes,
            self._written(),
        )  # fmt: skip
