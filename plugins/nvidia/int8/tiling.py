"""The numbers of a quantized problem under a tile that the kernels' templates need; a class for each engine.

``mma`` and ``wgmma`` are Int8Tiling (``product.cl.mako``), ``tma`` is StreamTiling (``stream.cl.mako``), ``halo`` is
HaloTiling (``halo.cl.mako``). Attributes are assigned in the order in which they depend on each other.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem

from ..instructions import LOCAL_LIMIT, Instructions, NvidiaTile, Wgmma
from ..tma.maps import FARTHEST_CORNER, MAX_OFFSET, MAX_STEP, NEAREST_CORNER, Im2col, Map, Tiled

TYPES = {"int8": "s8", "uint8": "u8", "float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}
"""PTX's name of each dtype."""
REGISTERS = 65536
"""32-bit registers of a multiprocessor."""
MAX_WARPS = 64
"""Warps of a multiprocessor."""
COPY_BYTES = 16
"""Bytes that a work item copies or stores with one instruction."""
MAP_BYTES = 256
"""Bytes of the two tensor maps of a copying warp."""
MAX_GROUPS = 528
"""Most persistent work groups on a device."""
MAX_TAPS = 32
"""Most taps of a kernel whose pixels the copy engine gathers."""
MAX_BOX = 256
"""Largest size of a tensor map's box along an axis, in elements."""
INPUT_BOXES = 2
"""With the engine ``halo``, boxes of x in local memory: one is copied while the other is multiplied."""
PROMOTED_PRODUCTS = 128
"""Products of float8 that tensor cores sum before their sums are added to float32 registers (promoted)."""
NARROW_PROMOTED_PRODUCTS = {"float8_e4m3": 256, "float8_e5m2": 512}
"""The same for results of these dtypes.

Hopper's tensor cores align the 32 products of an instruction and the sum before to the largest of them, and cut off
all but 14 bits (DeepSeek-V3 technical report, section 3.5.2, and its measurements; NVIDIA documents no width). So
each product loses less than 2**-13 of the sum's magnitude at that time. While equal products add up, the J-th loses
2**-13 * J of itself at most, and a sum of J products 2**-14 * J. The table has the largest power of two at which this
is at most half of the least error that rounding to the dtype can make, relative to the number: half a unit in the last
place, 2**-5 for float8_e4m3 and 2**-4 for float8_e5m2. For float16, bfloat16 and float32 no instruction is short
enough: their sums leave after 128 products, four instructions.
"""
MOVED_REGISTERS = (40, 232)
"""Registers of a work item of the copying and of the multiplying warps if these take over registers of those. Of two
groups of four warps that multiply and one that copies: at most 512 together, in multiples of 8."""
MOVED_GROUPS = 2
"""Groups of four warps that multiply, if registers are moved."""
MAX_REGISTERS = 255
"""Registers of a work item."""
JOINED_BYTES = 1 << 14
"""With the engine ``halo``, a stage holds the weights of a whole row of taps if they are no more bytes than this."""


def promoted_products(problem: ConvProblem) -> int:
    """Products of float8 that tensor cores sum before their sums are added to float32 registers."""
    return NARROW_PROMOTED_PRODUCTS.get(problem.out_dtype, PROMOTED_PRODUCTS)


@dataclass(frozen=True)
class Int8Tile(NvidiaTile):
    """A work group's tile: bm output pixels by bn channels, summed in slices of bk bytes."""

    bm: int
    bn: int
    wm: int
    """Warps (``mma``) or groups of four warps (``wgmma``) along m."""
    wn: int
    bk: int = 64
    stages: int = 3
    """Pipeline stages: K-slices in local memory."""
    engine: str = "mma"
    """``mma``: mma.sync on registers; ``wgmma``: Hopper's products of local memory; ``tma``: ``wgmma`` with operands
    that the copy engine copies; ``halo``: ``tma`` with x copied once for all taps."""

    @property
    def ahead(self) -> int:
        """Slices that are copied while one is multiplied; ``wgmma`` may still read the previous slice."""
        return self.stages - (2 if self.engine == "wgmma" else 1)


@dataclass(unsafe_hash=True)
class Int8Tiling:
    """The product: m = output pixel, n = output channel of a group, k = bytes of all taps, in the order of x and w."""

    problem: ConvProblem
    tile: Int8Tile

    copiers = 0
    """Warps of a work group that copy while the others multiply."""
    by_rows = False
    """Whether a tile's pixels are rows as long as x's (``halo``), not consecutive pixels of y."""

    def __post_init__(self) -> None:
        p, t = self.problem, self.tile
        self.c, self.n = p.ic // p.g, p.oc // p.g
        self.float8 = p.dtype.startswith("float8")
        self.places = p.mb * p.od * p.oh * p.ow
        self.taps = p.kd * p.kh * p.kw
        self.k = self.taps * self.c
        self.unit = math.gcd(self.c, COPY_BYTES)  # bytes of x of one copy: they belong to one tap
        self.m_tiles = -(-self.places // t.bm)
        self.ragged = self.places % t.bm > 0  # whether the last tile has rows beyond the last output pixel
        # rows: the packed weights of a group are padded to whole tiles with rows of zeros after the last channel.
        self.n_tiles = -(-self.n // t.bn)
        self.rows = self.n_tiles * t.bn
        self.packed_rows = p.g * self.rows
        # A row of packed weights consists of parts, each padded with zeros to whole K-slices. The sums of weights are
        # stored for each set of parts that some output pixel reads: (first row of parts, one after its last, columns).
        self.parts, self.part_k = 1, self.k
        self.sets, self.corners = 1, [(0, 1, 0, 1)]
        self.slices = self.depth_slices = -(-self.k // t.bk)
        self.a_bytes = t.bm * t.bk
        self.stage_bytes = (t.bm + t.bn) * t.bk
        self.chunks = t.bk // COPY_BYTES  # 16-byte copies per row of a K-slice
        self.rows_at_once = t.items // self.chunks  # rows of a K-slice that all work items copy together
        # run: consecutive channels that a work item stores: 4 or more, and at most 16 bytes.
        size = p.out_itemsize
        self.run = next((run for run in (16, 8, 4) if run * size <= COPY_BYTES and 2 * t.frag_n % run == 0), 4)
        self.out_unit = math.gcd(self.n, self.run) * size  # bytes of y of one store
        self._arrange()
        # summed_slices: K-slices whose products tensor cores sum by themselves; one if columns are in groups.
        self.summed_slices = self._summed_slices() if self.float8 else self.slices
        self.row_bytes = self.depth_slices * t.bk
        # Bytes of packed weights: the rows, then the sums of each row.
        self.packed_size = self.packed_rows * (self.row_bytes + 4 * self.sets)
        self.work_groups = self.m_tiles * self.n_tiles * p.g  # one work group per tile
        self.copied = self._copied_bytes()
        self.local_bytes = self.numbers_at + 4 * (self.sets + 1) * t.bn
        # column_groups: a slice of float8 is multiplied by one group of columns after another; its sums fit registers.
        counts = [
            each for each in (1, 2, 3) if t.bn % (64 * each) == 0 and self._registers(each) <= self.most_registers
        ]
        self.column_groups = counts[0] if counts and self.float8 and self.copiers else 1
        if self.column_groups > 1:
            self.summed_slices = 1
        # sums: name of the array of sums over all slices; ``sum`` are the tensor cores' sums.
        self.promotes = self._promotes(self.column_groups)
        self.sums = "total" if self.promotes else "sum"
        self.registers = self._registers(self.column_groups)
        warps = t.items // 32 + self.copiers
        by_memory = (LOCAL_LIMIT + 1024) // (self.local_bytes + 1024)
        warps_held = REGISTERS // (-(-self.registers // 8) * 256) // 4 * 4
        # resident: work groups that a multiprocessor runs at a time.
        self.resident = max(1, min(warps_held // warps, by_memory, MAX_WARPS // warps))

    def _summed_slices(self) -> int:
        return 1

    def _promotes(self, groups: int) -> bool:
        """Whether sums leave the tensor cores before the last slice."""
        return self.float8 and (groups > 1 or self.slices > self.summed_slices)

    def _registers(self, groups: int) -> int:
        """Approximate registers that NVIDIA's assembler allocates per work item."""
        t, residual = self.tile, self.problem.residual
        sums = t.frag_m * t.frag_n * 4
        registers = sums + (60 if t.engine == "mma" else 36)
        if self._promotes(groups):  # registers of a slice's sums are reused for the residual
            return registers + sums // groups + (32 if groups > 1 else 8 if self.by_rows else 0) * residual
        return registers + (32 if residual else 0)

    @property
    def most_registers(self) -> int:
        """Registers that a work item can have."""
        return min(MAX_REGISTERS, REGISTERS // self.tile.items)

    def _arrange(self) -> None:
        """Set the K-slices and offsets in local memory; the quantization's numbers of the tile are last there."""
        self.numbers_at = self.tile.stages * self.stage_bytes

    def _copied_bytes(self) -> int:
        """Bytes that are copied to local memory for a tile."""
        return self.slices * self.stage_bytes

    @property
    def inside(self) -> bool:
        """Whether every tap of every output pixel is inside x."""
        p = self.problem
        reads = ((p.pd, p.od, p.sd, p.kd, p.dd, p.id), (p.ph, p.oh, p.sh, p.kh, p.dh, p.ih),
                 (p.pw, p.ow, p.sw, p.kw, p.dw, p.iw))  # fmt: skip
        return all(pad == 0 and (o - 1) * s + (k - 1) * d < i for pad, o, s, k, d, i in reads)

    @property
    def instructions(self) -> Instructions:
        kind, wgmma = TYPES[self.problem.dtype], None
        if self.tile.engine != "mma":
            wgmma = Wgmma(self.tile.bn // self.column_groups, False, False, self.tile.bk)
        groups = {"mma": ("copies", "mma"), "wgmma": ("copies",)}.get(self.tile.engine, ("bulk", "parts"))
        return Instructions(kind, groups, wgmma)

    @property
    def misfit(self) -> str | None:
        """The reason why the tile cannot run this problem; None when it can."""
        return self._misfit_of_problem() or self._misfit_of_tile()

    def _misfit_of_problem(self) -> str | None:
        p = self.problem
        if p.layout != "nhwc":
            return f"channels last only, got {p.layout}"
        if p.depthwise:
            return "more than 1 channel a group, got depthwise"
        if self.unit < 4:
            return f"channels a group in multiples of 4, got {self.c}"
        padding_elements = ((p.pd * p.ih + p.ph) * p.iw + p.pw) * p.ic
        largest = max(math.prod(p.x_shape) + padding_elements, math.prod(p.y_shape), self.packed_size)
        return f"tensors of fewer than 2**31 elements, got {largest}" if largest >= 1 << 31 else None

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
        if self.float8 and self.registers > self.most_registers:
            return "more sums than registers"
        return f"{self.local_bytes} bytes of local memory" if self.local_bytes > LOCAL_LIMIT else None


@dataclass(unsafe_hash=True)
class StreamTiling(Int8Tiling):
    """k = blocks of channels of all taps: a slice belongs to one tap, and the copy engine fills padding with zeros.

    An output pixel at x's border has fewer taps than others, so there is one set of taps for each kind of border.
    """

    copiers = 1

    def _arrange(self) -> None:
        t = self.tile
        self.blocks = -(-self.c // t.bk)  # number of K-slices per tap
        self.slices = self.depth_slices = self.taps * self.blocks
        self.parts, self.part_k = self.taps, self.c
        if not self.float8:
            self._arrange_sets()
        self._arrange_memory()

    def _summed_slices(self) -> int:
        return max(1, promoted_products(self.problem) // self.tile.bk)

    def _arrange_sets(self) -> None:
        """Find the sets of taps; the sum of a set's weights removes x's zero point from a pixel's sum."""
        p = self.problem
        rows, row_of = _tap_ranges(p.oh, p.ih, p.kh, p.sh, p.ph, p.dh)
        columns, column_of = _tap_ranges(p.ow, p.iw, p.kw, p.sw, p.pw, p.dw)
        self.sets = len(rows) * len(columns)
        self.corners = [(*row, *column) for row in rows for column in columns]
        # set_of: the index of a pixel's set of taps is the sum of its row's term and its column's term.
        self.set_of = [each * len(columns) for each in row_of], column_of

    def _arrange_memory(self) -> None:
        """Offsets in local memory: K-slices, then their barriers."""
        self.bars_at = self.tile.stages * self.stage_bytes
        self.numbers_at = self.bars_at + 16 * self.tile.stages

    @property
    def most_registers(self) -> int:
        """Registers that a work item of the multiplying warps can have."""
        return MOVED_REGISTERS[1] if self._may_move_registers else self._equal_registers

    @property
    def _may_move_registers(self) -> bool:
        """Whether the tile may have more registers than all work items can: integers gain nothing by it."""
        return self.float8 and self.tile.wm == MOVED_GROUPS

    @property
    def _equal_registers(self) -> int:
        """Registers of each work item if all have the same number, which goes to groups of four warps."""
        return min(MAX_REGISTERS, 512 // (self.tile.wm + 1) // 8 * 8)

    @property
    def moved_registers(self) -> tuple[int, int] | None:
        """Registers of the copying and of the multiplying work items; None if all have the same number."""
        moves = self._may_move_registers and self.registers > self._equal_registers
        return MOVED_REGISTERS if moves else None

    @property
    def copying_items(self) -> int:
        """Work items of the copying warps: whole groups of four warps if registers move."""
        return 128 if self.moved_registers else 32 * self.copiers

    def staying(self, units: int) -> int:
        """Persistent work groups on a device of ``units`` multiprocessors; each computes one tile after another."""
        return min(self.work_groups, units * self.resident, MAX_GROUPS)

    @property
    def maps_each(self) -> int:
        """Bytes of a work group's tensor maps."""
        return self.copiers * MAP_BYTES

    @property
    def source(self) -> Im2col:
        """The tensor map by which taps gather x; two channels count as one 16-bit element."""
        p = self.problem
        upper = tuple(
            (o - 1) * s - pad - (i - 1) for o, s, pad, i in ((p.ow, p.sw, p.pw, p.iw), (p.oh, p.sh, p.ph, p.ih))
        )
        return Im2col("float16", (p.ic // 2, p.iw, p.ih, p.mb), (-p.pw, -p.ph), upper, (p.sw, p.sh), self.tile.bm,
                      self.tile.bk // 2)  # type: ignore[arg-type]  # fmt: skip

    @property
    def weights(self) -> Tiled:
        """The map of packed weights."""
        return Tiled("float16", (self.row_bytes // 2, self.packed_rows), (self.tile.bk // 2, self.tile.bn))

    @property
    def maps(self) -> tuple[Map, Map]:
        """The tensor maps of x and of packed weights."""
        return self.source, self.weights

    def _misfit_of_problem(self) -> str | None:
        p, box = self.problem, self.source
        if self.c % 16 or p.ndim > 2 or self.taps > MAX_TAPS:
            return f"two axes, channels a group in multiples of 16, {MAX_TAPS} taps"
        if min(*box.lower, *box.upper) < NEAREST_CORNER[2] or max(*box.lower, *box.upper) > FARTHEST_CORNER[2]:
            return "padding beyond a map's reach"
        if max((p.kh - 1) * p.dh, (p.kw - 1) * p.dw) > MAX_OFFSET[2] or max(box.step) > MAX_STEP:
            return "taps or steps beyond a map's reach"
        if p.g > 1 and self.c % self.tile.bk:
            return "channels of several groups in whole slices"
        return super()._misfit_of_problem()

    def _misfit_of_tile(self) -> str | None:
        t = self.tile
        if t.bm != 64 * t.wm or t.wn != 1 or t.bn % 32 or t.bn > 256 or t.bk not in (64, 128):
            return "64 rows a group of warps, columns in multiples of 32, slices of 64 or 128 bytes"
        if self.registers > self.most_registers:
            return "more sums than registers"
        return f"{self.local_bytes} bytes of local memory" if self.local_bytes > LOCAL_LIMIT else None


@functools.lru_cache(maxsize=256)
def _tap_ranges(
    count: int, size: int, taps: int, step: int, pad: int, dilation: int
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """(the ranges of taps that output pixels read inside x along an axis, the index of each pixel's range).

    All but the first and last pixels read every tap, so there are few ranges: (first tap, the one after the last).
    """
    range_of_pixel = []
    for pixel in range(count):
        first_tap = max(0, -(-(pad - pixel * step) // dilation))
        stop = min(taps, -(-(size + pad - pixel * step) // dilation))
        range_of_pixel.append((first_tap, max(first_tap, stop)))
    ranges = tuple(dict.fromkeys(range_of_pixel))
    return ranges, tuple(map(ranges.index, range_of_pixel))


@dataclass(unsafe_hash=True)
class HaloTiling(StreamTiling):
    """A tile is whole rows of y, each ``pitch`` long, so that a tap adds the same offset to every pixel's address.

    The pixels of x that a tile reads are copied to local memory once for all taps.
    """

    copiers = 2
    by_rows = True
    sources = INPUT_BOXES

    def _arrange_memory(self) -> None:
        """Offsets in local memory: weights, boxes of x, then the barriers of both."""
        p, t = self.problem, self.tile
        self.pitch = p.ow + (p.kw - 1) * p.dw  # pixels of x that a row of y reads
        self.tile_rows = max(1, min(p.oh, (t.bm + self.pitch - p.ow) // self.pitch))
        self.row_tiles = -(-p.oh // self.tile_rows)  # tiles of rows per image
        self.m_tiles = p.mb * self.row_tiles
        self.box_rows = self.tile_rows + (p.kh - 1) * p.dh
        self.box_bytes = self.box_rows * self.pitch * t.bk
        # Bytes of a box in local memory, in whole swizzles; pixels of a tile beyond y's row ends read past the box.
        read_bytes = (t.bm + (p.kh - 1) * p.dh * self.pitch + (p.kw - 1) * p.dw) * t.bk
        self.source_bytes = -(-max(self.box_bytes, read_bytes) // 1024) * 1024
        # Number of taps whose weights one stage holds.
        few_products = p.kw * t.bk <= promoted_products(p) or not self.float8
        whole_row = p.kw * t.bn * t.bk <= JOINED_BYTES and few_products
        self.together = p.kw if whole_row else 1
        self.slices = self.depth_slices // self.together
        self.stage_bytes = self.together * t.bn * t.bk
        self.sources_at = t.stages * self.stage_bytes
        self.bars_at = self.sources_at + self.sources * self.source_bytes
        self.numbers_at = self.bars_at + 16 * (self.sources + t.stages)

    def _summed_slices(self) -> int:
        return 1

    def _copied_bytes(self) -> int:
        return self.blocks * self.box_bytes + self.slices * self.stage_bytes

    @property
    def maps(self) -> tuple[Map, Map]:
        p = self.problem
        box = (self.tile.bk // 2, self.pitch, self.box_rows, 1)
        return Tiled("float16", (p.ic // 2, p.iw, p.ih, p.mb), box), self.weights

    def _misfit_of_problem(self) -> str | None:
        p = self.problem
        if self.taps == 1 or p.sh > 1 or p.sw > 1:
            return "several taps, steps of 1"
        if self.pitch > MAX_BOX or self.box_rows > MAX_BOX:
            return f"rows of {MAX_BOX} pixels or fewer, with their padding"
        return super()._misfit_of_problem()

    def _misfit_of_tile(self) -> str | None:
        if self.pitch * self.tile_rows - (self.pitch - self.problem.ow) > self.tile.bm:
            return f"rows of {self.tile.bm} pixels or fewer, got {self.problem.ow}"
        return super()._misfit_of_tile()


_TILINGS = {"mma": Int8Tiling, "wgmma": Int8Tiling, "tma": StreamTiling, "halo": HaloTiling}


def tiling_of(problem: ConvProblem, tile: Int8Tile) -> Int8Tiling:
    """The tiling of a tile's engine."""
    return _TILINGS[tile.engine](problem, tile)
