"""Computes every number that the kernels' texts need from a problem and a tile.

Numbers are computed in the order in which they depend on each other. The arithmetic of costs and limits also takes
arrays: then ``tile`` is many tiles of one format, engine, window and stacking, whose other fields are arrays, and the
numbers are arrays too.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ....api.geometry import TensorLayout
from ....api.problem import ConvProblem
from ...plans.norms_and_sums import merged_bytes, summing_bytes
from ..configured import WarpTile, first_fault
from ..geometry import Phase, along, chunks, product_geometry, window
from ..instruction import FORMATS, InstructionText
from ..scales import TOP

PACKING_ITEMS = 2**16
"""The fewest work items that the packing of weights should have; several share a chunk's taps to reach it."""


@dataclass(frozen=True)
class ProductTile(WarpTile):
    """The shape of a work group's tile, and the division of the product; see the head of ``product.cl.mako``."""

    bm: int
    bn: int
    wm: int
    """Warps, or groups of warps that multiply together, along m."""
    wn: int
    format: str
    """A key of ``formats.FORMATS``."""
    engine: str = "mma"
    """A vendor's name of the instruction. ``wgmma`` reads operands from local memory, all others from registers."""
    bk: int = 64
    stages: int = 3
    split: int = 1
    window: bool = False
    """Whether a work group caches a window of source pixels in local memory, from which it reads every tap."""
    stacked: bool = False
    """Whether the phases of a strided data gradient are computed as channels of one product."""
    flush_every: int = 1
    """With ``wgmma``, K-slices after which exact formats move sums to float32 registers; 0: after every 16 of k."""
    norm_in_place: bool = field(default=False, repr=False)
    """Whether x is normalised in local memory by the work items that copied it, or that multiply it; otherwise a launch
    writes its norm before."""
    compensated: bool = False
    """In exact formats, whether the rounding error of a move to float32 registers is added to the next sums."""


@dataclass(unsafe_hash=True)
class Source:
    """A tensor that the product reads as planes of 16-bit channels: [image][pixel][plane][group][8 c8].

    With ``points`` the tensor is transformed tiles, [group][pixel][plane][8 c8], and a group is a point of the tiles.
    """

    name: str
    """The operand's name: x or y."""
    images: int
    groups: int
    c: int
    size: tuple[int, int, int]
    planes: int
    fold: bool = False
    direct: bool = False
    """Whether the caller's tensor itself has this layout, so that it is not packed."""
    points: bool = False

    def __post_init__(self) -> None:
        self.c8 = chunks(self.c)
        # turn: chunks that neighbouring work items write side by side when NCHW is packed to NHWC.
        self.turn = 8 if self.c8 > 4 else 4
        self.pixels = math.prod(self.size)
        # Strides in elements from plane to plane, pixel to pixel, group to group and image to image.
        self.plane = self.c8 * 8 * (1 if self.points else self.groups)
        self.pixel = self.planes * self.plane
        self.group = self.pixels * self.pixel if self.points else self.c8 * 8
        self.image = self.groups * self.group if self.points else self.pixels * self.pixel
        self.axes = (self.size[1] * self.size[2] * self.pixel, self.size[2] * self.pixel, self.pixel)
        self.bytes = 0 if self.direct else self.images * self.image * 2  # bytes of the packed tensor


@dataclass(unsafe_hash=True)
class ProductTiling:
    """The numbers from which ``product.cl.mako`` and ``pack.cl.mako`` are rendered."""

    problem: ConvProblem
    tile: ProductTile

    unshift = 2 * TOP
    """Sum of the exponents that scaling adds to both operands, which the epilogue subtracts."""
    always_partial = False
    """Whether sums go to the workspace even if the sum is not split."""
    narrow_pair = "(narrow(low) | (uint)narrow(high) << 16)"
    """OpenCL expression: two float32 numbers, low and high, in the format's 16-bit type."""
    narrow_relu_pair = ""
    """The same of numbers of which negative ones become 0, where the device has an instruction for it."""
    result_bytes = 0
    """Bytes of a result that begins the workspace, until a launch after the product lays it as the caller wants it."""
    maps_bytes = 0
    """Bytes of tensor maps that the kernel writes for itself."""

    def __post_init__(self) -> None:
        self.format = FORMATS[self.tile.format]
        self.geometry = product_geometry(self.problem, self.tile.stacked)
        # data: whether output pixels are the rows and weights are packed (forward, data gradient).
        self.data = self.problem.direction != "bwd_weights"
        self._arrange()

    def _arrange(self) -> None:
        p, t, geo = self.problem, self.tile, self.geometry
        data, nhwc, planes = self.data, p.layout == "nhwc", self.format.planes
        phases, volume = geo.phases, geo.phases[0].volume
        self.n_places = geo.images * phases[0].places
        # --- Rows, columns and depth of the matrix product.
        self.window = window(geo) if t.window else None
        windowed = self.window is not None
        self.n = geo.m if data else volume * geo.c8 * 8
        rows = (self.window.places if windowed else geo.most_places) if data else geo.m
        self.m_tiles, self.n_tiles = -(-rows // t.bm), -(-self.n // t.bn)
        if not data:
            self.slices: tuple[int, ...] = (-(-self.n_places // t.bk),)
        elif t.window:
            self.slices = (-(-geo.c // t.bk) * volume,)
        else:
            self.slices = tuple(-(-self.depth(phase) * 8 // t.bk) for phase in phases)
        self.work_groups = self.m_tiles * self.n_tiles * t.split * geo.groups * len(phases)
        # --- Local memory of a work group: pipeline stages of K-slices, and two windows of the source.
        # drained: whether a K-slice's sums are in float32 registers before the next slice's products begin.
        self.drained = (t.engine != "wgmma") | (self.format.float32_accurate & (t.flush_every <= 1))
        # under_way: K-slices being copied while one is multiplied; one less if the last slice's buffer is still read.
        self.under_way = t.stages - 2 + self.drained
        self.row_bytes = t.bk * 2 if data else 128  # bytes of a row of A in local memory: a swizzle's width
        self.a_bytes, self.b_bytes = t.bm * t.bk * 2, t.bn * t.bk * 2  # bytes of A and of B per plane and stage
        self.stage_bytes = ((0 if t.window else self.a_bytes) + self.b_bytes) * planes
        # A window of the source has the tile's rows and those that taps reach beyond them, in whole groups of eight.
        self.window_rows = -(-(t.bm + max(self.window.shifts)) // 8) * 8 if windowed else 0
        self.window_bytes = self.window_rows * self.row_bytes
        self.local_bytes = self.stage_bytes * t.stages + 2 * self.window_bytes * planes
        # staging: lines of the results in local memory, and their pitch in elements, which spreads them over banks.
        self.staging = (t.bm, t.bn + 8) if nhwc else (t.bn, t.bm + 4)
        # staged: whether results pass through local memory before they are stored, so that stores are coalesced.
        staged_bytes = self.staging[0] * self.staging[1] * 4 + (t.bm * 8 if nhwc or p.sums else 0)
        self.staged = data and staged_bytes <= self.local_bytes
        # --- Layout of the weights.
        native = self.format.name == "native" and nhwc and data and not p.constant_weights
        plain = native and not geo.fold and not geo.stacked and geo.c % 8 == 0
        # transposable: whether ``wgmma`` can read B with k down its rows, which must be whole swizzles.
        transposable = (t.engine == "wgmma") & (t.bk == 64) & (t.bn // t.wn % 64 == 0)
        transposable = transposable & (geo.m % 8 == 0 and len(phases) == 1)
        # direct_weights: whether the product reads the weights in place (16 bits, NHWC).
        self.direct_weights = (p.direction == "fwd" or transposable) if plain else False
        self.transposed_weights = self.direct_weights if p.direction == "bwd_data" else False
        self.weight_slice = t.bn * t.bk * planes  # elements of a K-slice of packed weights, all planes
        # weight_chunks: the number of chunks of eight source channels per tap.
        self.weight_chunks = -(-geo.c // t.bk) * t.bk // 8 if t.window else geo.c8
        packed_slices = (self.direct_weights ^ True) * geo.groups * sum(self.slices)
        self.weights_bytes = packed_slices * self.n_tiles * self.weight_slice * 2 if data else 0
        icg, taps = p.ic // p.g, math.prod(along(p, "k"))
        inner, tap = (1, icg) if nhwc else (taps, 1)
        # Strides of the weights in elements, along oc, ic, taps and groups, and for NHWC along kd, kh and kw.
        self.weight_strides = icg * taps, inner, tap, p.oc // p.g * icg * taps
        self.kernel_axes = p.kh * p.kw * icg, p.kw * icg, icg
        # --- Partial sums: whether the product writes float32 sums that the kernel ``reduce`` adds.
        self.partial = (t.split > 1) | (not data) | self.always_partial
        self.partial_elements = math.prod(p.out_shape) if data else geo.groups * geo.m * self.n
        self.partial_bytes = self.partial_elements * t.split * 4 * self.partial
        # summed: whether the product leaves the sums of its tiles' channels; parts of a sum over k have none.
        self.summed = (self.partial ^ True) if p.sums else False
        # tap_bits: along each axis, bits that mark the taps inside the source; 0 if no tap is ever outside.
        max_taps = [max(phase.taps[axis] for phase in phases) for axis in range(3)]
        every = tuple(any(geo.guarded) and axis >= 3 - p.ndim for axis in range(3))
        # guarded: axes along which taps are compared with the source's ends: all of them, as far as bits suffice.
        self.guarded = every if sum(max_taps) <= 32 else geo.guarded
        self.tap_bits = tuple(max_taps[axis] if self.guarded[axis] else 0 for axis in range(3))

    def _source(self, name: str, c: int, size: tuple[int, int, int], fold: bool) -> Source:
        problem = self.problem
        direct = self.format.name == "native" and problem.layout == "nhwc" and not fold and c % 8 == 0
        direct = direct and not (name == "x" and problem.normalised and not self.tile.norm_in_place)
        return Source(name, problem.mb, problem.g, c, size, self.format.planes, fold, direct)

    @functools.cached_property
    def source(self) -> Source:
        """The tensor that is read at ``pixel * step + origin + tap * spread``."""
        name = "y" if self.problem.direction == "bwd_data" else "x"
        return self._source(name, self.geometry.c, self.geometry.source, self.geometry.fold)

    @functools.cached_property
    def places(self) -> Source:
        """The tensor over the output pixels that the weights' gradient reads: dy."""
        return self._source("y", self.geometry.m, self.geometry.target, False)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Tensors that are packed before the product."""
        tensors = (self.source,) if self.data else (self.source, self.places)
        return tuple(source for source in tensors if not source.direct)

    @property
    def target(self) -> TensorLayout:
        """The layout of the tensor that forward and data gradient write."""
        return TensorLayout(self.problem.channels_out, self.geometry.target, self.problem.layout == "nhwc")

    def depth(self, phase: Phase) -> int:
        """The number of chunks of eight channels along k in a phase."""
        return phase.volume * self.geometry.c8

    @property
    def sums_parts(self) -> int:
        """The parts of a channel whose sums the product leaves: its tiles."""
        return self.m_tiles * len(self.geometry.phases)

    @property
    def sums_bytes(self) -> int:
        """Bytes of workspace of the channels' sums."""
        if not self.problem.sums:
            return 0
        return merged_bytes(self.problem, self.sums_parts) if self.summed else summing_bytes(self.problem)

    @functools.cached_property
    def tap_parts(self) -> int:
        """Work items that share a chunk's taps while weights are packed, because few chunks leave the device idle."""
        items = self.geometry.groups * self.n_tiles * self.tile.bn * self.weight_chunks
        return max(1, min(max(phase.volume for phase in self.geometry.phases), PACKING_ITEMS // items))

    @property
    def instructions(self) -> InstructionText:
        """The functions that the product calls."""
        raise NotImplementedError

    @property
    def conversions(self) -> InstructionText:
        """The conversions of numbers that packing calls."""
        raise NotImplementedError

    @property
    def index(self) -> str:
        """OpenCL type of offsets in the packed tensors."""
        tensors = (self.source,) if self.data else (self.source, self.places)
        return "int" if max(s.images * s.image for s in tensors) < 2**31 else "long"

    @property
    def out_index(self) -> str:
        """OpenCL type of offsets in the output and its parts."""
        return "int" if self.partial_elements * self.tile.split < 2**31 else "long"

    @property
    def row_mark(self) -> str:
        """OpenCL expression of ``{m}`` and ``{image}``: the index of a row's exponent among A's."""
        return "group * IMAGES + {image}" if self.data else "group * TARGET + {m}"

    @property
    def column_mark(self) -> str:
        """OpenCL expression of the column ``n``, or of its channel ``c``: the index of its exponent among B's."""
        if not self.data:
            return "group * FOLDED + " + ("c - DIVIDED(c, FOLDED) * FOLDED" if self.geometry.fold else "c")
        return "group * CHANNELS + " + ("n - DIVIDED(n, CHANNELS) * CHANNELS" if self.geometry.stacked else "n")

    @property
    def misfit(self) -> str | None:
        """The reason why the tile cannot run this problem; None when it can."""
        return first_fault(self, self.faults())

    def faults(self) -> Iterator[tuple[Any, str]]:
        """Yields (whether a constraint is violated, its message); those after a violated one may be meaningless."""
        t = self.tile
        wgmma, core = t.engine == "wgmma", t.instruction
        undivided = (t.bm % (t.wm * core.m) > 0) | (t.bn % (t.wn * core.step_n) > 0) | ((t.bk != 32) & (t.bk != 64))
        yield undivided, "the tile does not divide into warps"
        if wgmma:
            wide = (t.bm != t.wm * 64) | (t.bn // t.wn > 256)
            yield wide, "a group of warps multiplies 64 rows and at most 256 columns"
        if self.data:
            yield (t.bm * t.bk // 8) % t.items > 0, "the work items do not cover a slice evenly"
        else:
            narrow = wgmma & (t.bn // t.wn % 64 > 0)
            unfit = (t.bm % 64 > 0) | (t.bn % 64 > 0) | (t.bk * 8 % t.items > 0) | narrow
            yield unfit, "blocks of 64 channels do not fit the tile"
        # A work item copies the same chunk of every swizzled row, so its next rows must be a multiple of eight further.
        yield (t.items // (t.bk // 8 if self.data else 8)) % 8 > 0, "the work items do not cover whole swizzles"
        if t.stacked:
            outside = True if self.problem.direction != "bwd_data" else self.staged ^ True
            yield outside, "stacked phases need the data gradient and a tile that passes through local memory"
            yield self.problem.sums, "the columns of stacked phases share their channels"
        if t.norm_in_place:
            unfit = not (self.problem.normalised and self.data and self.source.direct) or t.window
            yield unfit, "a norm in place needs rows of 16-bit channels that the product copies as they are"
        if self.problem.sums or self.problem.masked:
            unstaged = (self.partial ^ True) & (self.staged ^ True)
            yield unstaged, "sums of channels and norms' gradients need a tile that passes through local memory"
        if t.window:
            yield not self.data or self.window is None, "windows need stride 1 and several taps"
            yield self.geometry.phases[0].volume <= self.under_way, "fewer taps than slices in flight"
        elif self.data:
            yield sum(self.tap_bits) > 32, "more than 32 taps along the axes"
        yield self.local_bytes > core.local_limit, "{tiling.local_bytes} bytes of local memory"
        yield self.under_way < 1, "no slice is in flight"
        too_many_parts = functools.reduce(operator.and_, (t.split > slices for slices in (1, *self.slices)))
        yield too_many_parts, "more parts than slices"
        compensated_sums = self.format.float32_accurate & (wgmma | t.compensated)
        yield t.frag_m * t.frag_n * core.sums * (1 + compensated_sums) > core.max_sums, "more sums than registers"
