"""The plan of nvidia.int8: the product, and before it, where weights are not constant, their packing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, ConvProblem, Launch, StepPlan, build, define, kernel_text

from ..hopper import build_for_hopper
from .tiling import Int8Tile, Int8Tiling

__all__ = ["Int8Plan"]


class Int8Plan(StepPlan):
    """A Plan; see ``product.cl.mako``. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling = self.tiling = Int8Tiling(problem, Int8Tile.of(config))
        constant, self._emulate = problem.constant_weights, emulate
        weights, extras = "w" if constant else "workspace", ["bias", *(["residual"] if problem.residual else [])]
        hopper = tiling.tile.engine == "wgmma" and not emulate
        program = (build_for_hopper if hopper else build)(context, self.product_text())
        items = tiling.tile.items
        product = Launch(program, "product", (tiling.work_groups * items,), (items,),
                         ["x", weights, np.int64(0), "y", *extras], names=OPERANDS)  # fmt: skip
        pack = Launch(build(context, self.pack_text()), "pack", (tiling.packed_rows * 128,), (128,),
                      ["w", "workspace", np.int64(0)], names=OPERANDS)  # fmt: skip
        if constant:
            super().__init__(0, [product], tiling.packed_size, [pack], self._key())
        else:
            super().__init__(tiling.packed_size, [pack, product])

    def _key(self) -> str:
        tiling = self.tiling
        return repr(("nvidia.int8", tiling.problem.w_shape, tiling.problem.g, tiling.rows, tiling.row_bytes))

    def product_text(self) -> str:
        """The product's program."""
        tiling = self.tiling
        text = tiling.problem.macros() + tiling.instructions.text(self._emulate)
        return text + kernel_text(__package__, "product.cl.mako", tiling=tiling)

    def pack_text(self) -> str:
        """The packing's program."""
        tiling = self.tiling
        text = define(OCG=tiling.n, ROWS=tiling.rows, K=tiling.k, ROW_BYTES=tiling.row_bytes,
                      SUMS_AT=f"{tiling.packed_rows * tiling.row_bytes}L")  # fmt: skip
        return text + kernel_text(__package__, "pack.cl")
