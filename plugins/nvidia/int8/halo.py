"""HaloTiling: a StreamTiling of whole rows of y, whose pixels of x come once for all taps; see ``halo.cl.mako``."""

from __future__ import annotations

from dataclasses import dataclass

from ..hopper import LOCAL_LIMIT
from ..tma.maps import Map, Tiled
from .stream import StreamTiling

__all__ = ["HaloTiling"]

_BOX = 256
"""Of a map's box, along an axis."""
_SOURCES = 2
"""Boxes of x in local memory: one is copied while the other is multiplied."""
_SMALL = 1 << 14
"""Bytes of a stage that holds the weights of a row of taps."""


@dataclass(frozen=True)
class HaloTiling(StreamTiling):
    """m = place of a row that is ``pitch`` long: what a tap adds to it is the same for all places."""

    @property
    def pitch(self) -> int:
        """Pixels of x that a row of y needs."""
        p = self.problem
        return p.ow + (p.kw - 1) * p.dw

    @property
    def tile_rows(self) -> int:
        """Rows of y of a tile."""
        return max(1, min(self.problem.oh, (self.tile.bm + self.pitch - self.problem.ow) // self.pitch))

    @property
    def row_tiles(self) -> int:
        """Tiles of an image."""
        return -(-self.problem.oh // self.tile_rows)

    @property
    def m_tiles(self) -> int:
        """Of all images."""
        return self.problem.mb * self.row_tiles

    @property
    def box_rows(self) -> int:
        """Rows of x that a tile needs."""
        return self.tile_rows + (self.problem.kh - 1) * self.problem.dh

    @property
    def box_bytes(self) -> int:
        """Of a slice of channels of what a tile needs of x."""
        return self.box_rows * self.pitch * self.tile.bk

    @property
    def source_bytes(self) -> int:
        """Room of it, in whole swizzles; products of places that are none read behind it."""
        p = self.problem
        read = (self.tile.bm + (p.kh - 1) * p.dh * self.pitch + (p.kw - 1) * p.dw) * self.tile.bk
        return -(-max(self.box_bytes, read) // 1024) * 1024

    @property
    def together(self) -> int:
        """Taps whose weights one stage holds."""
        t = self.tile
        return self.problem.kw if self.problem.kw * t.bn * t.bk <= _SMALL else 1

    @property
    def slices(self) -> int:
        """Stages of a sum."""
        return self.tap_slices // self.together

    @property
    def stage_bytes(self) -> int:
        """Of a stage: weights alone."""
        return self.together * self.tile.bn * self.tile.bk

    @property
    def row_bytes(self) -> int:
        """Of a channel's packed weights."""
        return self.tap_slices * self.tile.bk

    @property
    def copied(self) -> int:
        """Bytes of a tile that come into local memory."""
        return self.blocks * self.box_bytes + self.slices * self.stage_bytes

    @property
    def sources_at(self) -> int:
        """Bytes before the boxes of x."""
        return self.tile.stages * self.stage_bytes

    @property
    def bars_at(self) -> int:
        """Bytes before the barriers: two of a box of x, then two of a stage."""
        return self.sources_at + _SOURCES * self.source_bytes

    @property
    def numbers_at(self) -> int:
        """Bytes before the tile's offsets and multipliers."""
        return self.bars_at + 16 * (_SOURCES + self.tile.stages)

    @property
    def sources(self) -> int:
        """Boxes of x in local memory."""
        return _SOURCES

    @property
    def by_rows(self) -> bool:
        """Whether a tile's places stand in rows of x's length, not one behind the other."""
        return True

    @property
    def copiers(self) -> int:
        """Warps that copy: one x, one weights."""
        return 2

    @property
    def maps(self) -> tuple[Map, Map]:
        """Of x and of packed weights."""
        p = self.problem
        box = (self.tile.bk // 2, self.pitch, self.box_rows, 1)
        return Tiled("float16", (p.ic // 2, p.iw, p.ih, p.mb), box), self.weights

    def _misfit_of_problem(self) -> str | None:
        p = self.problem
        if self.taps == 1 or p.sh > 1 or p.sw > 1:
            return "several taps, steps of 1"
        if self.pitch > _BOX or self.box_rows > _BOX:
            return f"rows of {_BOX} pixels or fewer, with their padding"
        return super()._misfit_of_problem()

    def _misfit_of_tile(self) -> str | None:
        if self.pitch * self.tile_rows - (self.pitch - self.problem.ow) > self.tile.bm:
            return f"rows of {self.tile.bm} places or fewer, got {self.problem.ow}"
        return super()._misfit_of_tile() or (
            f"{self.local_bytes} bytes of local memory" if self.local_bytes > LOCAL_LIMIT else None
        )
