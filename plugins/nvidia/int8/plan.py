"""The plan of nvidia.int8: a launch that packs weights unless they are constant, and the product."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Areas, ConvProblem, Launch, StepPlan, build, define, kernel_text

from ..instructions import PLAIN_C, build_for_hopper
from ..tma.maps import encoded
from .tiling import MAX_GROUPS, HaloTiling, Int8Tile, Int8Tiling, StreamTiling, tiling_of


def areas_of(tiling: Int8Tiling) -> tuple[int, int]:
    """(bytes of workspace, offset of packed weights that are not constant); the work groups' tensor maps come first."""
    areas = Areas()
    if isinstance(tiling, StreamTiling):
        areas.add(MAX_GROUPS * tiling.maps_each)
    offset = 0 if tiling.problem.constant_weights else areas.add(tiling.packed_size)
    return areas.size, offset


class Int8Plan(StepPlan):
    """The plan of nvidia.int8; ``product.cl.mako`` explains the kernel. With ``emulate`` tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling = self.tiling = tiling_of(problem, Int8Tile.of(config))
        constant, self._emulate, is_stream = problem.constant_weights, emulate, isinstance(tiling, StreamTiling)
        size, offset = areas_of(tiling)
        arguments = ["x", "w" if constant else "workspace", np.int64(offset), "y"]
        arguments += [*(["workspace"] if is_stream else []), "bias", *(["residual"] if problem.residual else [])]
        hopper = tiling.tile.engine != "mma" and not emulate
        program = (build_for_hopper if hopper else build)(context, self.product_text())
        items, groups = tiling.tile.items, tiling.work_groups
        if is_stream:
            items += 0 if emulate else tiling.copying_items
            groups = tiling.staying(context.devices[0].max_compute_units)
        product = Launch(program, "product", (groups * items,), (items,), arguments, names=OPERANDS)
        pack = Launch(build(context, self.pack_text()), "pack", (tiling.packed_rows * 128,), (128,),
                      ["w", "workspace", np.int64(offset)], names=OPERANDS)  # fmt: skip
        if constant:
            key = ("nvidia.int8", problem.w_shape, problem.g, tiling.rows, tiling.row_bytes, tiling.parts, tiling.run,
                   tiling.corners)  # fmt: skip
            super().__init__(size, [product], tiling.packed_size, [pack], repr(key))
        else:
            super().__init__(size, [pack, product])

    def product_text(self) -> str:
        tiling = self.tiling
        text = tiling.problem.macros() + tiling.instructions.text(self._emulate)
        if not isinstance(tiling, StreamTiling):
            return text + kernel_text(__package__, "product.cl.mako", tiling=tiling)
        file = "halo.cl.mako" if isinstance(tiling, HaloTiling) else "stream.cl.mako"
        maps = encoded(tiling.maps, self._emulate)
        text += kernel_text(PLAIN_C, "int8_copies.cl.mako", tiling=tiling) if self._emulate else ""
        return text + kernel_text(__package__, file, tiling=tiling, emulate=self._emulate, encoded=maps)

    def pack_text(self) -> str:
        tiling = self.tiling
        text = define(OCG=tiling.n, ROWS=tiling.rows, PARTS=tiling.parts, K=tiling.part_k, ROW_BYTES=tiling.row_bytes,
                      RUN=tiling.run, SETS=tiling.sets,
                      CORNERS=str(list(itertools.chain(*tiling.corners)))[1:-1],
                      COLUMNS=tiling.problem.kw if tiling.parts > 1 else 1, ALL=tiling.packed_rows,
                      SUMS_AT=f"{tiling.packed_rows * tiling.row_bytes}L")  # fmt: skip
        return text + kernel_text(__package__, "pack.cl")
