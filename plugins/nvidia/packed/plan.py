"""NvidiaPlan: scales, packing, the product and the sum of its parts, as launches over the problem's buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, ConvProblem, Launch, StepPlan, build, define, kernel_text

from .. import SHARED
from ..divisors import divided_by
from ..geometry import along
from ..instructions import Instructions
from ..reduction import offset_type, reduction_macros
from .launch import ProductLaunch, common_macros, written
from .layout import Layout
from .source import Source
from .tile import Tile
from .tiling import Tiling


class NvidiaPlan(StepPlan):
    """A Plan; see ``product.cl.mako`` for what the launches compute. ``emulate`` builds plain C (tests)."""

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        return Tiling(problem, Tile.of(config))

    def __init__(
        self, context: Any, problem: ConvProblem, config: Mapping[str, Any], engine: str, *, emulate: bool = False
    ) -> None:
        tiling = self.tiling = self._tiling_of(problem, {**config, "engine": engine})
        where = self._where = Layout(tiling)
        self._common = common_macros(tiling)
        self._emulate = emulate
        pieces = [(source.name, source) for source in tiling.sources]
        weights = [("w", None)] if tiling.data and not tiling.direct_weights else []
        packers = self._pack(context, weights) if where.constant else []
        steps = self._pack(context, pieces if where.constant else pieces + weights)
        steps.append(self._product(context))
        if tiling.partial:
            steps.append(self._reduce(context))
        super().__init__(where.size, steps, where.packed_size, packers, self._key() if where.packed_size else None)

    def _key(self) -> str:
        problem, tile = self.tiling.problem, self.tiling.tile
        geometry, stacked = self.tiling.geometry, ()
        phases = tuple((phase.taps, phase.tap0) for phase in geometry.phases)
        if geometry.stacked:  # which tap of which phase a row holds follows from the whole geometry
            stacked = (geometry.stacked, geometry.phases[0].origin, *(along(problem, letter) for letter in "psd"))
        return repr(("nvidia", problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g, phases,
                     geometry.fold, geometry.tap_step, tile.bn, tile.bk, tile.format, tile.window,
                     stacked))  # fmt: skip

    def _pack(self, context: Any, tensors: Sequence[tuple[str, Source | None]]) -> list[Launch]:
        if not tensors:
            return []
        tiling, where = self.tiling, self._where
        pieces, given = [], []
        for name, source in tensors:
            if source is None:
                items = (
                    tiling.geometry.groups * tiling.n_tiles * tiling.tile.bn * tiling.weight_chunks * tiling.tap_parts
                )
            else:
                places = source.images * source.pixels
                if tiling.problem.layout == "nhwc":
                    items = places * source.groups * source.c8
                else:
                    items = -(-places * source.turn // 256) * 256 * source.groups * -(-source.c8 // source.turn)
            pieces.append((name, "weights" if source is None else source, -(-items // 256), where.at[name] // 2))
            given += [name, "workspace"]
        text = self._common + Instructions(tiling.format.type).text(self._emulate)
        text += kernel_text(SHARED, "narrow.cl.mako", tiling=tiling)
        text += kernel_text(SHARED, "shifted.cl") if where.scales else ""
        text += kernel_text(__package__, "pack.cl.mako", tiling=tiling, pieces=pieces, scales=where.scales)
        program = build(context, text)
        launches = []
        if where.scales:
            names = [name for name, _ in tensors]
            launches += where.scales.launches(context, names)
            given.append("w" if where.constant and "w" not in names else "workspace")
        groups = sum(piece[2] for piece in pieces)
        launches.append(Launch(program, "pack", (groups * 256,), (256,), given, names=OPERANDS))
        return launches

    def product_text(self) -> str:
        """The product's program."""
        return self._launch().text()

    def _launch(self) -> ProductLaunch:
        return ProductLaunch(self.tiling, self._where, self._given(), emulate=self._emulate)

    def _given(self) -> list[str]:
        """The product's A and B."""
        tiling = self.tiling
        packed = {source.name for source in tiling.sources}
        if not tiling.data:
            return [name if name not in packed else "workspace" for name in ("y", "x")]
        a = "workspace" if tiling.source.name in packed else tiling.source.name
        return [a, "w" if tiling.direct_weights or self._where.constant else "workspace"]

    def _product(self, context: Any) -> Launch:
        return self._launch().launch(context)

    def _reduce(self, context: Any) -> Launch:
        tiling, problem, geo = self.tiling, self.tiling.problem, self.tiling.geometry
        size, number = math.prod(problem.out_shape), offset_type(tiling.out_index)
        last, icg = problem.layout == "nhwc", problem.ic // problem.g
        if tiling.data:
            axes = 1 if last else math.prod(problem.out_shape[2:]), problem.channels_out
        else:
            taps = problem.kd * problem.kh * problem.kw
            axes = (icg, taps) if last else (taps, icg)
        text = reduction_macros(problem, tiling.out_index)
        text += define(PARTS=tiling.tile.split, WEIGHTS=0 if tiling.data else 1 + last, FOLD=int(geo.fold))
        text += kernel_text(__package__, "reduce.cl")
        sizes = [np.int64(self._where.partial // 4), number(size), number(tiling.partial_elements)]
        sizes += divided_by(*axes)
        sizes += [np.int32(0 if tiling.data else tiling.n), np.int32(geo.c8 * 8), *divided_by(problem.kw)]
        given = ["workspace", *written(problem), *sizes]
        return Launch(build(context, text), "reduce", (-(-size // 256) * 256,), (256,), given, names=OPERANDS)
