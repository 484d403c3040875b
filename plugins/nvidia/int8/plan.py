"""The plan of nvidia.int8: the product, and before it, where weights are not constant, their packing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Areas, ConvProblem, Launch, StepPlan, build, define, kernel_text

from ..hopper import build_for_hopper
from ..tma.maps import WORDS
from .engines import tiling_of
from .halo import HaloTiling
from .stream import StreamTiling
from .tiling import Int8Tile, Int8Tiling

__all__ = ["Int8Plan", "areas_of"]


def areas_of(tiling: Int8Tiling) -> tuple[int, int]:
    """(bytes of workspace, where packed weights begin that are not kept): the work groups' maps come first."""
    areas = Areas()
    if isinstance(tiling, StreamTiling):
        areas.add(tiling.maps_bytes)
    place = 0 if tiling.problem.constant_weights else areas.add(tiling.packed_size)
    return areas.size, place


class Int8Plan(StepPlan):
    """A Plan; see ``product.cl.mako``. ``emulate`` builds plain C (tests)."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling = self.tiling = tiling_of(problem, Int8Tile.of(config))
        constant, self._emulate, stream = problem.constant_weights, emulate, isinstance(tiling, StreamTiling)
        size, place = areas_of(tiling)
        given = ["x", "w" if constant else "workspace", np.int64(place), "y"]
        given += [*(["workspace"] if stream else []), "bias", *(["residual"] if problem.residual else [])]
        hopper = tiling.tile.engine != "mma" and not emulate
        program = (build_for_hopper if hopper else build)(context, self.product_text())
        items, groups = tiling.tile.items, tiling.work_groups
        if stream:
            items += 0 if emulate else 32 * tiling.copiers
            groups = tiling.staying(context.devices[0].max_compute_units)
        product = Launch(program, "product", (groups * items,), (items,), given, names=OPERANDS)
        pack = Launch(build(context, self.pack_text()), "pack", (tiling.packed_rows * 128,), (128,),
                      ["w", "workspace", np.int64(place)], names=OPERANDS)  # fmt: skip
        if constant:
            super().__init__(size, [product], tiling.packed_size, [pack], self._key())
        else:
            super().__init__(size, [pack, product])

    def _key(self) -> str:
        tiling = self.tiling
        return repr(("nvidia.int8", tiling.problem.w_shape, tiling.problem.g, tiling.rows, tiling.row_bytes,
                     tiling.parts, tiling.run, tiling.corners))  # fmt: skip

    def product_text(self) -> str:
        """The product's program."""
        tiling = self.tiling
        text = tiling.problem.macros() + tiling.instructions.text(self._emulate)
        if not isinstance(tiling, StreamTiling):
            return text + kernel_text(__package__, "product.cl.mako", tiling=tiling)
        encoded = [(0,) * WORDS] * 2 if self._emulate else [each.encode() for each in tiling.maps]
        file = "halo.cl.mako" if isinstance(tiling, HaloTiling) else "stream.cl.mako"
        return text + kernel_text(__package__, file, tiling=tiling, emulate=self._emulate, encoded=encoded)

    def pack_text(self) -> str:
        """The packing's program."""
        tiling = self.tiling
        text = define(OCG=tiling.n, ROWS=tiling.rows, PARTS=tiling.parts, K=tiling.part_k, ROW_BYTES=tiling.row_bytes,
                      RUN=tiling.run, SETS=tiling.sets,
                      CORNERS=str(list(itertools.chain(*tiling.corners)))[1:-1],
                      COLUMNS=tiling.problem.kw if tiling.parts > 1 else 1, ALL=tiling.packed_rows,
                      SUMS_AT=f"{tiling.packed_rows * tiling.row_bytes}L")  # fmt: skip
        return text + kernel_text(__package__, "pack.cl")
