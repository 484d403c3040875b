"""The plan of nvidia.tma: launches that rewrite operands, and the product, whose operands the copy engine (TMA)
reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, define, kernel_text
from convdispatch.api.matrix import MATRIX_TILES, Source, parts_text, written

from ..instructions import PLAIN_C, build_for_hopper
from ..packed.plan import NvidiaPlan
from ..packed.tiling import Tiling
from .maps import encoded
from .rewriting import fold_launch, gather_launch, transpose_launch
from .tiling import MAP_BYTES, TmaTile, TmaTiling


class TmaPlan(NvidiaPlan):
    """A plan whose product reads its operands by tensor maps; ``product.cl.mako`` explains the kernel."""

    tiling: TmaTiling

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        self._unfolded = problem
        return TmaTiling.of(problem, TmaTile.of(config))

    def _key(self) -> str:
        return repr((self.tiling.tile.pixels, self.tiling.tile.taps, super()._key()))

    def _pack(self, context: Any, tensors: Sequence[tuple[str, Source | None]]) -> list[Launch]:
        """Launches that rewrite the weights for folded pixels, transpose weights, or rewrite a first layer's
        operands."""
        offsets, problem, tile = self._layout.at, self._unfolded, self.tiling.tile
        if tile.taps:
            return [gather_launch(context, problem, name, tile.taps, offsets[name]) for name, _ in tensors]
        if not tensors:
            return []
        if self.tiling.rewritten_weights:
            return [transpose_launch(context, problem, offsets["w"])]
        return [fold_launch(context, problem, tile.pixels, offsets["w"])]

    def product_text(self) -> str:
        tiling, layout, emulate = self.tiling, self._layout, self._emulate
        text = self._common + define(PARTIAL=int(tiling.partial), PARTIAL_AT=f"{layout.partial // 4}L")
        text += define(PAIRS=0, OCTETS=1, B_AT=f"{layout.at.get('w', 0) // 2}L", A_AT=f"{layout.at.get('x', 0) // 2}L")
        text += tiling.instructions.text(emulate)
        for file in ("finish.cl",) if tiling.format.tf32 else ("narrow.cl.mako", "finish.cl"):
            text += kernel_text(MATRIX_TILES, file, tiling=tiling)
        text += parts_text(tiling, tiling.tile.split, tiling.tile.bn // 32) if tiling.tile.fixup else ""
        if emulate:
            text += kernel_text(PLAIN_C, "copies.cl.mako", tiling=tiling)
        else:
            text += kernel_text(__package__, "exchange.cl")
        maps = encoded(tiling.maps, emulate)
        return text + kernel_text(__package__, "product.cl.mako", tiling=tiling, emulate=emulate, encoded=maps,
                                  maps_at=layout.maps, maps_each=MAP_BYTES, partial_at=layout.partial)  # fmt: skip

    def _product(self, context: Any) -> Launch:
        tiling, text = self.tiling, self.product_text()
        a, b = ("y", "x") if not tiling.data else ("workspace" if tiling.sources else tiling.source.name, "w")
        if tiling.data and not tiling.direct_weights and not self._layout.constant:
            b = "workspace"
        operands = [a, b, "workspace", *(["workspace"] if tiling.partial else written(tiling.problem))]
        program = build(context, text) if self._emulate else build_for_hopper(context, text)
        items = tiling.tile.items + (0 if self._emulate else 32)
        groups = tiling.groups(context.devices[0].max_compute_units)
        return Launch(program, "product", (groups * items,), (items,), operands, names=OPERANDS)
