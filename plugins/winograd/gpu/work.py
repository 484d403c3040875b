"""How a problem is divided into pieces, and the layout of its transformed tiles in memory."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convdispatch.api import DTYPES, Areas, Axis, GemmSpec, Matrix, TensorLayout
from convdispatch.api.cpu import round_up

from ..geometry import Pair, TileGeometry
from ..program import program
from ..transforms import Matrix as Coefficients


class Printer:
    """Callable as ``program(matrix, inputs, outputs, type)`` in templates: returns statements that declare the outputs.

    It is a class and not a local function so that it can be part of the cache key of rendered texts.
    """

    def __init__(self, accumulator: str) -> None:
        self._accumulator, self._printed = accumulator, 0

    def __call__(self, matrix: Coefficients, inputs: list[str], outputs: list[str], type_: str) -> str:
        prefix, self._printed = f"e{self._printed}_", self._printed + 1
        text = program(
            matrix, inputs, outputs, type=type_, dtype=self._accumulator, prefix=prefix, declare=True, indent="  "
        )
        return text.text.rstrip("\n")


@dataclass(frozen=True)
class Data:
    """The transform of one tensor's tiles, which writes an operand of the product."""

    tensor: TensorLayout
    inputs: Pair
    """Elements of the tensor that a tile reads along h and w."""
    outputs: Pair
    matrices: tuple[Coefficients, Coefficients]
    step: Pair
    """Elements from the start of one tile to the start of the next, along h and w."""
    origin: Pair
    counts: Pair
    tiles: int
    piece: int
    """Tiles per piece; rows beyond them are zeros."""
    rows: int
    groups: int
    channels: int
    """Channels per group; with zeros they are ``padded`` to a multiple of four."""
    padded: int
    at: int
    """Offset in the workspace of the transformed tiles, in elements."""

    @property
    def plane(self) -> int:
        """Elements of one product's operand: one transformed element of every tile and channel."""
        return self.groups * self.padded * self.rows

    @property
    def width(self) -> int:
        """Channels that a work item transforms: its tiles should stay in registers."""
        if not self.tensor.nhwc:
            return 1
        max_width = 4 if math.prod(self.outputs) <= 16 else 2 if math.prod(self.outputs) <= 36 else 1
        return math.gcd(max_width, self.channels)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(first, count) of columns that one vector load reads; every load is aligned in every tile."""
        columns, length = [], self.inputs[1]
        unit = 1 if self.tensor.nhwc else math.gcd(4, self.tensor.size[1], self.step[1] if self.counts[1] > 1 else 4)
        j = 0
        while j < length:
            width = next((n for n in (4, 2) if unit % n == 0 and (self.origin[1] + j) % n == 0 and j + n <= length), 1)
            columns.append((j, width))
            j += width
        return columns

    def guarded(self, axis: int, offset: int) -> bool:
        """Whether element ``offset`` of some tile is outside the tensor."""
        lowest = self.origin[axis] + offset
        return lowest < 0 or lowest + (self.counts[axis] - 1) * self.step[axis] >= self.tensor.size[axis]


@dataclass(frozen=True)
class Filter:
    """The transform of the weights, which writes an operand of the product."""

    m: int
    mp: int
    k: int
    kp: int
    plane: int
    group: int
    """Elements of a group's weights."""
    strides: tuple[int, int, int]
    """Strides of the weights along m, k and the taps, in elements."""
    at: int


@dataclass(frozen=True)
class Inverse:
    """The inverse transform, which turns the products into the result."""

    m: int
    mp: int
    n: int
    np: int
    rows: int
    piece: int
    plane: int
    taps: int
    width: int
    run: int
    """Columns of a tile that one vector store writes."""
    at: int


@dataclass(unsafe_hash=True)
class Work:
    """A geometry divided into ``pieces`` of tiles, which are computed one after another in the same memory.

    Sums of the weights' gradient, which ``nvidia.winograd`` alone computes, are over tiles; they are divided into
    ``parts`` that run concurrently.
    """

    geometry: TileGeometry
    pieces: int = 1
    parts: int = 1

    def __post_init__(self) -> None:
        geo = self.geometry
        self.acc = DTYPES[geo.problem.dtype].accumulator
        self.accsize = 8 if self.acc == "double" else 4
        self.m, self.k = geo.target.channels // geo.groups, geo.source.channels // geo.groups
        """Target channels per group (channels of dy in the weights' gradient), which are rows of the products, and
        source channels per group."""
        self.mp, self.kp = round_up(self.m, 4), round_up(self.k, 4)
        self.piece = -(-geo.tiles // self.pieces)
        # The rows of a piece are its tiles, rounded up to whole vectors, whole slices of a sum, or whole tiles of a
        # large product.
        self.rows = round_up(self.piece, 128 if self.piece > 1024 else 32 if self.piece > 128 else 4)
        if geo.weights:
            self.rows = self.parts * round_up(-(-self.piece // self.parts), 16)
        matrices = geo.points * geo.groups
        self.source_size = matrices * self.kp * self.rows
        self.second_size = matrices * self.mp * (self.rows if geo.weights else self.kp)
        """Size of the product's other operand in accumulators: transformed weights, or transformed tiles of dy."""
        self.product_size = matrices * self.mp * (self.parts * self.kp if geo.weights else self.rows)
        self.constant = not geo.weights and geo.problem.constant_weights
        """Whether the weights are transformed once."""
        self.packed_size = self.second_size * self.accsize if self.constant else 0

    @functools.cached_property
    def areas(self) -> tuple[int, int, int, int]:
        """(offsets of source, second operand and product in accumulators, bytes of workspace)."""
        areas, unit = Areas(), self.accsize
        source, product = areas.add(self.source_size * unit), areas.add(self.product_size * unit)
        second = 0 if self.constant else areas.add(self.second_size * unit)
        return source // unit, second // unit, product // unit, areas.size

    def _data(self, tensor: TensorLayout, inputs: Pair, name: str, origin: Pair, channels: int, at: int) -> Data:
        geo = self.geometry
        return Data(tensor, inputs, geo.alpha, geo.matrices(name), geo.tile, origin, geo.counts, geo.tiles,
                    self.piece, self.rows, geo.groups, channels, round_up(channels, 4), at)  # fmt: skip

    @property
    def source(self) -> Data:
        """The transform of the source's tiles."""
        return self._data(self.geometry.source, self.geometry.alpha, "bt", self.geometry.origin, self.k, self.areas[0])

    @property
    def gradient(self) -> Data:
        """The transform of the tiles of dy in the weights' gradient."""
        return self._data(self.geometry.y, self.geometry.tile, "g", (0, 0), self.m, self.areas[1])

    @property
    def filter(self) -> Filter:
        """The transform of the weights."""
        problem = self.geometry.problem
        w = TensorLayout.of(problem, "w")
        strides = (w.image, w.channel) if problem.direction == "fwd" else (w.channel, w.image)
        return Filter(self.m, self.mp, self.k, self.kp, self.geometry.groups * self.kp * self.mp,
                      self.m * self.k * w.pixels, (*strides, w.axes[2]), self.areas[1])  # fmt: skip

    @property
    def inverse(self) -> Inverse:
        """The inverse transform of the products."""
        geometry = self.geometry
        outputs = geometry.taps if geometry.weights else geometry.tile
        max_width = 4 if geometry.points <= 16 else 2 if geometry.points <= 36 else 1
        width = math.gcd(max_width, self.k if geometry.weights else self.m) if geometry.nhwc else 1
        run = 1 if geometry.nhwc or geometry.weights else math.gcd(4, outputs[1], geometry.target.size[1])
        plane = geometry.groups * self.mp * (self.kp if geometry.weights else self.rows)
        return Inverse(self.m, self.mp, self.k, self.kp, self.rows, self.piece, plane,
                       math.prod(geometry.taps), width, run, self.areas[2])  # fmt: skip

    def product(self) -> GemmSpec:
        """Return the batched matrix product of forward and data gradient: one per transformed element and group."""
        geometry, rows = self.geometry, self.rows
        dtype = "float64" if self.acc == "double" else "float32"
        a = Matrix(Axis(1), Axis(self.mp), Axis(self.mp * self.kp))
        if geometry.nhwc:
            b, c = Matrix(Axis(1), Axis(self.kp)), Matrix(Axis(1), Axis(self.mp))
        else:
            b, c = Matrix(Axis(rows), Axis(1)), Matrix(Axis(rows), Axis(1))
        b = Matrix(b.row, b.col, Axis(self.kp * rows))
        c = Matrix(c.row, c.col, Axis(self.mp * rows))
        return GemmSpec(self.mp, rows, self.kp, geometry.points * geometry.groups, dtype, a, b, c, alignment=4)
