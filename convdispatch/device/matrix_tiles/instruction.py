"""Describes a tile instruction: c (m x n, float32) += a (m x k) b (k x n) of 16-bit numbers, spread over lanes.

The description is all that the product's kernel knows of a vendor's matrix cores: the instruction's shape, the number
of lanes that execute it together, and the elements of a, b and c that each lane holds. ``line`` is a row of a or a
column of b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Fragment:
    """The numbers of a or b that a lane holds, in runs of neighbours along k.

    A lane's numbers begin at (``line``, ``k``), OpenCL expressions of ``lane``; ``runs`` are the (line, k) offsets of
    each run's first number from there.
    """

    line: str
    k: str
    runs: tuple[tuple[int, int], ...]
    run: int
    """The length of a run: 1, 2, 4 or 8 numbers. Both k and the offsets along k are multiples of it."""

    @property
    def numbers(self) -> int:
        """16-bit numbers that a lane holds."""
        return len(self.runs) * self.run


@dataclass(frozen=True)
class TileInstruction:
    """The shape of an instruction, its lanes, and the elements that each lane holds."""

    m: int
    n: int
    k: int
    lanes: int
    """Work items of a warp (wave, sub-group)."""
    row: str
    """OpenCL expression of ``lane``: the row of c at which a lane's sums begin."""
    column: str
    rows: tuple[int, ...]
    """A lane's rows of c, as offsets from ``row``, in order; the lane holds ``width`` neighbouring columns of each."""
    width: int = 1
    warps: int = 1
    """Warps that execute the instruction together."""
    a: Fragment | None = None
    """The lanes' part of a; None if the product's text loads the operands itself (by ``ldmatrix``, or not at all)."""
    b: Fragment | None = None
    loaded_columns: int = 0
    """Columns of b that are loaded at once, if these are more than n; otherwise 0."""
    max_sums: int = 200
    """The most sums, each a float32 register, that a work item may hold."""
    local_limit: int = 65536
    """Bytes of local memory that a work group can have."""
    attributes: str = ""
    """Attributes of a kernel that calls the instruction."""

    @property
    def sums(self) -> int:
        """Sums that a lane holds."""
        return len(self.rows) * self.width

    @property
    def step_n(self) -> int:
        """Columns by which a warp's part of a tile grows."""
        return self.loaded_columns or self.n


class InstructionText(Protocol):
    """The OpenCL C functions around a vendor's instruction, for operands of one type."""

    def text(self, emulate: bool = False) -> str:
        """The functions that kernels call; with ``emulate`` their stand-ins in plain C."""

    def build(self, context: Any, text: str, emulate: bool = False) -> Any:
        """Compile a kernel that calls them. Raises BuildFailed."""
