"""Product: everything about one tiled product that its kernels' text needs, from a problem and a Tile; pure."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import ConvProblem, Geometry, TensorLayout, geometry_of

from .loader import Loader, across, along
from .tile import Tile

_INT = 2**31 - 2**24  # element offsets up to here are ints; the margin covers what padding and ragged tiles overshoot


@dataclass(frozen=True)
class Product:
    """One problem under one Tile; what is arithmetic also takes a tile whose numbers are arrays."""

    problem: ConvProblem
    tile: Tile

    @functools.cached_property
    def geometry(self) -> Geometry:
        """What places of the target read."""
        return geometry_of(self.problem)

    @property
    def data(self) -> bool:
        """Forward or data gradient; otherwise the weights' gradient."""
        return self.problem.direction != "bwd_weights"

    @property
    def accsize(self) -> int:
        """Bytes of a sum."""
        return 8 if self.problem.dtype == "float64" else 4

    @property
    def split(self) -> int:
        """Parts of the sum."""
        return self.tile.split

    # --- k: slices ---------------------------------------------------------------------------------------------------

    @property
    def taps_in_slice(self) -> bool:
        """Whether a slice holds taps of one channel."""
        return self.data and self.tile.walk == "taps"

    @property
    def flat(self) -> bool:
        """Whether the weights' columns run over channels and taps."""
        return self.tile.walk == "flat"

    @functools.cached_property
    def run(self) -> tuple[int, int, int] | None:
        """Taps of a slice along each axis, where slices hold taps."""
        return tap_run(self.geometry)

    @functools.cached_property
    def walked(self) -> tuple[bool, ...]:
        """Axes along which the tap moves from slice to slice."""
        most = [max(phase.taps[axis] for phase in self.geometry.phases) for axis in range(3)]
        if self.taps_in_slice:
            return tuple(taps > run for taps, run in zip(most, self.run, strict=True))
        return tuple(taps > 1 for taps in most)

    @property
    def runs(self) -> int:
        """Slices of a channel, where slices hold taps."""
        return self.geometry.volume // math.prod(self.run)

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:
        """Slices of each phase."""
        geo, bk = self.geometry, self.tile.bk
        if not self.data:
            return (-(-self.n_places // bk),)
        if self.taps_in_slice:
            return (geo.c * self.runs,)
        return tuple(-(-geo.c // bk) * phase.volume for phase in geo.phases)

    @property
    def slices_all(self) -> int:
        """Slices of all phases."""
        return sum(self.slices)

    @property
    def slices_before(self) -> tuple[int, ...]:
        """Slices of the phases before each."""
        return tuple(sum(self.slices[:number]) for number in range(len(self.slices)))

    def slot_tap(self, k: int) -> tuple[int, int, int]:
        """The tap, relative to the slice's first, at place ``k`` of a slice of taps."""
        _, high, wide = self.run
        return k // (high * wide), k // wide % high, k % wide

    def slot_offset(self, k: int) -> int:
        """Source elements from a slice's first tap to the tap at place ``k``."""
        geo = self.geometry
        return sum(t * d * s for t, d, s in zip(self.slot_tap(k), geo.spread, geo.source.axes, strict=True))

    @property
    def c_ragged(self) -> bool:
        """Whether the last slice has channels that do not exist."""
        return not self.taps_in_slice and self.geometry.c % self.tile.bk > 0

    @property
    def c_padded(self) -> int:
        """Channels of packed weights."""
        return self.geometry.c if self.taps_in_slice else -(-self.geometry.c // self.tile.bk) * self.tile.bk

    # --- m and n -----------------------------------------------------------------------------------------------------

    @property
    def n_places(self) -> int:
        """Places of all images."""
        return self.geometry.images * self.geometry.target.pixels

    @property
    def n(self) -> int:
        """Columns: places of a single phase, or channels times taps."""
        geo = self.geometry
        return geo.images * geo.phases[0].places if self.data else geo.c * geo.volume

    @property
    def m_tiles(self) -> int:
        """Tiles along m."""
        return -(-self.geometry.m // self.tile.bm)

    @property
    def n_tiles(self) -> int:
        """Tiles along n (of the largest phase)."""
        geo, bn = self.geometry, self.tile.bn
        if self.data:
            return -(-geo.most_places // bn)
        return -(-self.n // bn) if self.flat else geo.volume * -(-geo.c // bn)

    @property
    def work_groups(self) -> int:
        """Work groups of the launch."""
        geo = self.geometry
        return self.m_tiles * self.n_tiles * self.split * geo.groups * len(geo.phases)

    @functools.cached_property
    def guarded(self) -> tuple[bool, ...]:
        """Axes along which a tap can fall outside the source."""
        return tuple(not self.geometry.inside(axis) for axis in range(3))

    # --- operands ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def a(self) -> Loader:
        """The target as the left operand of the weights' gradient."""
        geo, t = self.geometry, self.tile
        if geo.target.nhwc:
            return across("a", t.bm, t.bk, t.items, geo.m % 4 == 0)
        return along("a", t.bm, t.bk, t.items, geo.target.pixels % 4 == 0)

    @functools.cached_property
    def b(self) -> Loader:
        """The source as the right operand."""
        geo, t = self.geometry, self.tile
        nhwc, four = geo.source.nhwc, geo.source.pixels % 4 == 0
        if self.data and not nhwc:
            return across("b", t.bn, t.bk, t.items, geo.pointwise and four)
        if self.data:
            if self.taps_in_slice:
                return across("b", t.bn, t.bk, t.items, False)
            return along("b", t.bn, t.bk, t.items, geo.c % 4 == 0)
        if nhwc:
            return across("b", t.bn, t.bk, t.items, geo.c % 4 == 0 and not self.flat)
        return along("b", t.bn, t.bk, t.items, geo.pointwise and four and not self.flat)

    @property
    def a_slots(self) -> int:
        """Vectors of packed weights that an item copies a slice."""
        return -(-self.tile.bk * self.tile.bm // 4 // self.tile.items)

    @property
    def a_pitch(self) -> int:
        """Elements from row to row of A's slice."""
        return self.tile.bm if self.data else self.a.pitch

    @property
    def weight_strides(self) -> tuple[int, int, int]:
        """Element strides of the weights along m, channel and tap."""
        return weight_strides(self.problem)

    def weight_group(self, group: str) -> str:
        """Where a group's weights begin, as text."""
        return f"(long){group} * {self.geometry.m * self.geometry.c * self.geometry.volume}"

    # --- memory ------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> str:
        """Type of element offsets in the tensors that are read."""
        geo = self.geometry
        most = geo.images * max(geo.source.image, 0 if self.data else geo.target.image)
        return element_index(most)

    @property
    def out_index(self) -> str:
        """Type of element offsets in the output and the partial sums."""
        return element_index(self.out_size * self.split)

    @property
    def out_size(self) -> int:
        """Elements of the output."""
        return math.prod(self.problem.out_shape)

    @property
    def packed_size(self) -> int:
        """Bytes of packed weights."""
        if not self.data:
            return 0
        return self.geometry.groups * self.slices_all * self.m_tiles * self.tile.bk * self.tile.bm * self.accsize

    @property
    def partial(self) -> bool:
        """Whether the kernel leaves partial sums for ``reduce``."""
        return (self.split > 1) | (not self.data)

    @property
    def partial_size(self) -> int:
        """Bytes of partial sums."""
        return self.split * self.out_size * self.accsize * self.partial

    @property
    def local_size(self) -> int:
        """Bytes of local memory."""
        return self.tile.stages * self.tile.bk * (self.a_pitch + self.b.pitch) * self.accsize

    @property
    def out_plain(self) -> bool:
        """Whether places of the output are its pixels in order."""
        return len(self.geometry.phases) == 1 and self.geometry.out_step == (1, 1, 1)

    @property
    def out_vector(self) -> str | None:
        """Along which side four neighbouring results are one vector in memory."""
        target = self.geometry.target
        if target.nhwc:
            return "m" if self.geometry.m % 4 == 0 else None
        return "n" if self.out_plain and target.pixels % 4 == 0 else None

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(row, column) of the item's tile in the order of the multiply-adds."""
        t = self.tile
        columns = list(range(t.tn))
        if t.order == "parity":
            columns = columns[::2] + columns[1::2]
        turns = t.order != "rows"
        return [(m, n) for m in range(t.tm) for n in (columns[::-1] if turns and m % 2 else columns)]

    @property
    def unroll(self) -> str:
        """The pragma before the loop over a slice."""
        return f"#pragma unroll {self.tile.unroll}" if self.tile.unroll else "#pragma unroll"

    @property
    def misfit(self) -> str | None:
        """Why the tile cannot run this problem; None when it can."""
        t = self.tile
        if t.bm % t.tm or t.bn % t.tn or t.tm % 4 or t.tn % 4 or t.items < 1:
            return "the tile does not divide into work items"
        columns, rows = t.bn // t.tn, t.bm // t.tm
        wide = min(t.ln, columns)
        if columns % wide or rows % max(1, min(32 // wide, rows)):
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


def element_index(elements: int) -> str:
    """OpenCL type of offsets below ``elements``."""
    return "int" if elements < _INT else "long"


def weight_strides(problem: ConvProblem) -> tuple[int, int, int]:
    """Element strides of a group's weights along the written tensor's channels, the read one's, and taps."""
    w = TensorLayout.of(problem, "w")
    return (w.image, w.channel, w.axes[2]) if problem.direction == "fwd" else (w.channel, w.image, w.axes[2])


def tap_run(geo: Geometry) -> tuple[int, int, int] | None:
    """Taps of a slice along each axis when it holds whole rows of one channel's taps; None when they do not fit."""
    if len(geo.phases) != 1:
        return None
    kz, ky, kx = geo.kernel
    best = None
    for run in ((1, 1, kx), (1, ky, kx), (kz, ky, kx)):
        if math.prod(run) <= 16:
            best = run
    return best
