"""Describes a tile instruction: c (m x n, float32) += a (m x k) b (k x n) of 16-bit numbers, spread over lanes.

The description is all that the product's kernel knows of a vendor's matrix cores: the instruction's shape, the number
of lanes that execute it together, and the elements of a, b and c that each lane holds. ``line`` is a row of a or a
column of b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ...api.problem import ConvProblem


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


@dataclass(frozen=True)
class Format:
    """Planes of a 16-bit type, and which pairs are multiplied: (plane of A, plane of B), small products first.

    A value is the sum of its planes. Two planes and three products (Markidis et al. 2018; Ootomo and Yokota 2022) keep
    the leading parts of the product; the product of the two small planes is left out.

    | format | planes | significant bits | products | range |
    |---|---|---|---|---|
    | ``native`` | the 16-bit value itself, or a float32 read as TF32 (``tf32``) | 11 or 8 | 1 | the dtype's |
    | ``half1`` | float16 | 11 | 1 | 2^39 below a row's largest value |
    | ``half2`` | float16 + float16 | 22 | 3 | as above |
    | ``bfloat2`` | bfloat16 + bfloat16 | 16 | 3 | float32's |
    | ``bfloat3`` | three bfloat16 | 24 | 6 | float32's |

    ``half*`` planes hold the value times powers of two of its row, its column and its summed index (``scales.py``),
    which bring a row's (column's) largest finite magnitude to 2^14. A value that is smaller by s bits keeps all its
    bits up to s = 17, and loses one more bit for each further bit of s.
    """

    name: str
    bfloat: bool
    products: tuple[tuple[int, int], ...]
    planes: int
    scaled: bool = False
    """Whether values are scaled by powers of two first."""
    float32_accurate: bool = True
    """Whether sums are moved to float32 registers often: tensor cores round them toward zero."""
    tf32: bool = False
    """Whether the plane is the float32 number itself, of which tensor cores read TF32's bits."""

    @property
    def type(self) -> str:
        """PTX's name of the type of the planes."""
        return "tf32" if self.tf32 else "bf16" if self.bfloat else "f16"


_ONE_PLANE = ((0, 0),)  # the product of single planes
_TWO_PLANES = ((1, 0), (0, 1), (0, 0))  # the products of two planes, without that of the two small planes
FORMATS = {
    "float16": Format("native", False, _ONE_PLANE, 1, float32_accurate=False),
    "bfloat16": Format("native", True, _ONE_PLANE, 1, float32_accurate=False),
    "tf32": Format("native", False, _ONE_PLANE, 1, float32_accurate=False, tf32=True),
    "half1": Format("half1", False, _ONE_PLANE, 1, scaled=True, float32_accurate=False),
    "half2": Format("half2", False, _TWO_PLANES, 2, scaled=True),
    "bfloat2": Format("bfloat2", True, _TWO_PLANES, 2),
    "bfloat3": Format("bfloat3", True, ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)), 3),
}
_FOR_MATH = {
    "float32": ("bfloat2", "half2", "bfloat3"),
    "ieee": ("half2", "bfloat3"),
    "tf32": ("half1", "bfloat2"),
    "fast": ("half1", "bfloat2"),
}


def formats(problem: ConvProblem) -> tuple[str, ...]:
    """Names of the formats that reach the accuracy of the problem's ``math``, the default first.

    For ``"float32"`` the default is ``bfloat2``, whose range is float32's, so that it needs no scales.
    """
    if problem.dtype == "float32":
        return _FOR_MATH.get(problem.math, ())
    return (problem.dtype,)
