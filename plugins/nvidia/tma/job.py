"""Numbers of the kernel that copies by tensor maps (``product.cl.mako``): a Job whose operands are not packed."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ..hopper import LOCAL_LIMIT
from ..instructions import Instructions
from ..packed.job import Job
from ..packed.tile import Tile
from .maps import Im2col, Map, Tiled

__all__ = ["MAPS", "MOST_GROUPS", "TmaJob", "TmaTile"]

MAPS = 256
"""Bytes of a work group's two maps."""
MOST_GROUPS = 512
_SLICE = 64
_NEAREST, _FARTHEST, _OFFSET, _STEP = -128, 127, 255, 8
"""What an im2col map of four axes can say: its corners, its offsets and its steps."""


@dataclass(frozen=True)
class TmaTile(Tile):
    """A Tile whose slices are 64 deep."""

    stages: int = 4
    resident: int = 1
    """Work groups that stay on a multiprocessor: one multiplies while another's sums leave."""


@dataclass(frozen=True)
class TmaJob(Job):
    """m, n and k as where operands are packed; nothing is packed, and slices lie in one tap."""

    @property
    def turned_weights(self) -> bool:
        """The data gradient reads weights with k down the rows."""
        return self.problem.direction == "bwd_data"

    @property
    def instructions(self) -> Instructions:
        """What the product calls."""
        return Instructions(self.format.type, ("bulk",), self._wgmma)

    @functools.cached_property
    def direct_weights(self) -> bool:
        """Always: or the tile is a misfit."""
        return self.data

    @property
    def partial(self) -> bool:
        """Only parts: the weights' gradient leaves as it lies in memory."""
        return self.tile.split > 1

    @property
    def staged(self) -> bool:
        """Results leave from registers."""
        return False

    @property
    def blocks(self) -> int:
        """Blocks of 64 source channels of a group."""
        return -(-self.walk.c // _SLICE)

    @property
    def n_tiles(self) -> int:
        """Tiles along n: target channels, or whole blocks of source channels of every tap."""
        columns = self.walk.m if self.data else self.walk.phases[0].volume * self.blocks * _SLICE
        return -(-columns // self.tile.bn)

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:
        """Of 64: a block of channels of a tap, or places."""
        if self.data:
            return (self.walk.phases[0].volume * self.blocks,)
        return (-(-self.n_places // _SLICE),)

    @property
    def tiles(self) -> int:
        """Tiles of all work groups."""
        return self.n_tiles * self.m_tiles * self.tile.split * self.walk.groups

    @property
    def maps_bytes(self) -> int:
        """Where every work group keeps its maps."""
        return MOST_GROUPS * MAPS

    def groups(self, units: int) -> int:
        """Work groups that are started on a device of ``units`` multiprocessors: each computes many tiles."""
        return min(self.tiles, units * self.tile.resident, MOST_GROUPS)

    @property
    def local_bytes(self) -> int:
        """Slices and their barriers; 1024 for alignment."""
        return self.stage_bytes * self.tile.stages + 16 * self.tile.stages

    # --- maps --------------------------------------------------------------------------------------------------------

    @property
    def low(self) -> tuple[int, int, int]:
        """The first pixel along (d, h, w) that place 0 reads with any tap."""
        p, geo = self.walk.phases[0], self.walk
        return tuple(o + min(0, (k - 1) * s) for o, k, s in zip(p.origin, p.taps, geo.spread))  # type: ignore[return-value]

    def offset(self, axis: int, tap: str) -> str:
        """How far tap ``tap`` along an axis reads beyond ``low``, as text."""
        start = self.walk.phases[0].origin[axis] - self.low[axis]
        return f"({start} + ({tap}) * ({self.walk.spread[axis]}))"

    @functools.cached_property
    def gathered(self) -> Im2col:
        """The tensor that taps gather."""
        geo, low = self.walk, self.low
        p = geo.phases[0]
        upper = tuple(low[a] + (p.count[a] - 1) * geo.step[a] - (geo.source[a] - 1) for a in (2, 1))
        pixels = self.tile.bm if self.data else _SLICE
        sizes = (geo.c * geo.groups, geo.source[2], geo.source[1], geo.images)
        return Im2col(self.problem.dtype, sizes, (low[2], low[1]), upper, (geo.step[2], geo.step[1]), pixels)  # type: ignore[arg-type]

    @functools.cached_property
    def other(self) -> Tiled:
        """The weights, (channels, taps, output channels); for their gradient dy, (channels, places)."""
        problem, t = self.problem, self.tile
        if not self.data:
            return Tiled(problem.dtype, (problem.oc, self.n_places), (_SLICE, _SLICE))
        sizes = (problem.ic // problem.g, math.prod(self.walk.kernel), problem.oc)
        rows = _SLICE if self.turned_weights else t.bn
        return Tiled(problem.dtype, sizes, (_SLICE, 1, rows))

    @property
    def maps(self) -> tuple[Map, Map]:
        """Of A and of B."""
        return (self.gathered, self.other) if self.data else (self.other, self.gathered)

    @property
    def column_boxes(self) -> int:
        """Copies of a slice of B."""
        return 1 if self.data and not self.turned_weights else self.tile.bn // _SLICE

    @property
    def misfit(self) -> str | None:
        """Why the tile cannot run this problem; None when it can."""
        return self._misfit_of_problem() or self._misfit_of_tile()

    def _misfit_of_problem(self) -> str | None:
        problem, geo = self.problem, self.walk
        if problem.layout != "nhwc" or self.format.name != "native":
            return "16-bit numbers, channels last"
        if geo.fold or geo.stacked or len(geo.phases) > 1 or geo.out_step != (1, 1, 1) or problem.ndim > 2:
            return "one phase of two axes, of eight source channels or more"
        if geo.c % 8 or geo.m % 8 or (geo.groups > 1 and geo.c % _SLICE):
            return "channels in multiples of eight, source channels of several groups in blocks of 64"
        if not geo.phases[0].volume or not self.n_places:
            return "nothing is summed"
        box = self.gathered
        if min(*box.lower, *box.upper) < _NEAREST or max(*box.lower, *box.upper) > _FARTHEST:
            return "padding beyond a map's reach"
        reach = [(k - 1) * abs(s) for k, s in zip(geo.phases[0].taps, geo.spread)]
        if max(reach) > _OFFSET or max(box.step) > _STEP:
            return "taps or steps beyond a map's reach"
        return None

    def _misfit_of_tile(self) -> str | None:
        t = self.tile
        if t.bm != t.wm * 64 or t.wn != 1 or t.bk != _SLICE or t.bn % 32 or t.bn > 256 or t.window:
            return "64 rows a group of warps, columns in multiples of 32"
        if t.bn % _SLICE and (not self.data or self.turned_weights):
            return "blocks of 64 columns do not fit the tile"
        if self.local_bytes > LOCAL_LIMIT:
            return f"{self.local_bytes} bytes of local memory"
        if t.split > self.slices[0]:
            return "more parts than slices"
        if t.bn // 2 + 46 > 65536 // (t.items + 32) // t.resident:
            return "more sums than registers"
        if t.resident * (self.local_bytes + 1024) > LOCAL_LIMIT + 1024:
            return "more work groups than local memory"
        return None
