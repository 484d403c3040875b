"""The plan of the tiled product: launches that pack weights, multiply, and add the parts of sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import (
    ConvProblem,
    Launch,
    StepPlan,
    define,
    epilogue_macros,
    kernel_text,
    merging,
    norm_macros,
    numbers_as_arguments,
    numbers_as_literals,
    storage_macros,
    summing,
)

from ..solving import launch
from .form import Form, numbers
from .product import Product
from .text import pack_text, product_text
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
        self._form, self._numbers = Form.of(product), numbers(product, self._pack_bytes // product.accsize)
        sums_at = self._pack_bytes + product.partial_size
        self._macros = storage_macros(problem.dtype) + epilogue_macros(problem)
        self._macros += norm_macros(problem) if problem.norm else ""
        self._macros += define(NHWC=int(problem.layout == "nhwc"), OUT_INDEX=product.out_index, PARTIAL_AT=0)
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

    def _launch(
        self, texts: tuple[str, str], name: str, size: tuple[int, ...], local: tuple[int, ...], operands: list[str]
    ) -> Launch:
        """``texts``: macros and functions, and the kernel, whose numbers are literals or arguments."""
        write = numbers_as_arguments if self._product.tile.general else numbers_as_literals
        text, arguments = write(texts[1], self._numbers)
        return launch(self._context, self._macros + texts[0] + text, name, size, local, [*operands, *arguments])

    def _pack_launch(self) -> Launch:
        product = self._product
        rows = product.m_tiles * product.tile.bm
        size = (-(-rows // 32) * 32, -(-product.c_padded // 4) * 4, product.geometry.groups)
        return self._launch(("", pack_text(self._form)), "pack", size, (32, 4, 1), ["w", "workspace"])

    def _product_launch(self) -> Launch:
        product, problem = self._product, self._product.problem
        functions = define(PARTIAL=int(product.partial)) + kernel_text(__package__, "output.cl")
        if product.data:
            source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
            operands = ["workspace" if self._pack_bytes else "w", source, "workspace" if product.partial else written]
        else:
            operands = ["y", "x", "workspace"]
        operands += [] if product.partial else self._extras
        operands += (["norm"] if product.norm else []) + (["workspace"] if product.sums else [])
        items = product.tile.items
        texts = functions, product_text(self._form)
        return self._launch(texts, "product", (product.work_groups * items,), (items,), operands)

    def _reduce_launch(self) -> Launch:
        product, problem = self._product, self._product.problem
        wide = int(product.out_index == "long")
        functions = define(PARTIAL=0, WEIGHTS=int(product.reordered), WIDE=wide) + kernel_text(__package__, "output.cl")
        operands = ["workspace", problem.written, *self._extras]
        texts = functions, kernel_text(__package__, "reduce.cl")
        return self._launch(texts, "reduce", (-(-product.out_size // 128) * 128,), (128,), operands)
