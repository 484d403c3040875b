"""The plan of nvidia.tma: what must be laid out anew, and the product that the copy engine feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, kernel_text

from .. import SHARED
from ..hopper import build_for_hopper
from ..packed.launch import written
from ..packed.plan import NvidiaPlan
from ..packed.source import Source
from ..packed.tiling import Tiling
from ..parts import parts_text
from .fold import fold_launch
from .gather import w_launch, x_launch
from .maps import WORDS
from .tiling import MAPS, TmaTile, TmaTiling
from .turn import turn_launch


class TmaPlan(NvidiaPlan):
    """A Plan; see ``product.cl.mako``."""

    tiling: TmaTiling

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        self._unfolded = problem
        return TmaTiling.of(problem, TmaTile.of(config))

    def _key(self) -> str:
        return repr((self.tiling.tile.pixels, self.tiling.tile.taps, super()._key()))

    def _pack(self, context: Any, tensors: Sequence[tuple[str, Source | None]]) -> list[Launch]:
        """Nothing, but for weights of folded pixels and turned ones, and the operands of first layers."""
        at, problem, tiling = self._where.at, self._unfolded, self.tiling
        if tiling.tile.taps:
            launches = {"x": x_launch, "w": w_launch}
            return [launches[name](context, problem, tiling.tile.taps, at[name]) for name, _ in tensors]
        if not tensors:
            return []
        if tiling.turned_weights:
            return [turn_launch(context, problem, at["w"] // 4)]
        return [fold_launch(context, problem, tiling.tile.pixels, at["w"] // 2)]

    def product_text(self) -> str:
        """The product's program."""
        tiling, where = self.tiling, self._where
        text = self._common + f"#define PARTIAL {int(tiling.partial)}\n#define PARTIAL_AT {where.partial // 4}L\n"
        text += f"#define PAIRS 0\n#define OCTETS 1\n#define B_AT {where.at.get('w', 0) // 2}L\n"
        text += f"#define A_AT {where.at.get('x', 0) // 2}L\n"
        encoded = [(0,) * WORDS] * 2 if self._emulate else [each.encode() for each in tiling.maps]
        text += tiling.instructions.text(self._emulate)
        for file in ("finish.cl",) if tiling.format.tf32 else ("narrow.cl.mako", "finish.cl"):
            text += kernel_text(SHARED, file, tiling=tiling)
        text += parts_text(tiling, tiling.tile.split, tiling.tile.bn // 32) if tiling.tile.fixup else ""
        text += kernel_text(__package__, "copies_emulated.cl.mako", tiling=tiling) if self._emulate else ""
        text += kernel_text(__package__, "exchange.cl.mako", emulate=self._emulate)
        return text + kernel_text(__package__, "product.cl.mako", tiling=tiling, emulate=self._emulate, encoded=encoded,
                                  maps_at=where.maps, maps_each=MAPS, partial_at=where.partial)  # fmt: skip

    def _product(self, context: Any) -> Launch:
        tiling, text = self.tiling, self.product_text()
        t = tiling.tile
        a, b = ("y", "x") if not tiling.data else ("workspace" if tiling.sources else tiling.source.name, "w")
        if tiling.data and not tiling.direct_weights and not self._where.constant:
            b = "workspace"
        given = [a, b, "workspace"]
        given += ["workspace"] if tiling.partial else written(tiling.problem)
        program = build(context, text) if self._emulate else build_for_hopper(context, text)
        items = t.items if self._emulate else t.items + 32
        groups = tiling.groups(context.devices[0].max_compute_units)
        return Launch(program, "product", (groups * items,), (items,), given, names=OPERANDS)
