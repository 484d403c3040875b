"""StreamTiling: an Int8Tiling whose slices Hopper's copy engine brings; see ``stream.cl.mako``."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..hopper import LOCAL_LIMIT
from ..instructions import Instructions, Wgmma
from ..tma.maps import Im2col, Map, Tiled
from .inside import Inside, inside
from .tiling import Int8Tiling

__all__ = ["StreamTiling"]

_MAPS, _MOST_GROUPS = 256, 528
"""Bytes of a warp's two maps, and work groups that stay, at most."""
_NEAREST, _FARTHEST, _OFFSET, _STEP, _TAPS = -128, 127, 255, 8, 32
"""What an im2col map can say: its corners, its offsets and its steps; taps that a mask has."""


@dataclass(frozen=True)
class StreamTiling(Int8Tiling):
    """k = block of channels of tap after tap: slices lie in one tap, and the copy engine fills them with zeros."""

    @property
    def blocks(self) -> int:
        """Slices of a tap."""
        return -(-self.c // self.tile.bk)

    @property
    def slices(self) -> int:
        """Of a sum, as stages hold them."""
        return self.tap_slices

    @property
    def tap_slices(self) -> int:
        """Of a channel's weights, and of a sum."""
        return self.taps * self.blocks

    @property
    def parts(self) -> int:
        """Of a row of packed weights: taps."""
        return self.taps

    @property
    def part_k(self) -> int:
        """Weights of one."""
        return self.c

    @property
    def bars_at(self) -> int:
        """Bytes before the barriers."""
        return self.tile.stages * self.stage_bytes

    @property
    def numbers_at(self) -> int:
        """Bytes before the tile's offsets and multipliers."""
        return self.bars_at + 16 * self.tile.stages

    @property
    def tiles(self) -> int:
        """Of all work groups."""
        return self.m_tiles * self.n_tiles * self.problem.g

    @functools.cached_property
    def _inside(self) -> tuple[Inside, Inside]:
        return inside(self.problem)

    @property
    def sets(self) -> int:
        """Sets of taps that lie in x, whose weights' sums are kept."""
        rows, columns = self._inside
        return len(rows.ranges) * len(columns.ranges)

    @property
    def corners(self) -> list[tuple[int, int, int, int]]:
        """Of each set: its first row of taps, the one after its last, and columns likewise."""
        rows, columns = self._inside
        return [(*row, *column) for row in rows.ranges for column in columns.ranges]

    @property
    def set_of(self) -> tuple[list[int], tuple[int, ...]]:
        """What a row of y and a column add to a set's number."""
        rows, columns = self._inside
        return [each * len(columns.ranges) for each in rows.of], columns.of

    def staying(self, units: int) -> int:
        """Work groups on a device of ``units`` multiprocessors."""
        return min(self.tiles, units * self.resident, _MOST_GROUPS)

    @property
    def copiers(self) -> int:
        """Warps that copy, beside those that multiply."""
        return 1

    @property
    def maps_each(self) -> int:
        """Bytes of a work group's maps."""
        return self.copiers * _MAPS

    @property
    def maps_bytes(self) -> int:
        """Where every work group keeps its maps."""
        return _MOST_GROUPS * self.maps_each

    @property
    def instructions(self) -> Instructions:
        """What the product calls."""
        kind = "s8" if self.problem.dtype == "int8" else "u8"
        return Instructions(kind, ("bulk", "parts"), Wgmma(self.tile.bn, False, False, self.tile.bk))

    @functools.cached_property
    def source(self) -> Im2col:
        """x, gathered by taps; two channels are one of 16 bits to the engine."""
        p = self.problem
        upper = tuple(
            (o - 1) * s - pad - (i - 1) for o, s, pad, i in ((p.ow, p.sw, p.pw, p.iw), (p.oh, p.sh, p.ph, p.ih))
        )
        return Im2col("float16", (p.ic // 2, p.iw, p.ih, p.mb), (-p.pw, -p.ph), upper, (p.sw, p.sh), self.tile.bm,
                      self.tile.bk // 2)  # type: ignore[arg-type]  # fmt: skip

    @property
    def weights(self) -> Tiled:
        """Packed weights."""
        return Tiled("float16", (self.row_bytes // 2, self.packed_rows), (self.tile.bk // 2, self.tile.bn))

    @property
    def maps(self) -> tuple[Map, Map]:
        """Of x and of packed weights."""
        return self.source, self.weights

    def _misfit_of_problem(self) -> str | None:
        p, box = self.problem, self.source
        if self.c % 16 or p.ndim > 2 or self.taps > _TAPS:
            return f"two axes, channels a group in multiples of 16, {_TAPS} taps"
        if min(*box.lower, *box.upper) < _NEAREST or max(*box.lower, *box.upper) > _FARTHEST:
            return "padding beyond a map's reach"
        if max((p.kh - 1) * p.dh, (p.kw - 1) * p.dw) > _OFFSET or max(box.step) > _STEP:
            return "taps or steps beyond a map's reach"
        if p.g > 1 and self.c % self.tile.bk:
            return "channels of several groups in whole slices"
        return super()._misfit_of_problem()

    def _misfit_of_tile(self) -> str | None:
        t = self.tile
        if t.bm != 64 * t.wm or t.wn != 1 or t.bn % 32 or t.bn > 256 or t.bk not in (64, 128):
            return "64 rows a group of warps, columns in multiples of 32, slices of 64 or 128 bytes"
        if self.registers > 512 // (t.wm + 1) // 8 * 8:  # the assembler counts warps in fours
            return "more sums than registers"
        return f"{self.local_bytes} bytes of local memory" if self.local_bytes > LOCAL_LIMIT else None
