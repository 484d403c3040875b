"""Which lines of its operands the CPU's product asks for before it needs them.

Operands beyond second-level caches come late where a processor sees no streams: rows of a kilobyte end, and lines lie
whole pages apart, before it asks ahead by itself.
"""

from __future__ import annotations

from ...api.cpu import LINE
from .layout import direct
from .spec import GemmSpec

_HELD = 1 << 20
"""Bytes that a second-level cache holds."""
_SHORT = 256
"""Bytes of a short row."""
_FAR, _PANEL = 1 << 16, 1 << 13
"""Elements of a batch's packed operand whose lines are asked for ahead, and of B's panel, which a first-level cache
keeps if it is smaller. 1x1 layers of as many weights took 0.81 to 0.98 of the time, smaller ones 0.96 to 1.04; a matrix
times one vector, which reads nothing twice, 1.08. Where several tiles read a panel they ask for the next one besides:
49 rows by 512x2048, 1024x2048 and 2048x512, with weights in memory, took 0.88, 0.86 and 0.95 of the time, 196 0.97."""


def far_rows(spec: GemmSpec, packed: bool, vectors: int) -> bool:
    """Whether a tile asks for the next tile's rows of A, which lie as they came. A tile of one vector loads as often as
    it multiplies: of rows of some lines it asks for none."""
    row = spec.k * spec.accumulator_size
    in_place = not packed and direct(spec, "a", 1) and spec.a.col.stride == 1
    return in_place and spec.m * row > _HELD and (vectors > 1 or row > _SHORT)


def far_steps(spec: GemmSpec) -> bool:
    """Whether a tile asks for columns of A some steps ahead: its rows lie side by side, columns lines apart."""
    apart = spec.a.row.stride == 1 and spec.a.col.stride * spec.accumulator_size >= LINE
    return not spec.a_packed and direct(spec, "a", 1) and apart and spec.m * spec.k * spec.accumulator_size > _HELD


def far_columns(spec: GemmSpec, lanes: int) -> bool:
    """Whether tiles ask for the next panel of B, whose rows lie as they came."""
    return not spec.b_packed and direct(spec, "b", lanes) and spec.k * spec.n * spec.accumulator_size > _HELD


def far_packed(spec: GemmSpec, columns: int) -> tuple[bool, bool]:
    """Whether a tile asks for lines of packed A, and of packed B in panels of so many columns."""
    far_b = spec.b_packed and spec.m > 1 and spec.k * columns > _PANEL and spec.n * spec.k > _FAR
    return spec.a_packed and spec.m * spec.k > _FAR, far_b
