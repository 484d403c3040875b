"""The packed panel form of an operand, and which operands are prefetched.

An operand is a matrix ``X[i, k]``: A's rows i by k, or B's columns i by k. Packed, it is cut into panels of ``width``
neighbouring i; a panel holds all k, and for each k its ``width`` elements side by side, in the accumulation type:

    packed[((batch * panels + i // width) * k_size + k) * width + i % width]

Batches that share memory (batch stride 0) share a packed copy. The lanes of the last panel beyond the operand's edge
must exist in memory but their values do not matter: they only reach elements of C that are never written. Packing
kernels here fill them with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...api.cpu import LINE
from ...api.dtypes import DTYPES
from .spec import Axis, GemmSpec

L2_BYTES = 1 << 20
"""Bytes that a second-level cache holds."""
SHORT_ROW_BYTES = 256
"""Bytes of a row of A below which a tile of one vector does not prefetch the row."""
FAR_ELEMENTS = 1 << 16
"""A packed operand with more elements in a batch is prefetched. 1x1 layers of as many weights took 0.81 to 0.98 of the
time, smaller ones 0.96 to 1.04; a matrix times one vector, which reads nothing twice, took 1.08."""
PANEL_ELEMENTS = 1 << 13
"""Packed B is prefetched if its panel has more elements, because a first-level cache holds a smaller panel. Several
tiles that read a panel also prefetch the next: 49 rows by 512x2048, 1024x2048 and 2048x512 took 0.88, 0.86, 0.95."""


@dataclass(frozen=True)
class PackedLayout:
    """Sizes and index formula of one operand's packed form; elements are float, or double for float64."""

    width: int
    """Neighbouring indices i (rows of A or columns of B) in one panel."""
    panels: int
    """Panels of the operand in one batch."""
    k: int
    batches: int
    """Number of distinct operand matrices: batches that share memory (batch stride 0) count once."""
    batch: Axis
    """Maps the product's batch index to the index of the distinct operand matrix."""
    itemsize: int

    @property
    def elements(self) -> int:
        """Elements of the whole packed operand, padding lanes included."""
        return self.batches * self.panels * self.k * self.width

    @property
    def size(self) -> int:
        """Bytes of the whole packed operand."""
        return self.elements * self.itemsize

    def index(self, batch, i, k):
        """Element index of ``X[i, k]`` of a batch: ints or NumPy arrays."""
        return ((self.batch.offset(batch) * self.panels + i // self.width) * self.k + k) * self.width + i % self.width


def packed_layout(spec: GemmSpec, config: Mapping[str, Any], operand: str) -> PackedLayout:
    """Return the layout of operand ``"a"`` or ``"b"`` of ``spec`` when it is packed for ``config``."""
    size = spec.m if operand == "a" else spec.n
    rows = (operand == "a") != bool(config.get("swap"))
    if config["kind"] == "cpu":
        width = config["mr"] if rows else config["nv"] * config["lanes"]
    else:
        width = config["bm"] if rows else config["bn"]
    batches, batch = distinct(getattr(spec, operand).batch.simplified(spec.batch), spec.batch)
    return PackedLayout(width, -(-size // width), spec.k, batches, batch, spec.accumulator_size)


def direct(spec: GemmSpec, letter: str, lanes: int) -> bool:
    """Whether the CPU's kernel can read an operand unpacked; ``spec`` is simplified and in the kernel's order."""
    if DTYPES[spec.dtype].widened:
        return False
    if letter == "a":
        return spec.a.col.plain
    return spec.b.row.plain and spec.b.col.plain and spec.b.col.stride == 1 and spec.n >= lanes


def distinct(axis: Axis, batch: int) -> tuple[int, Axis]:
    """Return the number of distinct operand matrices along a batch axis, and the map from batch index to matrix."""
    if axis.plain:
        return (batch, Axis(1)) if axis.stride else (1, Axis(0))
    outer_count = -(-batch // axis.inner)
    if axis.stride and axis.outer:
        return batch, Axis(1)
    if axis.stride:
        return axis.inner, Axis(1, inner=axis.inner, outer=0)
    return (outer_count, Axis(0, inner=axis.inner, outer=1)) if axis.outer else (1, Axis(0))


# --- prefetching: an operand larger than the second-level cache arrives late if the processor detects no stream -----


def far_rows(spec: GemmSpec, packed: bool, vectors: int) -> bool:
    """Whether a tile prefetches the next tile's rows of A, which are read in place. A tile of one vector prefetches no
    short rows, because it loads as often as it multiplies."""
    row = spec.k * spec.accumulator_size
    in_place = not packed and direct(spec, "a", 1) and spec.a.col.stride == 1
    return in_place and spec.m * row > L2_BYTES and (vectors > 1 or row > SHORT_ROW_BYTES)


def far_steps(spec: GemmSpec) -> bool:
    """Whether a tile prefetches columns of A some steps ahead: its rows are contiguous, columns are lines apart."""
    apart = spec.a.row.stride == 1 and spec.a.col.stride * spec.accumulator_size >= LINE
    return not spec.a_packed and direct(spec, "a", 1) and apart and spec.m * spec.k * spec.accumulator_size > L2_BYTES


def far_columns(spec: GemmSpec, lanes: int) -> bool:
    """Whether tiles prefetch the next panel of B, whose rows are read in place."""
    return not spec.b_packed and direct(spec, "b", lanes) and spec.k * spec.n * spec.accumulator_size > L2_BYTES


def far_packed(spec: GemmSpec, columns: int) -> tuple[bool, bool]:
    """Whether a tile prefetches lines of packed A, and of packed B in panels of ``columns`` columns."""
    far_b = spec.b_packed and spec.m > 1 and spec.k * columns > PANEL_ELEMENTS and spec.n * spec.k > FAR_ELEMENTS
    return spec.a_packed and spec.m * spec.k > FAR_ELEMENTS, far_b
