"""The sizes, loaders and offsets of one tiled product, from which its kernel's text and its cost are computed."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem, Geometry, TensorLayout, geometry_of, merged_bytes, summing_bytes
from convdispatch.api.matrix import Configured

MAX_INT_OFFSET = 2**31 - 2**24
"""Offsets below this limit have the OpenCL type int; the margin to 2**31 is for padding and partial tiles."""


@dataclass(unsafe_hash=True)
class Product:
    """The sizes of one problem under one Tile. The tile's numbers may be arrays if only its cost is computed."""

    problem: ConvProblem
    tile: Tile

    def __post_init__(self) -> None:
        problem, tile = self.problem, self.tile
        self.geometry = geo = geometry_of(problem)
        self.data = problem.direction != "bwd_weights"
        self.accsize = problem.accumulator_size
        self.taps_in_slice = self.data and tile.walk == "taps"
        self.flat = tile.walk == "flat"
        self.split = tile.split
        self.n_places = geo.images * geo.target.pixels
        self.n = geo.images * geo.phases[0].places if self.data else geo.c * geo.volume
        """Columns of the product: target pixels of one phase, or channels times taps in the weights' gradient."""
        self.m_tiles = -(-geo.m // tile.bm)
        self.c_padded = geo.c if self.taps_in_slice else -(-geo.c // tile.bk) * tile.bk
        """Channels of the packed weights, padding included."""
        self.c_ragged = not self.taps_in_slice and geo.c % tile.bk > 0
        self.out_size = math.prod(problem.out_shape)
        self.partial = (tile.split > 1) | (not self.data)
        """Whether the kernel writes partial sums, which the kernel ``reduce`` adds."""
        self.partial_size = tile.split * self.out_size * self.accsize * self.partial
        self.weight_strides = weight_strides(problem)
        self.reordered = not self.data and not self.flat and problem.layout == "nchw" and geo.volume > 1
        """Whether the parts' order of a filter, (tap, channel), is not the weights' own."""
        self.out_plain = len(geo.phases) == 1 and geo.out_step == (1, 1, 1)
        """Whether the columns of the product are the output's pixels in order (no stride between them)."""

    @property
    def norm(self) -> bool:
        """Whether the source is normalised as it is loaded."""
        return self.problem.norm is not None and not self.problem.masked

    @property
    def sums(self) -> bool:
        """Whether each work group leaves the sums of its part of the channels; where sums over k are split none can."""
        return self.problem.sums and self.split == 1

    @property
    def sums_parts(self) -> int:
        """Number of parts of a channel: the work groups that share it."""
        return self.n_tiles * len(self.geometry.phases)

    @property
    def sums_size(self) -> int:
        """Bytes of workspace of the channels' sums."""
        if not self.problem.sums:
            return 0
        return merged_bytes(self.problem, self.sums_parts) if self.sums else summing_bytes(self.problem)

    @functools.cached_property
    def run(self) -> tuple[int, int, int] | None:
        """Taps of a slice along each axis if slices contain taps; None if whole rows of taps do not fit a slice."""
        return tap_run(self.geometry)

    @functools.cached_property
    def walked(self) -> tuple[bool, ...]:
        """For each axis whether the tap changes along it from slice to slice."""
        max_taps = [max(phase.taps[axis] for phase in self.geometry.phases) for axis in range(3)]
        if self.taps_in_slice:
            return tuple(taps > run for taps, run in zip(max_taps, self.run, strict=True))
        return tuple(taps > 1 for taps in max_taps)

    @property
    def runs(self) -> int:
        """Number of slices of one channel, if slices contain taps."""
        return self.geometry.volume // math.prod(self.run)

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:
        """Number of slices of each phase."""
        geo, bk = self.geometry, self.tile.bk
        if not self.data:
            return (-(-self.n_places // bk),)
        if self.taps_in_slice:
            return (geo.c * self.runs,)
        return tuple(-(-geo.c // bk) * phase.volume for phase in geo.phases)

    @property
    def slices_all(self) -> int:
        """Number of slices of all phases."""
        return sum(self.slices)

    @property
    def n_tiles(self) -> int:
        """Number of tiles along n in the largest phase."""
        geo, bn = self.geometry, self.tile.bn
        if self.data:
            return -(-geo.most_places // bn)
        return -(-self.n // bn) if self.flat else geo.volume * -(-geo.c // bn)

    @property
    def work_groups(self) -> int:
        """Number of work groups in the launch."""
        geo = self.geometry
        return self.m_tiles * self.n_tiles * self.split * geo.groups * len(geo.phases)

    @functools.cached_property
    def guarded(self) -> tuple[bool, ...]:
        """For each axis whether a tap can read outside the source along it."""
        return tuple(not self.geometry.inside(axis) for axis in range(3))

    @functools.cached_property
    def a(self) -> Loader:
        """Loader of the target as the left operand of the weights' gradient."""
        geo, t = self.geometry, self.tile
        if geo.target.nhwc:
            return across("a", t.bm, t.bk, t.items, geo.m % 4 == 0)
        return along("a", t.bm, t.bk, t.items, geo.target.pixels % 4 == 0)

    @functools.cached_property
    def b(self) -> Loader:
        """Loader of the source as the right operand."""
        geo, t = self.geometry, self.tile
        nhwc, quads = geo.source.nhwc, geo.source.pixels % 4 == 0
        if self.data and not nhwc:
            return across("b", t.bn, t.bk, t.items, geo.pointwise and quads)
        if self.data:
            if self.taps_in_slice:
                return across("b", t.bn, t.bk, t.items, False)
            return along("b", t.bn, t.bk, t.items, geo.c % 4 == 0)
        if nhwc:
            return across("b", t.bn, t.bk, t.items, geo.c % 4 == 0 and not self.flat)
        return along("b", t.bn, t.bk, t.items, geo.pointwise and quads and not self.flat)

    @property
    def a_pitch(self) -> int:
        """Elements from row to row of A's slice."""
        return self.tile.bm if self.data else self.a.pitch

    @property
    def index(self) -> str:
        """OpenCL type of element offsets in the tensors that are read."""
        geo = self.geometry
        max_offset = geo.images * max(geo.source.image, 0 if self.data else geo.target.image)
        return element_index(max_offset)

    @property
    def out_index(self) -> str:
        """OpenCL type of element offsets in the output and the partial sums."""
        return element_index(self.out_size * self.split)

    @property
    def packed_size(self) -> int:
        """Bytes of packed weights."""
        if not self.data:
            return 0
        return self.geometry.groups * self.slices_all * self.m_tiles * self.tile.bk * self.tile.bm * self.accsize

    @property
    def local_size(self) -> int:
        """Bytes of local memory that a work group needs."""
        slices = self.tile.stages * self.tile.bk * (self.a_pitch + self.b.pitch)
        sums = 2 * self.tile.bm * (self.tile.bn // self.tile.tn) if self.sums else 0
        return max(slices, sums) * self.accsize

    @property
    def out_vector(self) -> str | None:
        """The side (m or n) along which four consecutive results are contiguous and aligned in memory, or None."""
        target = self.geometry.target
        if target.nhwc:
            return "m" if self.geometry.m % 4 == 0 else None
        return "n" if self.out_plain and target.pixels % 4 == 0 else None

    @property
    def misfit(self) -> str | None:
        """Why the tile cannot run this problem; None when it can."""
        t = self.tile
        if t.bm % t.tm or t.bn % t.tn or t.tm % 4 or t.tn % 4 or t.items < 1:
            return "the tile does not divide into work items"
        columns, rows = t.bn // t.tn, t.bm // t.tm
        warp_columns = min(t.ln, columns)
        if columns % warp_columns or rows % max(1, min(32 // warp_columns, rows)):
            return "the work items do not divide into warps"
        if not self.b.fits or (not self.data and not self.a.fits):
            return "the work items do not cover a slice evenly"
        if self.taps_in_slice:
            if self.run is None:
                return "no row of taps fits into a slice"
            if t.bk != math.prod(self.run):
                return f"a slice of taps is {math.prod(self.run)} deep, got {t.bk}"
            if self.b.k_slots != t.bk:
                return "a slice of taps needs work items side by side"
        if t.split > max(1, *self.slices):
            return "more parts than slices"
        return None


def most_columns(problem: ConvProblem) -> int:
    """The most columns or summed places that the product has; kernels count them in the type int."""
    geo = geometry_of(problem)
    if problem.direction == "bwd_weights":
        return max(geo.images * geo.target.pixels, geo.c * geo.volume)
    return geo.most_places


def element_index(elements: int) -> str:
    """Return the OpenCL type of offsets below ``elements``."""
    return "int" if elements < MAX_INT_OFFSET else "long"


def weight_strides(problem: ConvProblem) -> tuple[int, int, int]:
    """Element strides of a group's weights along channels of the written tensor, channels of the read one, and taps."""
    w = TensorLayout.of(problem, "w")
    return (w.image, w.channel, w.axes[2]) if problem.direction == "fwd" else (w.channel, w.image, w.axes[2])


def tap_run(geo: Geometry) -> tuple[int, int, int] | None:
    """Taps of a slice along each axis if it contains whole rows of one channel's taps; None if they do not fit."""
    if len(geo.phases) != 1:
        return None
    kz, ky, kx = geo.kernel
    best = None
    for run in ((1, 1, kx), (1, ky, kx), (kz, ky, kx)):
        if math.prod(run) <= 16:
            best = run
    return best


@dataclass(unsafe_hash=True)
class Loader:
    """How the work items of a group cover a BK x BX slice of a tensor, and in which vectors they load it.

    ``kf`` consecutive items are along k, then ``xl`` along x, the rest along k again; each item loads ``vk`` elements
    along k, or ``vx`` along x, as one vector.
    """

    letter: str
    bx: int
    bk: int
    items: int
    kf: int = 1
    xl: int = 1
    vx: int = 1
    vk: int = 1

    def __post_init__(self) -> None:
        self.kh = self.items // max(1, self.kf * self.xl)
        # A work item's loads (slots) along k and along x, and the elements that all work items of a group load in one.
        self.k_step, self.x_step = self.kf * self.kh * self.vk, self.xl * self.vx
        self.k_slots, self.x_slots = self.bk // max(1, self.k_step), self.bx // max(1, self.x_step)
        self.vec = self.vx == 4 or self.vk == 4
        self.type = "ACC4" if self.vec else "ACC"
        self.pitch = self.bx + (4 if self.kf > 1 else 0)
        """Elements from row to row of the slice; 4 more if consecutive items write to consecutive rows."""

    @property
    def fits(self) -> bool:
        """Whether the work items cover the slice evenly."""
        if self.kf < 1 or self.xl < 1 or self.items % (self.kf * self.xl):
            return False
        return self.bk % self.k_step == 0 and self.bx % self.x_step == 0


def across(letter: str, bx: int, bk: int, items: int, wide: bool) -> Loader:
    """Return a loader whose consecutive work items are along x, for tensors in which x is contiguous."""
    vx = 4 if wide else 1
    return Loader(letter, bx, bk, items, 1, min(items, bx // vx), vx, 1)


def along(letter: str, bx: int, bk: int, items: int, wide: bool) -> Loader:
    """Return a loader whose consecutive items are along k, so few that a warp writes to different banks."""
    vk = 4 if wide and bk % 4 == 0 else 1
    units = bk // vk
    kf = math.gcd(units, 2 if vk == 4 else 8)
    kh = units // kf
    while kh > 1 and (items % (kf * kh) or items // (kf * kh) > bx or bx % (items // (kf * kh))):
        kh = next(k for k in range(kh - 1, 0, -1) if units // kf % k == 0)
    return Loader(letter, bx, bk, items, kf, min(bx, items // (kf * kh)), 1, vk)


@dataclass(frozen=True)
class Tile(Configured):
    """One configuration of the tiled product; ``product.cl.mako`` explains it."""

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    ln: int = 8
    stages: int = 2
    split: int = 1
    walk: str = "channels"
    """Rows of a slice. Forward and data gradient: ``channels`` of one tap, or (with few channels) ``taps`` of one
    channel. Weights' gradient: pixels; a tile's columns are ``channels`` of one tap or run ``flat`` over both."""
    order: str = "parity"
    """Order in which a step's multiply-adds are written, which the compiler mostly preserves: ``rows`` of the item's
    tile, or rows in alternating direction with even columns before odd ones (``parity``). Consecutive multiply-adds
    that share an operand save a read of the register file."""

    @property
    def items(self) -> int:
        """Work items in a work group."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(row, column) of each sum of a work item's tile, in the order of the multiply-adds."""
        if self.order == "rows":
            return [(m, n) for m in range(self.tm) for n in range(self.tn)]
        columns = [*range(0, self.tn, 2), *range(1, self.tn, 2)]
        return [(m, n) for m in range(self.tm) for n in (columns[::-1] if m % 2 else columns)]
