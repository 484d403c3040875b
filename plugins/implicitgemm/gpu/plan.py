"""The plan of the tiled product: launches that pack weights, multiply, and add the parts of sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem, Launch, StepPlan, define, kernel_text, merging, summing

from ..solving import launch
from .product import Product
from .text import product_text
from .tile import Tile

PACKED_ALIGNMENT = 1024
"""Packed weights are padded to a multiple of so many bytes; no device requires more alignment of a sub-buffer."""


def packed_bytes(product: Product) -> int:
    """Return the bytes of the workspace that packed weights take."""
    if product.problem.constant_weights:
        return 0
    return -(-product.packed_size // PACKED_ALIGNMENT) * PACKED_ALIGNMENT


class TiledPlan(StepPlan):
    """The plan of one tiled product; ``product.cl.mako`` explains the kernel."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        product = self._product = Product(problem, Tile.of(config))
        self._context, self._pack_bytes = context, packed_bytes(product)
        self._extras = list(problem.epilogue_operands)
        partial_at = f"{self._pack_bytes // product.accsize}L"
        sums_at = self._pack_bytes + product.partial_size
        self._macros = problem.macros() + define(OUT_INDEX=product.out_index, PARTIAL_AT=partial_at)
        self._macros += define(SUMS_AT=f"{sums_at // product.accsize}L") if product.sums else ""
        packers = [self._pack_launch()] if product.packed_size else []
        steps = [*([] if problem.constant_weights else packers), self._product_launch()]
        steps += [self._reduce_launch()] if product.partial else []
        if product.sums:
            steps += merging(context, problem, product.sums_parts, sums_at)
        elif problem.sums:
            steps += summing(context, problem, sums_at)
        packed_size = product.packed_size if problem.constant_weights else 0
        super().__init__(sums_at + product.sums_size, steps, packed_size, packers, self._pack_key())

    def _pack_key(self) -> str:
        product, tile = self._product, self._product.tile
        problem = product.problem
        names = ("id", "ih", "iw", "sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw")
        # Packed slices depend only on the taps of the phases; the key has the numbers that determine them, because
        # these are easy to compare.
        geometry = () if problem.direction == "fwd" else tuple(getattr(problem, name) for name in names)
        return repr(("tiled", problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g, geometry,
                     tile.bm, tile.bk, tile.walk))  # fmt: skip

    def _launch(self, text: str, name: str, size: tuple[int, ...], local: tuple[int, ...], names: list[str]) -> Launch:
        return launch(self._context, self._macros + text, name, size, local, names)

    def _pack_launch(self) -> Launch:
        product = self._product
        rows = product.m_tiles * product.tile.bm
        size = (-(-rows // 32) * 32, -(-product.c_padded // 4) * 4, product.geometry.groups)
        text = kernel_text(__package__, "pack.cl.mako", p=product)
        return self._launch(text, "pack", size, (32, 4, 1), ["w", "workspace"])

    def _product_launch(self) -> Launch:
        product, problem = self._product, self._product.problem
        text = define(PARTIAL=int(product.partial)) + kernel_text(__package__, "output.cl") + product_text(product)
        if product.data:
            source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
            operands = ["workspace" if self._pack_bytes else "w", source, "workspace" if product.partial else written]
        else:
            operands = ["y", "x", "workspace"]
        operands += [] if product.partial else self._extras
        operands += (["norm"] if product.norm else []) + (["workspace"] if product.sums else [])
        items = product.tile.items
        return self._launch(text, "product", (product.work_groups * items,), (items,), operands)

    def _reduce_launch(self) -> Launch:
        product, problem = self._product, self._product.problem
        taps, nhwc, shape = product.geometry.volume, problem.layout == "nhwc", problem.out_shape
        inner = 1 if nhwc else product.out_size // (shape[0] * shape[1])
        transposed = not product.data and not product.flat and not nhwc and taps > 1
        text = define(PARTIAL=0, SIZE=product.out_size, PARTS=product.split, WEIGHTS=int(transposed), INNER=inner)
        text += define(CHANNELS=problem.channels_out, TAPS=taps)
        text += kernel_text(__package__, "output.cl") + kernel_text(__package__, "reduce.cl")
        operands = ["workspace", problem.written, *self._extras]
        return self._launch(text, "reduce", (-(-product.out_size // 128) * 128,), (128,), operands)
