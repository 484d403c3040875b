"""Numbers of the kernel that copies by tensor maps (``product.cl.mako``): a Tiling whose operands are not packed."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..geometry import Phase
from ..hopper import LOCAL_LIMIT
from ..instructions import Instructions, Wgmma
from ..packed.tile import Tile
from ..packed.tiling import Tiling
from ..parts import MOST_PARTS, STATE
from .fold import folded
from .gather import Gathered, gathered
from .maps import Im2col, Map, Tiled

MAPS = 256
"""Bytes of a work group's two maps."""
MOST_GROUPS = 512
_BLOCK = 64
"""Columns of a box where k runs down its rows."""
_BESIDE_SUMS = 80
"""Registers that leaving results take beside sums and residuals."""
_NEAREST, _FARTHEST, _OFFSET, _STEP = -128, 127, 255, 8
"""What an im2col map of four axes can say: its corners, its offsets and its steps."""


@dataclass(frozen=True)
class TmaTile(Tile):
    """A Tile whose slices are boxes: bk channels of places (data), 64 or 128 bytes of them, or 64 places."""

    stages: int = 4
    resident: int = 1
    """Work groups that stay on a multiprocessor: one multiplies while another's sums leave."""
    block: int = 64
    """Weights' gradient: source channels of a box of B."""
    fixup: bool = False
    """Whether work groups of the product add the parts of a sum, not a launch after it."""
    pixels: int = 1
    """Neighbouring pixels that are one pixel to the product; see ``fold``."""
    taps: int = 0
    """Channels of a source that is written first, whose channels are taps along w; see ``gather``. 0: none is."""


@dataclass(frozen=True)
class PhaseOfTiles:
    """What the kernel needs of a phase, along (h, w); ``slices`` of all of the phase's sum."""

    slices: int
    taps_w: int
    tap0: tuple[int, int]
    offset: tuple[int, int]
    """How far place 0 and tap 0 read beyond ``TmaTiling.low``."""
    first: tuple[int, int]
    count: tuple[int, int]


@dataclass(frozen=True)
class TmaTiling(Tiling):
    """m, n and k as where operands are packed; nothing is packed, and slices lie in one tap."""

    @classmethod
    def of(cls, problem: ConvProblem, tile: TmaTile) -> TmaTiling:
        """The tiling of a problem whose pixels or taps the tile may fold."""
        return cls(gathered(problem, tile.taps) if tile.taps else folded(problem, tile.pixels), tile)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.problem.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of local memory: a swizzle's width."""
        return self.tile.bk * self.itemsize if self.data else 128

    @property
    def a_bytes(self) -> int:
        """Bytes of A in a stage."""
        return self.tile.bm * self.tile.bk * self.itemsize

    @property
    def b_bytes(self) -> int:
        """Bytes of B in a stage."""
        return self.tile.bn * self.tile.bk * self.itemsize

    @property
    def transposed_weights(self) -> bool:
        """The data gradient reads weights with k down the rows."""
        return self.problem.direction == "bwd_data" and not self.format.tf32

    @property
    def turned_weights(self) -> bool:
        """Tensor cores take TF32 with k along the rows alone: the data gradient's weights are turned first."""
        return self.problem.direction == "bwd_data" and self.format.tf32

    @property
    def instructions(self) -> Instructions:
        """What the product calls."""
        groups = ("bulk", "parts") if self.tile.fixup else ("bulk",)
        return Instructions(self.format.type, groups, self._wgmma)

    @functools.cached_property
    def direct_weights(self) -> bool:
        """Always, or the tile is a misfit; but folded, widened and turned ones are written first."""
        return self.data and self.tile.pixels == 1 and not self.tile.taps and not self.turned_weights

    @property
    def sources(self) -> tuple[Gathered, ...]:  # type: ignore[override]
        """Tensors that are written first."""
        nbytes = self.itemsize * math.prod(self.problem.x_shape)
        return (Gathered("x", nbytes),) if self.tile.taps else ()

    @property
    def weights_bytes(self) -> int:
        """Of folded, widened or turned weights."""
        written = self.data and not self.direct_weights
        return self.itemsize * math.prod(self.problem.w_shape) if written else 0

    @property
    def partial(self) -> bool:
        """Only parts that another launch adds: the weights' gradient leaves as it lies in memory."""
        return self.tile.split > 1 and not self.tile.fixup

    @property
    def partial_bytes(self) -> int:
        """Of all parts; where work groups add them, of whole tiles and the tiles' states."""
        if not self.tile.fixup:
            return super().partial_bytes
        return self.sums * (self.tile.split * self.tile.bm * self.tile.bn * 4 + STATE)

    @property
    def staged(self) -> bool:
        """Results leave from registers."""
        return False

    @property
    def block(self) -> int:
        """Source channels of a box."""
        return self.tile.bk if self.data else self.tile.block

    @property
    def blocks(self) -> int:
        """Blocks of source channels of a group."""
        return -(-self.geometry.c // self.block)

    @property
    def _wgmma(self) -> Wgmma:
        plain = super()._wgmma
        return dataclasses.replace(plain, b_row_bytes=self.b_row_bytes) if plain.b_transposed else plain

    @property
    def b_row_bytes(self) -> int:
        """Bytes of a row of B in local memory."""
        return self.itemsize * (_BLOCK if self.transposed_weights else self.block)

    @property
    def n_tiles(self) -> int:
        """Tiles along n: target channels, or whole blocks of source channels of every tap."""
        columns = self.geometry.m if self.data else self.geometry.phases[0].volume * self.blocks * self.block
        return -(-columns // self.tile.bn)

    @functools.cached_property
    def phases(self) -> tuple[PhaseOfTiles, ...]:
        """The geometry's, the longest sums first, so that no work group begins one last."""
        longest = sorted(self.geometry.phases, key=lambda phase: -phase.volume)
        return tuple(
            PhaseOfTiles(self._slices(p), p.taps[2], p.tap0[1:],
                         tuple(p.origin[a] - self.low[a] if p.volume else 0 for a in (1, 2)), p.first[1:], p.count[1:])
            for p in longest
        )  # fmt: skip

    def _slices(self, phase: Phase) -> int:
        return phase.volume * self.blocks if self.data else -(-self.n_places // _BLOCK)

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:
        """Of each phase: a block of channels of a tap, or 64 places."""
        return tuple(phase.slices for phase in self.phases)

    @functools.cached_property
    def count(self) -> tuple[int, int]:
        """Places of an image along (h, w), of the largest phase: all phases' tiles have as many."""
        return tuple(max(p.count[a] for p in self.geometry.phases) for a in (1, 2))

    @property
    def n_places(self) -> int:
        """Places of all images of a phase's tiles."""
        return self.geometry.images * math.prod(self.count)

    @property
    def m_tiles(self) -> int:
        """Tiles along m: places, or target channels."""
        return -(-(self.n_places if self.data else self.geometry.m) // self.tile.bm)

    @property
    def sums(self) -> int:
        """Tiles of results, each of ``split`` parts."""
        return self.n_tiles * self.m_tiles * self.geometry.groups * len(self.phases)

    @property
    def tiles(self) -> int:
        """Tiles of all work groups."""
        return self.sums * self.tile.split

    @property
    def maps_bytes(self) -> int:
        """Where every work group keeps its maps."""
        return MOST_GROUPS * MAPS

    def groups(self, units: int) -> int:
        """Work groups that are started on a device of ``units`` multiprocessors: each computes many tiles."""
        return min(self.tiles, units * self.tile.resident, MOST_GROUPS)

    @property
    def local_bytes(self) -> int:
        """Slices, their barriers, and a word that a work group's warps share."""
        return self.stage_bytes * self.tile.stages + 16 * self.tile.stages + 16

    @property
    def run(self) -> int:
        """Neighbouring results that a work item writes at once, 16 bytes."""
        return 4 if self.partial or self.itemsize == 4 else 8

    def batches(self, half: int, runs: int) -> list[range]:
        """A half's runs of results, in batches whose residuals are read at once: as many as registers hold by then.

        Each run that leaves frees its sums; a multiprocessor's quarter has 16384 registers for its warps.
        """
        t, found, at = self.tile, [], 0
        warps = -(-(t.items + 32) * t.resident // 128)
        room = min(255, 512 // warps) - _BESIDE_SUMS
        whole = t.bn // 4 if runs > 16 // self.run else 0
        while at < runs:
            left = (2 - half) * whole - at * self.run
            many = max(1, min((room - left) // 4, runs - at))
            found.append(range(at, at + many))
            at += many
        return found

    # --- maps --------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def low(self) -> tuple[int, int, int]:
        """The first pixel along (d, h, w) that place 0 of any phase reads with any tap."""
        reached = [p for p in self.geometry.phases if p.volume]
        spread = self.geometry.spread
        return tuple(min(p.origin[a] + min(0, (p.taps[a] - 1) * spread[a]) for p in reached) for a in range(3))  # type: ignore[return-value]

    @functools.cached_property
    def reach(self) -> tuple[int, int]:
        """The farthest of all taps' offsets along (h, w)."""
        reached, spread = [p for p in self.geometry.phases if p.volume], self.geometry.spread
        return tuple(
            max(p.origin[a] + max(0, (p.taps[a] - 1) * spread[a]) for p in reached) - self.low[a] for a in (1, 2)
        )  # type: ignore[return-value]

    @functools.cached_property
    def gathered(self) -> Im2col:
        """The tensor that taps gather."""
        geo, low = self.geometry, self.low
        upper = tuple(low[a] + (self.count[a - 1] - 1) * geo.step[a] - (geo.source[a] - 1) for a in (2, 1))
        pixels = self.tile.bm if self.data else _BLOCK
        sizes = (geo.c * geo.groups, geo.source[2], geo.source[1], geo.images)
        return Im2col(self.problem.dtype, sizes, (low[2], low[1]), upper, (geo.step[2], geo.step[1]), pixels,
                      self.block)  # type: ignore[arg-type]  # fmt: skip

    @functools.cached_property
    def other(self) -> Tiled:
        """The weights, (channels that are summed, taps, the others); for their gradient dy, (channels, places)."""
        problem, t = self.problem, self.tile
        if not self.data:
            return Tiled(problem.dtype, (problem.oc, self.n_places), (_BLOCK, _BLOCK))
        sizes = (problem.ic // problem.g, math.prod(self.geometry.kernel), problem.oc)
        if self.turned_weights:
            sizes = (problem.oc // problem.g, sizes[1], problem.ic)
        box = (_BLOCK, 1, t.bk) if self.transposed_weights else (t.bk, 1, min(t.bn, self.geometry.m))
        return Tiled(problem.dtype, sizes, box)

    @property
    def maps(self) -> tuple[Map, Map]:
        """Of A and of B."""
        return (self.gathered, self.other) if self.data else (self.other, self.gathered)

    @property
    def column_boxes(self) -> int:
        """Copies of a slice of B: none of columns that do not exist."""
        if not self.data:
            return self.tile.bn // self.block
        return -(-min(self.tile.bn, self.geometry.m) // _BLOCK) if self.transposed_weights else 1

    @property
    def b_box_bytes(self) -> int:
        """Bytes of one of them."""
        if not self.data:
            return _BLOCK * self.b_row_bytes
        return self.tile.bk * 128 if self.transposed_weights else min(self.tile.bn, self.geometry.m) * self.row_bytes

    @property
    def misfit(self) -> str | None:
        """Why the tile cannot run this problem; None when it can."""
        return self._misfit_of_problem() or self._misfit_of_tile()

    def _misfit_of_problem(self) -> str | None:
        problem, geo = self.problem, self.geometry
        if problem.layout != "nhwc" or self.format.name != "native":
            return "16-bit numbers, or float32 ones for TF32, channels last"
        if self.format.tf32 and not self.data:
            return "forward and data gradient of float32 numbers"
        if geo.fold or geo.stacked or problem.ndim > 2:
            return "two axes, eight source channels or more"
        if geo.c % 8 or geo.m % 8 or (geo.groups > 1 and geo.c % self.block):
            return f"channels in multiples of eight, source channels of several groups in blocks of {self.block}"
        if not any(phase.volume for phase in geo.phases) or not self.n_places:
            return "nothing is summed"
        box = self.gathered
        if min(*box.lower, *box.upper) < _NEAREST or max(*box.lower, *box.upper) > _FARTHEST:
            return "padding beyond a map's reach"
        if max(self.reach) > _OFFSET or max(box.step) > _STEP:
            return "taps or steps beyond a map's reach"
        return None

    def _misfit_of_tile(self) -> str | None:
        t = self.tile
        if t.bm != t.wm * 64 or t.wn != 1 or t.bn % 32 or t.bn > 256 or t.window:
            return "64 rows a group of warps, columns in multiples of 32"
        if self.row_bytes not in (64, 128) or t.bk * self.itemsize != self.row_bytes:
            return "slices 64 deep, or channels of 64 or 128 bytes"
        boxed = not self.data or self.transposed_weights
        if t.block not in (32, _BLOCK) or (boxed and t.bn * 2 % self.b_row_bytes):
            return "blocks of columns do not fit the tile"
        if self.local_bytes > LOCAL_LIMIT:
            return f"{self.local_bytes} bytes of local memory"
        if t.split > 1 and t.pixels > 1:
            return "whole sums of folded pixels"
        if t.split > self.slices[0] or (t.fixup and not 1 < t.split <= MOST_PARTS):
            return "more parts than slices, or than work groups count"
        if t.bn // 2 + 46 > 65536 // (t.items + 32) // t.resident:
            return "more sums than registers"
        if t.resident * (self.local_bytes + 1024) > LOCAL_LIMIT + 1024:
            return "more work groups than local memory"
        return None
