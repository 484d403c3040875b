"""The plan of nvidia.tma: launches that rewrite operands, and the product, whose operands TMA reads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convdispatch.api import (
    OPERANDS,
    ConvProblem,
    Launch,
    build,
    define,
    epilogue_macros,
    kernel_text,
    merging,
    norm_macros,
    normalising,
    numbers_as_arguments,
    numbers_as_literals,
    storage_macros,
)
from convdispatch.api.matrix import MATRIX_TILES, Source, written

from ..instructions import PLAIN_C, build_for_hopper
from ..packed.plan import NvidiaPlan
from ..packed.tiling import Tiling
from .maps import WORDS, encoded
from .rewriting import (
    fold_launch,
    gather_launch,
    transpose_launch,
    transposed_weights,
    turned_pixels,
    turned_weights,
)
from .tiling import TmaTile, TmaTiling, numbers


class TmaPlan(NvidiaPlan):
    """A plan whose product reads its operands by tensor maps; ``product.cl.mako`` explains the kernel."""

    tiling: TmaTiling

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> Tiling:
        self._unfolded = problem
        return TmaTiling.of(problem, TmaTile.of(config))

    def _key(self) -> str:
        tile = self.tiling.tile
        return repr((tile.pixels, tile.taps, tile.turned, super()._key()))

    def _pack(self, context: Any, tensors: Sequence[tuple[str, Source | None]]) -> list[Launch]:
        """Launches that rewrite weights or a first layer's operands, or normalise x."""
        return [self._rewriting(context, name) for name, _ in tensors]

    def _rewriting(self, context: Any, name: str) -> Launch:
        start, problem, tile = self._layout.at[name], self._unfolded, self.tiling.tile
        if tile.taps:
            return gather_launch(context, problem, name, tile.taps, start)
        if name != "w" and not tile.turned:
            return normalising(context, problem, start=start)
        if tile.turned or self.tiling.rewritten_weights:
            transposed = self.tiling.rewritten_weights
            matrices = transposed_weights(problem)
            if tile.turned:
                matrices = turned_weights(problem, transposed) if name == "w" else turned_pixels(problem, name, True)
            return transpose_launch(context, problem.itemsize, matrices, (name, "workspace"), (0, start))
        return fold_launch(context, problem, tile.pixels, start)

    def _result(self, context: Any) -> Launch:
        problem = self._unfolded
        matrices = turned_pixels(problem, problem.written, False)
        return transpose_launch(context, problem.itemsize, matrices, ("workspace", problem.written), (0, 0))

    def product_text(self) -> str:
        return self._program[0]

    @functools.cached_property
    def _program(self) -> tuple[str, list[Any]]:
        """The text of the product's program, and the launch's arguments beyond the operands."""
        tiling, emulate = self.tiling, self._emulate
        if emulate:  # whose copies are there at once
            tiling = TmaTiling(tiling.problem, dataclasses.replace(tiling.tile, stages=1))
        problem, in_place = tiling.problem, tiling.tile.norm_in_place
        text = storage_macros(problem.dtype) + epilogue_macros(problem)
        text += norm_macros(problem) if problem.masked or in_place else ""
        text += define(OUT_INDEX=tiling.out_index, PARTIAL=int(tiling.partial), PARTIAL_AT="0L", PAIRS=0, OCTETS=0)
        text += tiling.instructions.text(emulate)
        narrow = () if tiling.format.tf32 else ("narrow.cl.mako",)
        for file in (*narrow, "finish.cl"):
            text += kernel_text(MATRIX_TILES, file, tiling=tiling)
        text += kernel_text(MATRIX_TILES, "parts.cl.mako", blocks=tiling.tile.bn // 32) if tiling.tile.fixup else ""
        if emulate:
            text += kernel_text(PLAIN_C, "copies.cl.mako", tiling=tiling)
        if in_place:
            relu_pair = tiling.narrow_relu_pair if tiling.problem.norm_activation == "relu" else ""
            text += kernel_text(MATRIX_TILES, "normed_chunk.cl.mako", tiling=tiling, relu_pair=relu_pair)
        # Words of the maps that are 0 are compiled.
        words = {f"MAP{i}": np.uint64(word) for i, word in enumerate(sum(encoded(tiling.maps, emulate), ())) if word}
        names = tuple(f"MAP{i}" if f"MAP{i}" in words else "0" for i in range(len(tiling.maps) * WORDS))
        product = kernel_text(__package__, "product.cl.mako", tiling=tiling, emulate=emulate, words=names)
        named = numbers(tiling, self._layout) | words
        if tiling.short_of_registers:
            return text + numbers_as_literals(product, named), []
        product, arguments = numbers_as_arguments(product, named)
        return text + product, arguments

    def _sums(self, context: Any) -> list[Launch]:
        if not self.tiling.summed:
            return super()._sums(context)
        rows = self.tiling.sums_rows(context.devices[0].max_compute_units)
        return merging(context, self.tiling.problem, rows, self._layout.sums)

    def _product(self, context: Any) -> Launch:
        tiling, text, arguments = self.tiling, self.product_text(), self._program[1]
        x, y = ("workspace" if name in [each.name for each in tiling.sources] else name for name in "xy")
        a, b = {"fwd": (x, "w"), "bwd_data": (y, "w"), "bwd_weights": (y, x)}[tiling.problem.direction]
        if tiling.data and not tiling.direct_weights and not self._layout.constant:
            b = "workspace"
        result = written(tiling.problem)
        if tiling.result_bytes:
            result[0] = "workspace"
        operands = [a, b, "workspace", *(["workspace"] if tiling.partial else result)]
        operands += (["workspace"] if tiling.summed else []) + (["norm"] if tiling.tile.norm_in_place else [])
        program = build(context, text) if self._emulate else build_for_hopper(context, text)
        items = tiling.tile.items + (0 if self._emulate else 32)
        groups = tiling.groups(context.devices[0].max_compute_units)
        return Launch(program, "product", (groups * items,), (items,), [*operands, *arguments], names=OPERANDS)
