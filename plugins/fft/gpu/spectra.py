"""Passes between tensors and spectra: the sizes and the code that their kernels' templates print."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..transforms import codelet, half
from .geometry import Line, Planes, Span, Transform

# Every multiply-add is written, and the compiler adds none of its own: which products it fuses depends on the number of
# tiles, and so an image's last bits would depend on its batch.
_TYPES = """#pragma OPENCL FP_CONTRACT OFF
#define MULTIPLY_ADD(factor, a, b) fma(factor, a, b)
#define PAIR_(T) T##2
#define PAIR_OF(T) PAIR_(T)
#define PAIR PAIR_OF(ACC)"""


@dataclass(unsafe_hash=True)
class _Pass:
    """Base of the forward and the inverse transform: a work group transforms ``slots`` tiles of one row."""

    transform: Transform
    planes: Planes
    groups: int
    rows: int
    """Rows of a part of the matrix of spectra, per group of channels."""
    pitch: int
    """Slots (columns of the matrix of spectra) of a part, padding included."""
    slots: int
    wide: int
    """Most work items that a work group may have."""

    types = _TYPES

    def __post_init__(self) -> None:
        self.row_size, self.height = self.transform.rows.size, self.transform.height
        self.width = self._width()
        self.blocks = self.pitch // self.slots
        self.work_groups = self.blocks * self.rows * self.groups
        self.items = group_items(self.slots, self.width, self.height, self.wide)
        # With these pitches rows of adjacent slots, and adjacent columns, are in different banks of local memory.
        self.row_pitch = self.width | 1
        """Complex numbers from row to row of a half spectrum in local memory, an odd count."""
        self.slot_pitch = slot_pitch(self.slots, self.width, self.height)
        """Complex numbers from slot to slot in local memory."""
        self.stage_size = self.slots * self.slot_pitch
        self.frequency_stride = self.groups * self.rows * self.pitch
        """Complex numbers from one frequency to the next in memory."""

    def _width(self) -> int:
        raise NotImplementedError

    @property
    def whole_text(self) -> str:
        """OpenCL text of the condition that row ``f`` of the spectrum is stored in full."""
        edges = ["f != 0"] + ([f"f != {self.height - 1}"] if self.transform.columns.size % 2 == 0 else [])
        return " && ".join(edges)

    def first_frequency(self, f: str) -> str:
        """Return OpenCL text of the index of the first frequency in row ``f`` of the spectrum."""
        return f"({f} == 0 ? 0 : {half(self.row_size)} + ({f} - 1) * {self.row_size})"

    @property
    def _lines(self) -> tuple[tuple[str, Line], ...]:
        return ("row", self.planes.row), ("slot", self.planes.slot)

    @property
    def plane_offset_text(self) -> str:
        """OpenCL text of the tensor's offset of the plane with index (group, row, slot)."""
        terms = [
            f"(long)({name}{f' / {line.tiles}' if line.tiles > 1 else ''}) * {line.stride}"
            for name, line in self._lines
        ]
        if self.groups > 1:
            terms.append(f"(long)group * {self.planes.row.group + self.planes.slot.group}")
        return " + ".join(terms)

    @property
    def _tile(self) -> str:
        """OpenCL text of the tile's index in its image."""
        return next((f"{name} % {line.tiles}" for name, line in self._lines if line.tiles > 1), "0")

    @property
    def live_text(self) -> str:
        """OpenCL text of the condition that the row and the slot exist."""
        conditions = []
        if self.planes.row.total % self.rows:
            conditions.append(f"row < {self.planes.row.total}")
        if self.planes.slot.total % self.pitch:
            conditions.append(f"slot < {self.planes.slot.total}")
        return " && ".join(conditions + self._column_tests()) or "true"

    def _column_tests(self) -> list[str]:
        raise NotImplementedError


@dataclass(unsafe_hash=True)
class Forward(_Pass):
    """The forward transform, from tiles to spectra, of the data or (``other``) of the kernel or dy."""

    other: bool = False

    def __post_init__(self) -> None:
        columns, rows = self.transform.columns, self.transform.rows
        self.columns, self.rows_span = (columns.other, rows.other) if self.other else (columns.data, rows.data)
        """The elements that a tile reads along a column and along a row."""
        self.column_elements = range(-(-self.columns.given // self.columns.spread))
        """Indices of the elements in a column of the tile."""
        self.column_stride = self.planes.column_stride
        super().__post_init__()

    def _width(self) -> int:
        return -(-self.rows_span.given // self.rows_span.spread)

    @property
    def tile_texts(self) -> list[str]:
        """OpenCL statements that compute the tile's first pixel and move ``from`` there."""
        wide, tile = self.transform.rows.tiles, self._tile
        right = f"{self.rows_span.origin} + ({tile}) % {wide} * {self.rows_span.step} + e"
        down = f"{self.columns.origin} + ({tile}) / {wide} * {self.columns.step}"
        return [
            f"const int px = {right if self.rows_span.step else 'e'}, py = {down if self.columns.step else '0'};",
            f"from += (long)px * {self.planes.row_stride} + (long)py * {self.planes.column_stride};",
        ]

    def _column_tests(self) -> list[str]:
        return [] if self.rows_span.inside else [f"px >= 0 && px < {self.rows_span.length}"]

    def column_guard(self, k: int) -> str:
        """Return OpenCL text of the condition that element ``k`` of the column is read."""
        return "live" if self.columns.inside else f"live && py + {k} >= 0 && py + {k} < {self.columns.length}"

    @property
    def column_code(self) -> str:
        """OpenCL text that transforms the real column ``v`` to half a spectrum at ``to``."""
        code = codelet(self.transform.columns.size, "real_forward", given=self.columns.given)
        nyquist = self.transform.columns.size // 2 if self.transform.columns.size % 2 == 0 else 0
        store = _pair_store(lambda k: f"to[{k * self.row_pitch}]", (0, nyquist))
        return code.text(_with_zeros(self.columns), store, real="ACC", indent="    ")

    @property
    def row_code(self) -> str:
        """OpenCL text that transforms the complex row ``v`` to its spectrum at ``to``."""
        code = codelet(self.row_size, "forward", given=self.rows_span.given)

        def place(k: int) -> str:
            return ("if (whole) " if 2 * k > self.row_size else "") + f"to[{k * self.frequency_stride}L]"

        store = _pair_store(place, power=1.0 if self.other else self.transform.prescales[0])
        return code.text(_components(_with_zeros(self.rows_span)), store, real="ACC", indent="    ")


class Inverse(_Pass):
    """The inverse transform, from spectra to tiles."""

    def _width(self) -> int:
        return len(self.transform.rows.wanted)

    @property
    def tile_texts(self) -> list[str]:
        """OpenCL texts of the first pixel of the tile's results."""
        columns, rows = self.transform.columns, self.transform.rows
        right = f"({self._tile}) % {rows.tiles} * {rows.out_step} + e"
        down = f"({self._tile}) / {rows.tiles} * {columns.out_step}"
        return [
            f"const int px = {right if rows.out_step else 'e'};",
            f"const int py = {down if columns.out_step else '0'};",
        ]

    def _column_tests(self) -> list[str]:
        axis = self.transform.rows
        return [f"px < {axis.out_length}"] if axis.tiles * axis.out_step > axis.out_length else []

    @property
    def channel_text(self) -> str:
        """OpenCL text of the written tensor's channel, for the bias."""
        return next((f"group * {line.total} + {name}" for name, line in self._lines if line.channels), "0")

    @property
    def row_code(self) -> str:
        """OpenCL text that transforms the complex row ``v`` back and writes the required points to ``to``."""
        wanted = self.transform.rows.wanted
        code = codelet(self.row_size, "inverse", wanted=wanted)
        index_of = {k: j for j, k in enumerate(wanted)}
        store = _pair_store(lambda k: f"to[{index_of[k]}]", power=self.transform.prescales[1])
        return code.text(_components(_variable), store, real="ACC", indent="    ")

    @property
    def column_code(self) -> str:
        """OpenCL text that transforms half a spectrum ``v`` back to the required pixels of the column."""
        axis = self.transform.columns
        code = codelet(axis.size, "real_inverse", wanted=axis.wanted)
        index_of = {str(k): j for j, k in enumerate(axis.wanted)}
        ragged = axis.tiles * axis.out_step > axis.out_length

        def store(name: str, value: str) -> str:
            j = index_of[name]
            guard = "live" + (f" && py + {j} < {axis.out_length}" if ragged else "")
            address = f"to + (long)px * {self.planes.row_stride} + (long)(py + {j}) * {self.planes.column_stride}"
            return f"if ({guard}) put(OUT_ARGS, ({value}) * SCALE, {address}, channel);"

        return code.text(_components(_variable), store, real="ACC", indent="    ")

    @property
    def scale(self) -> float:
        """The factor by which the results are multiplied."""
        columns = codelet(self.transform.columns.size, "real_inverse", wanted=self.transform.columns.wanted)
        return 1.0 / (columns.gain * self.row_size * math.prod(self.transform.prescales))


def slots_of(width: int, height: int, total: int, local: int) -> int:
    """Tiles per work group, such that it has at most 256 items and ``local`` bytes; no more than ``total`` needs."""
    slots = 1
    while slots < 32 and slots < total and 2 * slots * max(width, height) <= 256:
        if 2 * slots * slot_pitch(2 * slots, width, height) * 8 > local:
            break
        slots *= 2
    return slots


def slot_pitch(slots: int, width: int, height: int) -> int:
    """Complex numbers from slot to slot in local memory: 16 consecutive (slot, row) are in the 16 pairs of banks."""
    row = width | 1
    remainder = row * (16 // min(slots, 16)) % 16 if slots < 16 else 1
    return height * row + (remainder - height * row) % 16


def group_items(slots: int, width: int, height: int, most: int) -> int:
    """Work items per group: one per column, then one per row of the spectrum; at most ``most``."""
    return min(most, -(-slots * max(width, height) // 32) * 32)


def _variable(k: int) -> str:
    return f"v{k}"


def _with_zeros(span: Span) -> Callable:
    """Return a reader of a tile's elements, with 0 at the points between the taps of a dilated kernel."""

    def read(name: str | int) -> str:
        k = int(name)
        return "(ACC)0" if k % span.spread else f"v{k}"

    return read


def _components(read: Callable) -> Callable:
    """Return a reader of ``r<k>`` and ``i<k>``, the components of the pair that ``read(k)`` names."""

    def part(name: str) -> str:
        value = read(int(name[1:]))
        return value if value == "(ACC)0" else f"{value}.s{'ri'.index(name[0])}"

    return part


def _pair_store(element: Callable[[int], str], lone: tuple[int, ...] = (), power: float = 1.0) -> Callable:
    """Return a writer of pairs times ``power``: a pair is stored with its imaginary part, a ``lone`` one with 0."""

    def store(name: str, value: str) -> str:
        part, k = name[0], int(name[1:])
        value = value if power == 1 else f"{power!r}f * ({value})"
        if part == "i":
            return f"{element(k)} = (PAIR)(out{k}, {value});"
        return f"{element(k)} = (PAIR)({value}, 0);" if k in lone else f"const ACC out{k} = {value};"

    return store
