"""The product over packed operands as a launch: what plans of this plugin are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, kernel_text

from .. import SHARED
from ..hopper import build_for_hopper
from .layout import Layout
from .product import product_text
from .tiling import Tiling


def common_macros(tiling: Tiling) -> str:
    """The problem's macros, and the type of offsets in the output."""
    return tiling.problem.macros() + f"#define OUT_INDEX {tiling.out_index}\n"


def written(problem: ConvProblem) -> list[str]:
    """The operands of a kernel that ends with the epilogue: the output, bias and residual."""
    return [problem.written, *(name for name in ("bias", "residual") if getattr(problem, name))]


class ProductLaunch:
    """The launch of ``product.cl.mako`` for a tiling; ``given`` names the operands A and B."""

    def __init__(self, tiling: Tiling, where: Layout, given: Sequence[str], *, emulate: bool = False) -> None:
        self.tiling, self._where, self._given, self._emulate = tiling, where, list(given), emulate

    def text(self) -> str:
        """The program."""
        tiling, where = self.tiling, self._where
        places = (tiling.source.name, "w") if tiling.data else ("y", "x")
        text = (
            common_macros(tiling) + f"#define PARTIAL {int(tiling.partial)}\n#define PARTIAL_AT {where.partial // 4}L\n"
        )
        last = tiling.problem.layout == "nhwc" and not tiling.tile.stacked
        text += f"#define PAIRS {int(last and tiling.geometry.m % 2 == 0)}\n"
        text += f"#define OCTETS {int(last and tiling.geometry.m % 8 == 0)}\n"
        for letter, name in zip("AB", places, strict=True):
            text += f"#define {letter}_AT {where.at.get(name, 0) // 2}L\n"
            if where.scales:
                text += f"#define MARKS_{letter}_AT {where.marks_at(letter)}L\n"
        text += tiling.instructions.text(self._emulate)
        for file in ("narrow.cl.mako", "finish.cl", "sums.cl", "shifted.cl"):
            text += kernel_text(SHARED, file, tiling=tiling)
        return text + product_text(tiling)

    def launch(self, context: Any) -> Launch:
        """Compile it."""
        tiling, given = self.tiling, list(self._given)
        if tiling.format.scaled:
            given += given
        given += ["workspace"] if tiling.partial else written(tiling.problem)
        text, hopper = self.text(), tiling.tile.engine == "wgmma" and not self._emulate
        program = build_for_hopper(context, text) if hopper else build(context, text)
        items = tiling.tile.items
        return Launch(program, "product", (tiling.work_groups * items,), (items,), given, names=OPERANDS)
