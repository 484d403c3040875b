"""The numbers of a problem under a tile for the kernel that copies by tensor maps; operands are not packed.

A tiling may be of many tiles: then bm, bn, wm, stages, resident, split and turns of ``tile`` are arrays. Either all of
these split their sums or none does.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import ConvProblem
from convdispatch.api.matrix import MAX_PARTS, STATE_BYTES, Layout, Phase, largest, parts_magic, smallest

from ..instructions import LOCAL_LIMIT, Instructions
from ..packed.tiling import Tile, Tiling
from .maps import FARTHEST_CORNER, MAX_OFFSET, MAX_STEP, NEAREST_CORNER, Im2col, Map, Tiled
from .rewriting import Gathered, folded, gathered

MAP_BYTES = 128
"""Bytes of a tensor map."""
ALIGNMENT = 1024
"""Bytes at whose multiples the slices of local memory begin, by which a kernel may take more than it declares."""
MAX_GROUPS = 512
"""Most persistent work groups on a device."""
BOX_COLUMNS = 64
"""Columns of a tensor map's box whose rows are k."""
SUMS_REGISTERS = {False: (64, 53), True: (40, 78)}
"""Registers beside those of the product's sums, if sums of channels leave too, by whether a norm's gradient is taken.
With 40 ptxas spills nothing (sm_90a), but forward tiles of 128 x 256 took twice what 192 x 128 took on an H200. The
second are those that it takes if only a work group's size limits it, as where several are on a multiprocessor."""

BEHIND_REGISTERS = 36
"""The same of tiles whose epilogue reads tensors, of five tiles."""
MAX_TURN = 128 * 128
"""Most results of a tile that a group of four warps has in registers."""
NORM_REGISTERS = 88
"""Registers, beside those of the product's sums, of a main loop that normalises the rows of A in registers. Of eight
tiles compiled for sm_90a, with sums of channels."""


@dataclass(frozen=True)
class TmaTile(Tile):
    """A Tile whose K-slices are boxes: 64 or 128 bytes of channels of pixels; 64 pixels in the weights' gradient."""

    stages: int = 4
    resident: int = 1
    """Persistent work groups per multiprocessor: one multiplies while another stores its sums."""
    block: int = 64
    """Source channels of a box of B in the weights' gradient."""
    fixup: bool = False
    """Whether work groups of the product add the partial sums, instead of a separate launch."""
    pixels: int = 1
    """Consecutive pixels that count as one pixel of the product; see ``rewriting.folds``."""
    turns: bool = False
    """Whether each of two groups of four warps has tiles of its own: one multiplies while the other's sums leave."""
    taps: int = 0
    """Channels of the rewritten source, which are taps along w (``rewriting.gathers``); 0 if it is not rewritten."""
    turned: bool = False
    """Whether the caller's tensors are channels first: launches lay the source and the weights channels last before the
    product, and the result channels first after it."""


@dataclass(frozen=True)
class PhaseOfTiles:
    """Numbers of a phase that the kernel needs, along (d, h, w); ``slices`` are the K-slices of its whole sum."""

    slices: int
    volume: int
    taps: tuple[int, int, int]
    tap0: tuple[int, int, int]
    offset: tuple[int, int, int]
    """Pixels from ``TmaTiling.low`` to the pixel that tap 0 reads for output pixel 0."""
    first: tuple[int, int, int]
    count: tuple[int, int, int]


@dataclass(unsafe_hash=True)
class TmaTiling(Tiling):
    """A Tiling (same m, n and k) whose operands are not packed: each K-slice belongs to one tap."""

    staged = False  # results are stored from registers, not through local memory

    @classmethod
    def of(cls, problem: ConvProblem, tile: TmaTile) -> TmaTiling:
        """The tiling of a problem whose pixels or taps the tile may fold, or whose tensors launches turn."""
        if problem.layout == "nchw":
            return cls(problem.replace(layout="nhwc"), dataclasses.replace(tile, turned=True))
        return cls(gathered(problem, tile.taps) if tile.taps else folded(problem, tile.pixels), tile)

    def _arrange(self) -> None:
        p, t, geo, data = self.problem, self.tile, self.geometry, self.data
        size = self.itemsize = p.itemsize
        is_data_gradient, tf32 = p.direction == "bwd_data", self.format.tf32
        # The data gradient reads weights with k down the rows. TF32 tensor cores only accept k along the rows: then a
        # launch transposes the weights first.
        self.transposed_weights, self.rewritten_weights = is_data_gradient and not tf32, is_data_gradient and tf32
        # A launch writes folded, widened, turned and transposed weights before the product.
        is_plain = t.pixels == 1 and not t.taps and not (t.turned and max(geo.kernel) > 1)
        self.direct_weights = data and is_plain and not self.rewritten_weights
        self.weights_bytes = size * math.prod(p.w_shape) if data and not self.direct_weights else 0
        # A K-slice is a block of source channels of one tap.
        self.block = t.bk if data else t.block
        self.blocks = -(-geo.c // self.block)
        self.row_bytes = t.bk * size if data else 128
        self.b_row_bytes = size * (BOX_COLUMNS if self.transposed_weights else self.block)
        self.a_bytes, self.b_bytes = t.bm * t.bk * size, t.bn * t.bk * size
        self.stage_bytes = self.a_bytes + self.b_bytes
        # Each phase has as many tiles of the result as the phase with the most output pixels.
        self.count = tuple(max(phase.count[axis] for phase in geo.phases) for axis in range(3))
        # axes: those of the copy engine's maps, from w on.
        self.axes = (2, 1, 0) if p.ndim > 2 else (2, 1)
        self.n_places = geo.images * math.prod(self.count)
        volume = geo.phases[0].volume
        self.n = geo.m if data else volume * geo.c8 * 8
        # Columns of the product are target channels, or whole blocks of source channels of every tap.
        self.n_tiles = -(-(geo.m if data else volume * self.blocks * self.block) // t.bn)
        self.m_tiles = -(-(self.n_places if data else geo.m) // t.bm)
        # sums: tiles of results; tiles: their parts, ``split`` for each.
        self.sums = self.n_tiles * self.m_tiles * geo.groups * len(geo.phases)
        self.tiles = self.sums * t.split
        # Partial sums that a launch adds have the output's layout; those that work groups add are whole tiles.
        self.partial = bool(np.max(t.split) > 1) and not t.fixup
        self.partial_elements = math.prod(p.out_shape) if data else geo.groups * geo.m * self.n
        self.partial_bytes = self.partial_elements * t.split * 4 * self.partial
        # summed: whether the product leaves the sums of its tiles' channels.
        self.summed = p.sums and not self.partial
        # slices_behind: whether the copy engine brings what the epilogue reads, in slices from which results leave.
        # Otherwise eight rows of each warp's results on their way out, and of what is read, lie behind the slices. Then
        # come each warp's sums of the columns, and its rows.
        self.slices_behind = self.data and bool(self.read_behind) and not t.fixup
        # Results replace what is added to them.
        self.areas = len(self.read_behind) + (set(self.read_behind) <= {"saved"})
        self.row_pitch = 40 if self.partial or size == 4 else 36
        self.row_words = 0 if self.slices_behind else 8 * self.row_pitch * self.areas
        self.maps_each = MAP_BYTES * (2 + len(self.read_behind) * self.slices_behind)
        self.maps_bytes = MAX_GROUPS * self.maps_each
        # A slice comes with the columns of the norm's table that are taken to it.
        self.table_columns = (p.masked and self.slices_behind) * 128 // size or t.norm_in_place * t.bk
        self.table_bytes = 3 * 4 * self.table_columns
        self.tables_at = (self.stage_bytes + 16) * t.stages + 16
        self.rows_at = self.tables_at + self.table_bytes * t.stages
        self.sums_at = self.rows_at + t.wm * 4 * self.row_words * 4
        self.local_bytes = self.sums_at + t.wm * 4 * (t.bn * 8 + 4) * self.summed
        if t.fixup:
            self.partial_bytes = self.sums * (t.split * t.bm * t.bn * 4 + STATE_BYTES)

    @property
    def instructions(self) -> Instructions:
        meet, rows = self.tile.fixup or self.summed, self.tile.norm_in_place
        groups = ("bulk", *(["parts"] if meet else []), *(["rows"] if rows else []))
        return Instructions(self.format.type, groups, self._wgmma)

    @property
    def sources(self) -> tuple[Gathered, ...]:  # type: ignore[override]
        """Tensors that a launch writes before the product."""
        name = self.source_name if self.tile.turned else "x"
        nbytes = self.itemsize * math.prod(getattr(self.problem, name + "_shape"))
        normed_before = self.problem.normalised and not self.tile.norm_in_place
        return (Gathered(name, nbytes),) if self.tile.taps or self.tile.turned or normed_before else ()

    @property
    def source_name(self) -> str:
        """The operand that is A of a result of pixels."""
        return "y" if self.problem.direction == "bwd_data" else "x"

    @property
    def result_bytes(self) -> int:  # type: ignore[override]
        """Bytes of the result that a launch turns after the product; 0 if the product writes it in place."""
        return self.itemsize * math.prod(self.problem.out_shape) * self.tile.turned

    @functools.cached_property
    def phases(self) -> tuple[PhaseOfTiles, ...]:
        """The geometry's phases, those with the longest sums first, so that no work group begins a long sum last."""
        longest, low = sorted(self.geometry.phases, key=lambda phase: -phase.volume), self.low
        return tuple(
            PhaseOfTiles(self._slices(p), p.volume, p.taps, p.tap0,
                         tuple(p.origin[a] - low[a] if p.volume else 0 for a in range(3)), p.first, p.count)
            for p in longest
        )  # type: ignore[arg-type]  # fmt: skip

    def _slices(self, phase: Phase) -> int:
        return phase.volume * self.blocks if self.data else -(-self.n_places // BOX_COLUMNS)

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:  # type: ignore[override]
        """Number of K-slices of each phase: a slice is a block of channels of one tap, or 64 pixels."""
        return tuple(phase.slices for phase in self.phases)

    def groups(self, units: int) -> int:
        """Work groups of the launch on a device of ``units`` multiprocessors; each computes many tiles."""
        return smallest(self.tiles, smallest(units * self.tile.resident, MAX_GROUPS))

    def sums_rows(self, units: int) -> int:
        """The parts of a channel whose sums the product leaves on a device of ``units`` multiprocessors: one for each
        work group whose tiles all have the same columns, or one for each tile."""
        groups = self.groups(units)
        if self.tile.fixup:
            return self.m_tiles * len(self.phases)
        same_columns = (groups % self.n_tiles == 0) & (self.m_tiles * self.n_tiles >= groups)
        return (same_columns * (groups // self.n_tiles) + (same_columns ^ True) * self.m_tiles) * len(self.phases)

    @functools.cached_property
    def read_behind(self) -> tuple[str, ...]:
        """The tensors of the result's form that the epilogue reads, where the product finishes results."""
        if self.partial:
            return ()
        names = {"residual": self.problem.residual, "out": self.problem.accumulate, "saved": self.problem.masked}
        return tuple(name for name, is_read in names.items() if is_read)

    @property
    def short_of_registers(self) -> bool:
        """Whether arguments in place of literals would spill registers (``ptxas``, sm_90a: up to 400 bytes). A residual
        of 128 x 256 results then took 1.19 of its time on an H200."""
        return bool(self.read_behind) or len(self.axes) > 2

    @property
    def low(self) -> tuple[int, int, int]:
        """The first source pixel, along (d, h, w), that any tap of any phase reads for output pixel 0."""
        return tuple(reads.start for reads in self.geometry.first_reads)  # type: ignore[return-value]

    @functools.cached_property
    def gathered(self) -> Im2col:
        """The tensor map of the tensor whose pixels taps gather."""
        geo, low = self.geometry, self.low
        upper = tuple(low[a] + (self.count[a] - 1) * geo.step[a] - (geo.source[a] - 1) for a in self.axes)
        pixels = self.tile.bm if self.data else BOX_COLUMNS
        sizes = (geo.c * geo.groups, *(geo.source[a] for a in self.axes), geo.images)
        lower, step = (tuple(each[a] for a in self.axes) for each in (low, geo.step))
        return Im2col(self.problem.dtype, sizes, lower, upper, step, pixels, self.block, self.tile.norm_in_place)

    @functools.cached_property
    def other(self) -> Tiled:
        """The map of the weights, (summed channels, taps, others); in the weights' gradient of dy, (channels,
        pixels)."""
        problem, t = self.problem, self.tile
        if not self.data:
            return Tiled(problem.dtype, (problem.oc, self.n_places), (BOX_COLUMNS, BOX_COLUMNS))
        sizes = (problem.ic // problem.g, math.prod(self.geometry.kernel), problem.oc)
        if self.rewritten_weights:
            sizes = (problem.oc // problem.g, sizes[1], problem.ic)
        box = (BOX_COLUMNS, 1, t.bk) if self.transposed_weights else (t.bk, 1, min(t.bn, self.geometry.m))
        return Tiled(problem.dtype, sizes, box)

    @functools.cached_property
    def behind(self) -> Im2col:
        """The map of each tensor that the epilogue reads, whose columns are the rows of a phase's tiles."""
        geo = self.geometry
        upper = tuple((self.count[a] - 1) * geo.out_step[a] - (geo.target[a] - 1) for a in self.axes)
        sizes = (geo.m * geo.groups, *(geo.target[a] for a in self.axes), geo.images)
        lower, step = (0,) * len(self.axes), tuple(geo.out_step[a] for a in self.axes)
        return Im2col(self.problem.dtype, sizes, lower, upper, step, self.tile.bm, 128 // self.itemsize, True)

    @property
    def maps(self) -> tuple[Map, ...]:
        """The tensor maps of A and of B, and of what the epilogue reads."""
        behind = (self.behind,) * (len(self.read_behind) * self.slices_behind)
        return (*((self.gathered, self.other) if self.data else (self.other, self.gathered)), *behind)

    @property
    def column_boxes(self) -> int:
        """Boxes per K-slice of B; columns beyond the last are not copied."""
        if not self.data:
            return self.tile.bn // self.block
        return -(-min(self.tile.bn, self.geometry.m) // BOX_COLUMNS) if self.transposed_weights else 1

    @property
    def b_box_bytes(self) -> int:
        """Bytes of one box of B."""
        if not self.data:
            return BOX_COLUMNS * self.b_row_bytes
        return self.tile.bk * 128 if self.transposed_weights else self.other.box[-1] * self.row_bytes

    def faults(self) -> Iterator[tuple[Any, str]]:
        """(whether the problem or the tile violates a limit, the limit), each where those before are kept."""
        problem, geo, t, ndim = self.problem, self.geometry, self.tile, len(self.axes)
        is_native = problem.layout == "nhwc" and self.format.name == "native"
        yield not is_native, "16-bit numbers, or float32 ones for TF32, channels last"
        yield self.format.tf32 and not self.data, "forward and data gradient of float32 numbers"
        more = problem.residual or problem.accumulate or problem.sums or problem.norm or self.partial
        yield t.turned and bool(more or not self.data), "channels last, or pixels to which a bias alone is added"
        yield bool(geo.fold or geo.stacked), "eight source channels or more"
        blocks = f"channels in multiples of eight, source channels of several groups in blocks of {self.block}"
        yield geo.c % 8 > 0 or geo.m % 8 > 0 or (geo.groups > 1 and geo.c % self.block > 0), blocks
        yield problem.normalised and t.taps > 0, "first layers without a norm"
        yield not any(phase.volume for phase in geo.phases) or not self.n_places, "nothing is summed"
        box = self.gathered
        corners = (*box.lower, *box.upper)
        is_far = min(corners) < NEAREST_CORNER[ndim] or max(corners) > FARTHEST_CORNER[ndim]
        yield is_far, "padding beyond a map's reach"
        max_offset = max(len(geo.first_reads[axis]) - 1 for axis in self.axes)
        yield max_offset > MAX_OFFSET[ndim] or max(box.step) > MAX_STEP, "taps or steps beyond a map's reach"

        in_turns = t.turns != 0
        is_cut = (t.bm % 64 > 0) | (t.wm * 64 != (128 * in_turns | t.bm * (in_turns ^ True))) | (t.wn != 1) | t.window
        yield is_cut | (t.bn % 32 > 0) | (t.bn > 256), "64 rows a group of warps, columns in multiples of 32"
        has_more = problem.sums or len(self.read_behind) > 0 or t.norm_in_place
        is_plain = self.data and len(self.phases) == 1 and not has_more
        no_turns = (t.split > 1) | (t.bm * t.bn > MAX_TURN) | (not is_plain)
        yield in_turns & no_turns, "turns of small tiles, of whole sums to which nothing is added but a bias"
        is_short = self.row_bytes not in (64, 128) or t.bk * self.itemsize != self.row_bytes
        yield is_short, "slices 64 deep, or channels of 64 or 128 bytes"
        boxed = not self.data or self.transposed_weights
        has_rest = boxed and t.bn * 2 % self.b_row_bytes > 0
        yield (t.block not in (32, BOX_COLUMNS)) | has_rest, "blocks of columns do not fit the tile"
        is_full = self.slices_behind and self.areas * t.bm * 128 > self.stage_bytes
        yield is_full, "more of what the epilogue reads than a slice holds"
        yield self.local_bytes + ALIGNMENT > LOCAL_LIMIT, "{tiling.local_bytes} bytes of local memory"
        yield (t.split > 1) & (t.pixels > 1), "whole sums of folded pixels"
        uncounted = (t.split > self.slices[0]) | (t.fixup and (t.split <= 1) | (t.split > MAX_PARTS))
        yield uncounted, "more parts than slices, or than work groups count"
        # With padding a launch that normalises x before was faster (3x3 of 128 channels at 28x28: 35 us for 45).
        unnormed = not problem.normalised or not self.data or ndim > 2 or any(geo.guarded)
        yield t.norm_in_place and unnormed, "a norm in place of x of two axes without padding, forward"
        # A quarter of a multiprocessor has 512 registers for each lane of its warps, which get them in eights.
        registers = 512 // -(-(t.items + 32) * t.resident // 128) // 8 * 8
        alone, shared = SUMS_REGISTERS[problem.masked]
        summing = (alone + (shared - alone) * (t.resident > 1)) * self.summed
        reading = BEHIND_REGISTERS * (self.slices_behind & (t.resident == 1))
        beside = largest(largest(summing, reading), NORM_REGISTERS * t.norm_in_place)
        spilling = (beside > 0) & (t.bn // 2 + beside > registers)
        yield spilling | is_large(t.bn, t.items, t.resident), "more sums than registers"
        crowded = t.resident * (self.local_bytes + 1024) > LOCAL_LIMIT + 1024
        yield crowded, "more work groups than local memory"


def is_large(bn: Any, items: Any, resident: Any) -> Any:
    """Whether the sums of a tile of ``bn`` columns, and what any product needs beside them, are more registers than its
    ``items`` lanes have."""
    return bn // 2 + 46 > 65536 // (items + 32) // resident


def numbers(tiling: TmaTiling, layout: Layout) -> dict[str, Any]:
    """The numbers that ``product.cl.mako`` names, of NumPy's integer types."""
    geo, t, phase = tiling.geometry, tiling.tile, tiling.phases[0]
    ints = {
        "TILES": tiling.tiles, "N_TILES": tiling.n_tiles, "M_TILES": tiling.m_tiles, "SPLIT": t.split,
        "GROUPS": geo.groups, "SLICES": phase.slices, "BLOCKS": tiling.blocks, "TAPS": phase.volume,
        "LAST_BOX": phase.volume * tiling.blocks - 1,
        "SOURCE": geo.c, "SOURCE_ALL": geo.c * geo.groups, "TARGET": geo.m, "TARGET_ALL": geo.m * geo.groups,
        "CHANNELS": geo.m // t.pixels, "COLUMNS": tiling.n, "PLACES": tiling.n_places,
        "PIXELS": math.prod(tiling.count),
    }  # fmt: skip
    for number, axis in enumerate("DHW"):
        of_axis = {
            "COUNT": tiling.count, "SOURCE": geo.source, "TARGET": geo.target, "STEP": geo.step, "SPREAD": geo.spread,
            "TAP_STEP": geo.tap_step, "KERNEL": geo.kernel, "LOW": tiling.low, "TAPS": phase.taps,
            "OFFSET": phase.offset, "TAP0": phase.tap0,
        }  # fmt: skip
        ints |= {f"{name}_{axis}": values[number] for name, values in of_axis.items()}
    a, b = (tiling.source_name, "w") if tiling.data else ("y", "x")
    # Offsets in the workspace: of operands in 16-bit elements, of the sums of channels in floats, of others in bytes.
    longs = {
        "A_AT": layout.at.get(a, 0) // 2, "B_AT": layout.at.get(b, 0) // 2, "MAPS_AT": layout.maps,
        "SUMS_AT": layout.sums // 4, "PARTS_AT": layout.partial,
        "STATES_AT": layout.partial + tiling.sums * t.split * t.bm * t.bn * 4, "PART_ELEMENTS": tiling.partial_elements,
    }  # fmt: skip
    result: dict[str, Any] = {name: np.int32(value) for name, value in ints.items()}
    return result | {name: np.int64(value) for name, value in longs.items()} | {"MAGIC": parts_magic(tiling)}
