"""Tiling: a problem and a tile, and every number that the kernels' texts need of the two.

What costs and limits ask is arithmetic that also takes arrays: then ``tile`` stands for many tiles of one format,
engine, window and stacking, whose other fields are arrays, and so are the answers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from convdispatch.api import ConvProblem, TensorLayout

from ..configured import first_fault
from ..formats import FORMATS, Format
from ..geometry import Phase, ProductGeometry, SourceWindow, along, product_geometry, window
from ..hopper import LOCAL_LIMIT
from ..instructions import Instructions, Wgmma
from ..scales import TOP
from .source import Source
from .tile import Tile

_INT, _PACKERS = 2**31, 2**16


@dataclass(frozen=True)
class Tiling:
    """What ``product.cl.mako`` and ``pack.cl.mako`` are rendered from."""

    problem: ConvProblem
    tile: Tile

    @functools.cached_property
    def geometry(self) -> ProductGeometry:
        """The problem's geometry."""
        return product_geometry(self.problem, self.tile.stacked)

    @property
    def format(self) -> Format:
        """How values are split."""
        return FORMATS[self.tile.format]

    @property
    def data(self) -> bool:
        """Whether places are rows and the weights are packed (forward, data gradient)."""
        return self.problem.direction != "bwd_weights"

    # --- operands ----------------------------------------------------------------------------------------------------

    def _source(self, name: str, c: int, size: tuple[int, int, int], fold: bool) -> Source:
        problem = self.problem
        direct = self.format.name == "native" and problem.layout == "nhwc" and not fold and c % 8 == 0
        return Source(name, problem.mb, problem.g, c, size, self.format.planes, fold, direct)

    @functools.cached_property
    def source(self) -> Source:
        """The tensor that is read at ``place * step + origin + tap * spread``."""
        name = "y" if self.problem.direction == "bwd_data" else "x"
        return self._source(name, self.geometry.c, self.geometry.source, self.geometry.fold)

    @functools.cached_property
    def places(self) -> Source:
        """The tensor over the places that the weights' gradient reads: dy."""
        return self._source("y", self.geometry.m, self.geometry.target, False)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Tensors that are packed."""
        both = (self.source,) if self.data else (self.source, self.places)
        return tuple(source for source in both if not source.direct)

    @property
    def target(self) -> TensorLayout:
        """What the data directions write."""
        return TensorLayout(self.problem.channels_out, self.geometry.target, self.problem.layout == "nhwc")

    @functools.cached_property
    def window(self) -> SourceWindow:
        """Padded positions, for tiles that keep a window."""
        return window(self.geometry)

    @property
    def window_rows(self) -> int:
        """Rows of a window: a tile's and as many as the taps reach beyond, in whole groups of eight."""
        return -(-(self.tile.bm + max(self.window.shifts)) // 8) * 8

    @property
    def window_bytes(self) -> int:
        """Bytes of a plane of a window."""
        return self.window_rows * self.row_bytes if self.tile.window else 0

    # --- rows, columns, depth ----------------------------------------------------------------------------------------

    @property
    def n_places(self) -> int:
        """Places of all images."""
        return self.geometry.images * self.geometry.phases[0].places

    @property
    def n(self) -> int:
        """Columns: target channels, or chunks of eight source channels of every tap."""
        return self.geometry.m if self.data else self.geometry.phases[0].volume * self.geometry.c8 * 8

    @property
    def m_tiles(self) -> int:
        """Tiles along m: places, or target channels."""
        rows = (self.window.places if self.tile.window else self.geometry.most_places) if self.data else self.geometry.m
        return -(-rows // self.tile.bm)

    @property
    def n_tiles(self) -> int:
        """Tiles along n."""
        return -(-self.n // self.tile.bn)

    def depth(self, phase: Phase) -> int:
        """Chunks of eight along k in a phase."""
        return phase.volume * self.geometry.c8

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:
        """Slices of each phase."""
        if not self.data:
            return (-(-self.n_places // self.tile.bk),)
        if self.tile.window:
            return (-(-self.geometry.c // self.tile.bk) * self.geometry.phases[0].volume,)
        return tuple(-(-self.depth(phase) * 8 // self.tile.bk) for phase in self.geometry.phases)

    @property
    def before(self) -> tuple[int, ...]:
        """Slices of the phases before each."""
        return tuple(sum(self.slices[:number]) for number in range(len(self.slices)))

    @property
    def work_groups(self) -> int:
        """Work groups of the product."""
        return self.m_tiles * self.n_tiles * self.tile.split * self.geometry.groups * len(self.geometry.phases)

    # --- local memory ------------------------------------------------------------------------------------------------

    @property
    def drained(self) -> bool:
        """Whether a slice's sums are in float32 registers before the next slice's products begin."""
        return (self.tile.engine == "mma") | (self.format.float32_accurate & (self.tile.flush_every <= 1))

    @property
    def under_way(self) -> int:
        """Slices whose copies are in flight while one is multiplied; unsettled, the one before is still read."""
        return self.tile.stages - 2 + self.drained

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of local memory: a swizzle's width."""
        return self.tile.bk * 2 if self.data else 128

    @property
    def a_bytes(self) -> int:
        """Bytes of a plane of A in a stage."""
        return self.tile.bm * self.tile.bk * 2

    @property
    def b_bytes(self) -> int:
        """Bytes of a plane of B in a stage."""
        return self.tile.bn * self.tile.bk * 2

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return ((0 if self.tile.window else self.a_bytes) + self.b_bytes) * self.format.planes

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory."""
        return self.stage_bytes * self.tile.stages + 2 * self.window_bytes * self.format.planes

    @property
    def staged(self) -> bool:
        """Whether results pass through local memory on their way out, so that neighbours write neighbours."""
        places = self.tile.bm * 8 if self.target.nhwc else 0
        return self.data and self.staging[0] * self.staging[1] * 4 + places <= self.local_bytes

    @property
    def staging(self) -> tuple[int, int]:
        """Lines of the results in local memory, and the elements from line to line, which spread over the banks."""
        t = self.tile
        return (t.bm, t.bn + 8) if self.target.nhwc else (t.bn, t.bm + 4)

    # --- workspace ---------------------------------------------------------------------------------------------------

    @property
    def weight_slice(self) -> int:
        """Elements of a slice of packed weights, all planes."""
        return self.tile.bn * self.tile.bk * self.format.planes

    @property
    def weight_chunks(self) -> int:
        """Chunks of eight source channels that weights are packed for."""
        return -(-self.geometry.c // self.tile.bk) * self.tile.bk // 8 if self.tile.window else self.geometry.c8

    @functools.cached_property
    def tap_parts(self) -> int:
        """Work items that share a chunk's taps while weights are packed: few chunks would wait for tap after tap."""
        items = self.geometry.groups * self.n_tiles * self.tile.bn * self.weight_chunks
        return max(1, min(max(phase.volume for phase in self.geometry.phases), _PACKERS // items))

    @functools.cached_property
    def direct_weights(self) -> bool:
        """Whether the product reads the weights where they lie: 16 bits, channels last."""
        native = self.format.name == "native" and self.problem.layout == "nhwc" and not self.problem.constant_weights
        if not native or not self.data or self.geometry.fold or self.geometry.stacked or self.geometry.c % 8:
            return False
        return self.problem.direction == "fwd" or self._turns

    @property
    def _turns(self) -> bool:
        t = self.tile
        fits = (t.engine == "wgmma") & (t.bk == 64) & (t.bn // t.wn % 64 == 0)
        return fits & (self.geometry.m % 8 == 0 and len(self.geometry.phases) == 1)

    @property
    def transposed_weights(self) -> bool:
        """Whether they lie with k down the rows (data gradient): tensor cores then take B transposed."""
        return self.direct_weights and self.problem.direction == "bwd_data"

    @property
    def instructions(self) -> Instructions:
        """What the product calls."""
        if self.tile.engine == "mma":
            return Instructions(self.format.type, ("copies", "mma"))
        return Instructions(self.format.type, ("copies",), self._wgmma)

    @property
    def _wgmma(self) -> Wgmma:
        along = self.data and not self.transposed_weights  # k runs along B's rows
        return Wgmma(self.tile.bn // self.tile.wn, not self.data, not along, self.row_bytes)

    @property
    def weights_bytes(self) -> int:
        """Bytes of packed weights."""
        if not self.data:
            return 0
        packed = self.direct_weights ^ True
        return packed * self.geometry.groups * sum(self.slices) * self.n_tiles * self.weight_slice * 2

    @property
    def partial(self) -> bool:
        """Whether the product leaves float32 sums for ``reduce``."""
        return (self.tile.split > 1) | (not self.data)

    @property
    def partial_elements(self) -> int:
        """Elements of one part."""
        if self.data:
            return math.prod(self.problem.out_shape)
        return self.geometry.groups * self.geometry.m * self.n

    @property
    def partial_bytes(self) -> int:
        """Bytes of all parts."""
        return self.partial_elements * self.tile.split * 4 * self.partial

    @property
    def maps_bytes(self) -> int:
        """Bytes of tensor maps that the kernel writes for itself."""
        return 0

    # --- text --------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> str:
        """OpenCL type of offsets in the packed tensors."""
        both = (self.source,) if self.data else (self.source, self.places)
        return "int" if max(s.images * s.image for s in both) < _INT else "long"

    @property
    def out_index(self) -> str:
        """OpenCL type of offsets in the output and its parts."""
        return "int" if self.partial_elements * self.tile.split < _INT else "long"

    def row_mark(self, m: str, per: str) -> str:
        """OpenCL expression: which of A's marks a row has; ``per`` are the places of an image."""
        if not self.data:
            return f"group * {self.geometry.m} + {m}"
        image = f"min({m} / {self.window.image}, {self.problem.mb - 1})" if self.tile.window else f"{m} / {per}"
        return f"group * {self.problem.mb} + {image}"

    def column_mark(self, n: str) -> str:
        """OpenCL expression: which of B's marks a column has."""
        channels = (self.problem.channels_out if self.data else self.problem.ic) // self.problem.g
        if not self.data:
            n = f"min({n} % {self.geometry.c8 * 8}, {self.geometry.c - 1})"
        return f"group * {channels} + {n} % {channels}"

    @property
    def unshift(self) -> int:
        """Exponents that scaled operands have in common."""
        return 2 * TOP

    @functools.cached_property
    def guarded(self) -> tuple[bool, ...]:
        """Axes along which a tap can fall outside the source."""
        return self.geometry.guarded

    @functools.cached_property
    def tap_bits(self) -> tuple[int, int, int]:
        """Bits that tell which taps along an axis lie inside, for the guarded axes."""
        most = [max(phase.taps[axis] for phase in self.geometry.phases) for axis in range(3)]
        return tuple(most[axis] if self.guarded[axis] else 0 for axis in range(3))

    @property
    def weight_strides(self) -> tuple[int, int, int, int]:
        """Elements from weight to weight along oc, ic, tap; and of a group."""
        problem = self.problem
        icg, taps = problem.ic // problem.g, math.prod(along(problem, "k"))
        inner, tap = (1, icg) if problem.layout == "nhwc" else (taps, 1)
        return icg * taps, inner, tap, problem.oc // problem.g * icg * taps

    @property
    def kernel_axes(self) -> tuple[int, int, int]:
        """Elements from tap to tap of the kernel along d, h, w, channels last."""
        inner = self.problem.ic // self.problem.g
        return (self.problem.kh * self.problem.kw * inner, self.problem.kw * inner, inner)

    @property
    def misfit(self) -> str | None:
        """Why the tile cannot run this problem; None when it can."""
        return first_fault(self, self.faults())

    def faults(self) -> Iterator[tuple[Any, str]]:
        """Whether something is wrong, and what; what comes later may be asked where nothing was wrong before."""
        t = self.tile
        wgmma = t.engine == "wgmma"
        warp_m, warp_n = (64, 8) if wgmma else (16, 16)
        undivided = (t.bm % (t.wm * warp_m) > 0) | (t.bn % (t.wn * warp_n) > 0) | ((t.bk != 32) & (t.bk != 64))
        yield undivided, "the tile does not divide into warps"
        if wgmma:
            yield (
                (t.bm != t.wm * 64) | (t.bn // t.wn > 256),
                "a group of warps multiplies 64 rows and at most 256 columns",
            )
        if self.data:
            yield (t.bm * t.bk // 8) % t.items > 0, "the work items do not cover a slice evenly"
        else:
            narrow = wgmma & (t.bn // t.wn % 64 > 0)
            unfit = (t.bm % 64 > 0) | (t.bn % 64 > 0) | (t.bk * 8 % t.items > 0) | narrow
            yield unfit, "blocks of 64 channels do not fit the tile"
        if t.stacked:
            outside = True if self.problem.direction != "bwd_data" else self.staged ^ True
            yield outside, "stacked phases need the data gradient and a tile that passes through local memory"
        if t.window:
            yield not self.data or window(self.geometry) is None, "windows need stride 1 and several taps"
            yield self.geometry.phases[0].volume <= self.under_way, "fewer taps than slices in flight"
        elif self.data:
            yield sum(self.tap_bits) > 32, "more than 32 taps along the axes"
        yield self.local_bytes > LOCAL_LIMIT, "{tiling.local_bytes} bytes of local memory"
        yield self.under_way < 1, "no slice is in flight"
        more = functools.reduce(operator.and_, (t.split > each for each in (1, *self.slices)))
        yield more, "more parts than slices"
        moved = self.format.float32_accurate & (wgmma | t.compensated)
        yield t.frag_m * t.frag_n * 4 * (1 + moved) > 200, "more sums than registers"
