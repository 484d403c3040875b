"""Int8Tiling: a quantized problem and a tile, and every number that ``product.cl.mako`` needs of the two."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..configured import Configured
from ..hopper import LOCAL_LIMIT
from ..instructions import Instructions, Wgmma

__all__ = ["Int8Tile", "Int8Tiling"]

_INT = 2**31
_REGISTERS, _WARPS = 65536, 64
"""Of a multiprocessor."""
_CHUNK = 16
"""Bytes that a work item copies at once."""


@dataclass(frozen=True)
class Int8Tile(Configured):
    """A work group's tile: bm places by bn channels, summed in slices of bk bytes."""

    bm: int
    bn: int
    wm: int
    """Warps (``mma``) or groups of four warps (``wgmma``) along m."""
    wn: int
    bk: int = 64
    stages: int = 3
    """Slices in local memory."""
    engine: str = "mma"
    """``mma``: mma.sync on registers; ``wgmma``: Hopper's products out of local memory; ``tma``: these, fed by the
    copy engine (``stream``); ``halo``: these, of x that is copied once for all taps."""

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.wm * self.wn * (32 if self.engine == "mma" else 128)

    @property
    def frag_m(self) -> int:
        """16-row fragments of a warp."""
        return self.bm // self.wm // 16 if self.engine == "mma" else 1

    @property
    def frag_n(self) -> int:
        """8-column fragments of a warp."""
        return self.bn // self.wn // 8

    @property
    def ahead(self) -> int:
        """Slices that are copied while one is multiplied; ``wgmma`` still reads the one before."""
        return self.stages - (2 if self.engine == "wgmma" else 1)


@dataclass(frozen=True)
class Int8Tiling:
    """m = place, n = channel of a group, k = bytes of tap after tap, as x and w lie in memory, channels last."""

    problem: ConvProblem
    tile: Int8Tile

    @property
    def c(self) -> int:
        """Source channels of a group."""
        return self.problem.ic // self.problem.g

    @property
    def n(self) -> int:
        """Target channels of a group."""
        return self.problem.oc // self.problem.g

    @property
    def places(self) -> int:
        """Of all images."""
        p = self.problem
        return p.mb * p.od * p.oh * p.ow

    @property
    def taps(self) -> int:
        """Of the kernel."""
        return self.problem.kd * self.problem.kh * self.problem.kw

    @property
    def k(self) -> int:
        """Products of a sum."""
        return self.taps * self.c

    @property
    def unit(self) -> int:
        """Bytes of x that are copied at once: they lie in one tap."""
        return math.gcd(self.c, _CHUNK)

    @property
    def slices(self) -> int:
        """Of a sum."""
        return -(-self.k // self.tile.bk)

    @property
    def row_bytes(self) -> int:
        """Of a channel's packed weights: those of whole slices, zeros behind the last."""
        return self.slices * self.tile.bk

    @property
    def m_tiles(self) -> int:
        """Tiles along m."""
        return -(-self.places // self.tile.bm)

    @property
    def ragged(self) -> bool:
        """Whether tiles hold places beyond the last."""
        return self.places % self.tile.bm > 0

    @property
    def n_tiles(self) -> int:
        """Tiles along n, of a group."""
        return -(-self.n // self.tile.bn)

    @property
    def rows(self) -> int:
        """Rows of packed weights of a group: those of whole tiles, zeros behind the last channel."""
        return self.n_tiles * self.tile.bn

    @property
    def packed_rows(self) -> int:
        """Of all groups."""
        return self.problem.g * self.rows

    @property
    def parts(self) -> int:
        """Of a row of packed weights, each filled up with zeros."""
        return 1

    @property
    def sets(self) -> int:
        """Sets of taps, by places, whose weights' sums are kept: here that of all."""
        return 1

    @property
    def corners(self) -> list[tuple[int, int, int, int]]:
        """Of each set: its first row of parts, the one after its last, and columns likewise."""
        return [(0, 1, 0, 1)]

    @property
    def part_k(self) -> int:
        """Weights of one."""
        return self.k

    @property
    def packed_size(self) -> int:
        """Bytes of packed weights; behind them lie each row's sums."""
        return self.packed_rows * (self.row_bytes + 4 * self.sets)

    @property
    def work_groups(self) -> int:
        """A tile each."""
        return self.m_tiles * self.n_tiles * self.problem.g

    @property
    def copiers(self) -> int:
        """Warps that copy, beside those that multiply."""
        return 0

    @property
    def by_rows(self) -> bool:
        """Whether a tile's places stand in rows of x's length (``halo``), not one behind the other."""
        return False

    @property
    def registers(self) -> int:
        """Of a work item, about, as NVIDIA's assembler takes them."""
        t = self.tile
        beside = 60 if t.engine == "mma" else 36
        return t.frag_m * t.frag_n * 4 + beside + (32 if self.problem.residual else 0)

    @property
    def resident(self) -> int:
        """Work groups of a multiprocessor at a time."""
        t = self.tile
        warps = t.items // 32 + self.copiers
        room = (LOCAL_LIMIT + 1024) // (self.local_bytes + 1024)
        held = _REGISTERS // (-(-self.registers // 8) * 256) // 4 * 4
        return max(1, min(held // warps, room, _WARPS // warps))

    @property
    def chunks(self) -> int:
        """Of a row of a slice."""
        return self.tile.bk // _CHUNK

    @property
    def rows_at_once(self) -> int:
        """Rows of a slice that all work items copy together."""
        return self.tile.items // self.chunks

    @property
    def a_bytes(self) -> int:
        """Of x in a stage."""
        return self.tile.bm * self.tile.bk

    @property
    def stage_bytes(self) -> int:
        """Of a stage."""
        return (self.tile.bm + self.tile.bn) * self.tile.bk

    @property
    def depth(self) -> int:
        """Products of a sum, those of filled up slices too."""
        return self.row_bytes

    @property
    def copied(self) -> int:
        """Bytes of a tile that come into local memory."""
        return self.slices * self.stage_bytes

    @property
    def run(self) -> int:
        """Neighbouring channels of a work item: 4 or more, and no more than it writes at once."""
        size = self.problem.out_itemsize
        return next(run for run in (16, 8, 4) if run * size <= _CHUNK and 2 * self.tile.frag_n % run == 0)

    @property
    def out_unit(self) -> int:
        """Bytes of y that are written at once."""
        return math.gcd(self.n, self.run) * self.problem.out_itemsize

    @property
    def numbers_at(self) -> int:
        """Bytes before the tile's offsets and multipliers."""
        return self.tile.stages * self.stage_bytes

    @property
    def local_bytes(self) -> int:
        """Of a work group."""
        return self.numbers_at + 4 * (self.sets + 1) * self.tile.bn

    @functools.cached_property
    def inside(self) -> bool:
        """Whether every tap of every place lies in x."""
        p = self.problem
        reads = ((p.pd, p.od, p.sd, p.kd, p.dd, p.id), (p.ph, p.oh, p.sh, p.kh, p.dh, p.ih),
                 (p.pw, p.ow, p.sw, p.kw, p.dw, p.iw))  # fmt: skip
        return all(pad == 0 and (o - 1) * s + (k - 1) * d < i for pad, o, s, k, d, i in reads)

    @property
    def instructions(self) -> Instructions:
        """What the product calls."""
        kind = "s8" if self.problem.dtype == "int8" else "u8"
        if self.tile.engine == "wgmma":
            return Instructions(kind, ("copies",), Wgmma(self.tile.bn, False, False, self.tile.bk))
        return Instructions(kind, ("copies", "mma"))

    @property
    def misfit(self) -> str | None:
        """Why the tile cannot run this problem; None when it can."""
        return self._misfit_of_problem() or self._misfit_of_tile()

    def _misfit_of_problem(self) -> str | None:
        p = self.problem
        if p.layout != "nhwc":
            return f"channels last only, got {p.layout}"
        if p.depthwise:
            return "more than 1 channel a group, got depthwise"
        if self.unit < 4:
            return f"channels a group in multiples of 4, got {self.c}"
        before = ((p.pd * p.ih + p.ph) * p.iw + p.pw) * p.ic
        largest = max(math.prod(p.x_shape) + before, math.prod(p.y_shape), self.packed_size)
        return f"tensors of fewer than 2**31 elements, got {largest}" if largest >= _INT else None

    def _misfit_of_tile(self) -> str | None:
        t = self.tile
        if t.engine == "wgmma":
            if t.bm != 64 * t.wm or t.wn != 1 or t.bn % 32 or t.bn > 256:
                return "64 rows a group of warps, columns in multiples of 32"
        elif t.bm % (16 * t.wm) or t.bn % (16 * t.wn):
            return "16 rows and columns, or multiples, a warp"
        if t.bk not in (64, 128) or t.ahead < 1:
            return "slices of 64 or 128 bytes, one more of them than are read"
        if t.items > 1024 or t.bm % self.rows_at_once or t.bn % self.rows_at_once:
            return "rows do not fit the work items that copy them"
        if self.local_bytes > LOCAL_LIMIT:
            return f"{self.local_bytes} bytes of local memory"
        return None
