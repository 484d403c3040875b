"""TiledPlan: packing, the tiled product and the sum of its parts, as launches over the problem's buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, StepPlan, build, kernel_text

from .product import Product
from .text import product_text
from .tile import Tile

_ALIGN = 1024  # bytes: no device asks more of a sub-buffer


def packed_bytes(product: Product) -> int:
    """Bytes that the packed weights take of the workspace."""
    return 0 if product.problem.constant_weights else -(-product.packed_size // _ALIGN) * _ALIGN


class TiledPlan(StepPlan):
    """See ``product.cl.mako`` for what the launches compute."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        product = self._product = Product(problem, Tile.of(config))
        self._pack_bytes = packed_bytes(product)
        common = problem.macros() + f"#define OUT_INDEX {product.out_index}\n"
        common += f"#define PARTIAL_AT {self._pack_bytes // product.accsize}L\n"
        packers = [self._pack_launch(context, common)] if product.packed_size else []
        steps = [] if problem.constant_weights else list(packers)
        steps.append(self._product_launch(context, common))
        if product.partial:
            steps.append(self._reduce_launch(context, common))
        packed_size = product.packed_size if problem.constant_weights else 0
        super().__init__(self._pack_bytes + product.partial_size, steps, packed_size, packers, self._pack_key())

    def _pack_key(self) -> str:
        product, tile = self._product, self._product.tile
        problem = product.problem
        names = ("id", "ih", "iw", "sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw")
        # Packed slices depend on the phases' taps alone, but equal numbers are an easy proof of equal taps.
        places = () if problem.direction == "fwd" else tuple(getattr(problem, name) for name in names)
        return repr(("tiled", problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g, places,
                     tile.bm, tile.bk, tile.walk))  # fmt: skip

    def _pack_launch(self, context: Any, common: str) -> Launch:
        product, geo = self._product, self._product.geometry
        program = build(context, common + kernel_text(__package__, "pack.cl.mako", p=product))
        rows, local = product.m_tiles * product.tile.bm, (32, 4, 1)
        size = (-(-rows // 32) * 32, -(-product.c_padded // 4) * 4, geo.groups)
        return Launch(program, "pack", size, local, "w workspace", names=OPERANDS)

    def _product_launch(self, context: Any, common: str) -> Launch:
        product, problem = self._product, self._product.problem
        text = common + f"#define PARTIAL {int(product.partial)}\n" + kernel_text(__package__, "output.cl")
        program = build(context, text + product_text(product))
        if product.data:
            source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
            given = ["workspace" if self._pack_bytes else "w", source, "workspace" if product.partial else written]
        else:
            given = ["y", "x", "workspace"]
        given += self._extras() if not product.partial else []
        items = product.tile.items
        return Launch(program, "product", (product.work_groups * items,), (items,), given, names=OPERANDS)

    def _reduce_launch(self, context: Any, common: str) -> Launch:
        product, problem = self._product, self._product.problem
        taps = problem.kd * problem.kh * problem.kw
        nhwc = problem.layout == "nhwc"
        shape = problem.out_shape
        inner = 1 if nhwc else product.out_size // (shape[0] * shape[1])
        transposed = not product.data and not product.flat and not nhwc and taps > 1
        text = common + "#define PARTIAL 0\n"
        text += f"#define SIZE {product.out_size}\n#define PARTS {product.split}\n#define WEIGHTS {int(transposed)}\n"
        text += f"#define INNER {inner}\n#define CHANNELS {problem.channels_out}\n#define TAPS {taps}\n"
        program = build(context, text + kernel_text(__package__, "output.cl") + kernel_text(__package__, "reduce.cl"))
        given = ["workspace", problem.written, *self._extras()]
        return Launch(program, "reduce", (-(-product.out_size // 128) * 128,), (128,), given, names=OPERANDS)

    def _extras(self) -> list[str]:
        problem = self._product.problem
        return [name for name in ("bias", "residual") if getattr(problem, name)]
