"""The product's text: the numbers that ``product.cl.mako`` and its parts are rendered with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convdispatch.api import kernel_text

from .tiling import DirectTiling, Operand


@dataclass(frozen=True)
class Copies:
    """Who copies what of an operand's tile: the work item's first number, its step, and how many."""

    tiling: DirectTiling
    number: int
    """0: A, 1: B."""

    @property
    def operand(self) -> Operand:
        """What is copied."""
        return self.tiling.operands[self.number]

    @property
    def letter(self) -> str:
        """The operand's name in the text."""
        return "ab"[self.number]

    @property
    def width(self) -> int:
        """Numbers of a copy."""
        return self.operand.width

    @property
    def pitch(self) -> int:
        """Numbers from line to line in local memory."""
        return self.tiling.pitch(self.number)

    @property
    def extent(self) -> int:
        """Rows of the tile."""
        return self.tiling.extent(self.number)

    @property
    def ragged(self) -> bool:
        """Whether the last tile has rows beyond the last, which are zeros: a copy of the last row in their place, by
        all work groups, would wait for one line of the cache."""
        return self.operand.row.size % self.extent > 0

    @property
    def origin(self) -> str:
        """The tile's first row, as text."""
        return ("m0", "n0")[self.number]

    @property
    def across(self) -> int:
        """Work items along a line."""
        if self.operand.along_k:
            return self.tiling.tile.bk // self.width
        return min(self.extent // self.width, self.tiling.tile.items)

    @property
    def rows(self) -> int:
        """Rows that a work item copies."""
        if self.operand.along_k:
            return -(-self.extent * self.across // self.tiling.tile.items)
        return self.extent // self.width // self.across

    @property
    def row_step(self) -> int:
        """From a work item's row to its next."""
        return self.tiling.tile.items // self.across if self.operand.along_k else self.across * self.width

    @property
    def k_step(self) -> int:
        """From a work item's k to its next."""
        return 0 if self.operand.along_k else self.tiling.tile.items // self.across

    @property
    def k_steps(self) -> int:
        """Steps along k."""
        return 1 if self.operand.along_k else -(-self.tiling.tile.bk // self.k_step)

    def guard(self, i: int, j: int) -> str:
        """Text before the copy of row step i and k step j, where some work items have none."""
        if self.operand.along_k and (i + 1) * self.row_step > self.extent:
            return f"if ({self.letter}_row + {i * self.row_step} < {self.extent}) "
        if not self.operand.along_k and (j + 1) * self.k_step > self.tiling.tile.bk:
            return f"if ({self.letter}_k + {j * self.k_step} < {self.tiling.tile.bk}) "
        return ""

    def to(self, i: int, j: int) -> int:
        """Bytes from the work item's first number to that of row step i and k step j."""
        row, k = (self.pitch, 1) if self.operand.along_k else (1, self.pitch)
        at = 0 if self.number == 0 else self.tiling.floats(0) * 4
        return 4 * (i * self.row_step * row + j * self.k_step * k) + at


def product_text(tiling: DirectTiling, emulate: bool) -> str:
    """The kernel ``direct`` for a tiling; what it calls comes before it (``plan.py``)."""
    t, p, width = tiling.tile, tiling.problem, tiling.out_width
    across = min(t.bn // width, t.items)
    rows = 4 if p.residual and not tiling.gaps else 1
    values: dict[str, Any] = {
        "tiling": tiling, "t": t, "p": p, "both": [Copies(tiling, 0), Copies(tiling, 1)],
        "unroll": "" if emulate else "#pragma unroll",
        "exact": t.products == 3, "apart": t.flush_every > 0, "sums": t.frag_m * t.frag_n * 4,
        "distance": t.stages - 1, "stage_bytes": tiling.stage * 4,
        "order": ["m_tile", "n_tile"] if tiling.data and not tiling.nhwc else ["n_tile", "m_tile"],
        "tiles": {"m_tile": tiling.m_tiles, "n_tile": tiling.n_tiles},
        "width": width, "run": "float" if width == 1 else f"float{width}", "pitch_out": t.bn + 8,
        "across": across, "down": t.items // across, "at_once": rows,
        "row": tiling.target.row, "column": tiling.target.k,
        "tile_sums": t.bm * t.bn // 4,
    }  # fmt: skip
    return kernel_text(__package__, "product.cl.mako", **values)
