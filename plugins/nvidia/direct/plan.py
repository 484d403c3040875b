"""The plan of nvidia.direct: launches of the product and of the sum of its parts, on the problem's buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, StepPlan, build, define, kernel_text
from convdispatch.api.matrix import MATRIX_TILES, Parts, parts_text, reduction_launch, written

from ..instructions import Instructions
from .tiling import DirectTile, DirectTiling


@dataclass(unsafe_hash=True)
class Copies:
    """How work items copy an operand's tile to local memory, for the templates."""

    tiling: DirectTiling
    number: int
    """Index of the operand: 0 is A, 1 is B."""

    def __post_init__(self) -> None:
        tile, number = self.tiling.tile, self.number
        self.operand, self.letter = self.tiling.operands[number], "ab"[number]
        # width: float32 numbers per copy; pitch: float32 numbers from line to line in local memory.
        self.width, self.pitch = self.operand.width, self.tiling.pitch[number]
        self.extent, self.origin = self.tiling.extent[number], ("m0", "n0")[number]
        # ragged: whether the last tile has rows beyond the operand's last row, which are filled with zeros. If all work
        # groups copied the last row instead, they would wait for one cache line.
        self.ragged = self.operand.row.size % self.extent > 0
        # How copies are divided: work items along a line, rows per work item, the stride between its rows, the stride
        # between its steps along k, and the number of these steps.
        if self.operand.along_k:
            self.across = tile.bk // self.width
            self.rows, self.row_step = -(-self.extent * self.across // tile.items), tile.items // self.across
            self.k_step, self.k_steps = 0, 1
        else:
            self.across = min(self.extent // self.width, tile.items)
            self.rows, self.row_step = self.extent // self.width // self.across, self.across * self.width
            self.k_step = tile.items // self.across
            self.k_steps = -(-tile.bk // self.k_step)

    def guard(self, i: int, j: int) -> str:
        """The OpenCL condition before the copy of row step i and k step j, if some work items do not copy there."""
        if self.operand.along_k and (i + 1) * self.row_step > self.extent:
            return f"if ({self.letter}_row + {i * self.row_step} < {self.extent}) "
        if not self.operand.along_k and (j + 1) * self.k_step > self.tiling.tile.bk:
            return f"if ({self.letter}_k + {j * self.k_step} < {self.tiling.tile.bk}) "
        return ""

    def to(self, i: int, j: int) -> int:
        """Bytes from the work item's first number to that of row step i and k step j."""
        row_stride, k_stride = (self.pitch, 1) if self.operand.along_k else (1, self.pitch)
        return 4 * (i * self.row_step * row_stride + j * self.k_step * k_stride + self.tiling.floats[0] * self.number)


def product_text(tiling: DirectTiling, emulate: bool) -> str:
    """The text of the kernel ``direct`` for a tiling, without the functions that it calls."""
    t, p, width = tiling.tile, tiling.problem, tiling.out_width
    across = min(t.bn // width, t.items)
    values: dict[str, Any] = {
        "tiling": tiling, "t": t, "p": p, "both": [Copies(tiling, 0), Copies(tiling, 1)],
        "unroll": "" if emulate else "#pragma unroll",
        "exact": t.products == 3, "separate": t.flush_every > 0, "sums": t.frag_m * t.frag_n * 4,
        "distance": t.stages - 1, "stage_bytes": tiling.stage * 4,
        "order": ["m_tile", "n_tile"] if tiling.data and not tiling.nhwc else ["n_tile", "m_tile"],
        "tiles": {"m_tile": tiling.m_tiles, "n_tile": tiling.n_tiles},
        "width": width, "run": "float" if width == 1 else f"float{width}", "pitch_out": t.bn + 8,
        "across": across, "down": t.items // across, "rows_at_once": 4 if p.residual and not tiling.gaps else 1,
        "row": tiling.target.row, "column": tiling.target.k, "tile_sums": t.bm * t.bn // 4,
    }  # fmt: skip
    return kernel_text(__package__, "product.cl.mako", **values)


class DirectPlan(StepPlan):
    """The plan of nvidia.direct; ``product.cl.mako`` explains the kernel. ``emulate``: tests build plain C."""

    def __init__(self, context: Any, problem: ConvProblem, config: Mapping[str, Any], *, emulate: bool = False) -> None:
        tiling, self._emulate = DirectTiling(problem, DirectTile.of(config)), emulate
        self.tiling, tile, outputs = tiling, tiling.tile, written(problem)
        self._partial = tile.split > 1 and not tile.fixup
        operands = [operand.name for operand in tiling.operands]
        operands += ["workspace"] if tile.split > 1 else []
        operands += [] if self._partial else outputs
        program, size = build(context, self.product_text()), (tiling.work_groups * tile.items,)
        steps = [Launch(program, "direct", size, (tile.items,), operands, names=OPERANDS)]
        if self._partial:
            parts = Parts(tile.split, tiling.partial_elements, tiling.out_index)
            steps.append(reduction_launch(context, problem, parts, outputs))
        super().__init__(tiling.partial_bytes, steps)

    def product_text(self) -> str:
        tiling, tile = self.tiling, self.tiling.tile
        groups = ("copies", "mma", "parts") if tile.fixup else ("copies", "mma")
        instructions = Instructions("bf16" if tile.depth == 16 else "tf32", groups)
        text = tiling.problem.macros() + define(OUT_INDEX=tiling.out_index, PARTIAL=int(self._partial), PARTIAL_AT="0L")
        text += (
            kernel_text(MATRIX_TILES, "finish.cl")
            + instructions.text(self._emulate)
            + kernel_text(MATRIX_TILES, "sums.cl")
        )
        text += parts_text(tiling, tile.split, tile.frag_m) if tile.fixup else ""
        text += kernel_text(__package__, "split.cl.mako", depth=tile.depth)
        return text + product_text(tiling, self._emulate)
