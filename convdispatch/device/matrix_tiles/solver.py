"""A solver for vendors whose plugin only describes instructions: its refusals, configurations and costs.

Costs follow a roofline model: products at the matrix cores' rate, bytes at the memory's rate, and the launches. It was
not fitted on the vendor's devices, so it orders tiles and solvers roughly; ``convdispatch find`` measures.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...api.device import DeviceInfo
from ...api.geometry import MOST_PHASES, phase_count
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ..programs.geometry_arguments import MAX_DIVIDEND
from ..programs.kernels import build, kernel_text
from ..rates import rates
from . import MATRIX_TILES
from .configured import MAX_BYTES, fitting, many, part_counts
from .geometry import along, chunks
from .instruction import FORMATS, TileInstruction, formats
from .product.plan import Layout, ProductPlan
from .product.tiling import ProductTile, ProductTiling

EMULATION = "emulated_tiles"
"""The test package whose plain OpenCL C replaces the instructions of a plan that is built with ``emulate``."""
ROOF_SHARE = 0.3
"""The share of the matrix cores' peak that a product is predicted to reach; a guess, a third of vendors' libraries'."""
WIDEST_TILE = 256
"""Columns of the widest tile."""
MIN_CHANNELS = 4
"""The fewest channels per group of a grouped convolution; fewer leave matrix cores idle."""
MAX_CHOICES = 24
"""The most tiles that are offered as configurations."""
SHAPES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 32), (32, 16))
"""Rows and columns of the tiles that are tried."""
WARPS = ((2, 2), (4, 1), (2, 1), (1, 2), (1, 1), (4, 2), (4, 4), (8, 4))
"""Warps along rows and columns that cut a tile."""
NUMBERS = ("bm", "bn", "wm", "wn", "split")
"""Fields of a tile that are arrays when many tiles are rated together."""


def size_limits(problem: ConvProblem) -> str | None:
    """The reason to refuse too many phases or bytes, or an empty batch; otherwise None."""
    if phase_count(problem) > MOST_PHASES:
        return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
    if problem.mb < 1:
        return f"1 image or more, got {problem.mb}"
    if problem.bytes > MAX_BYTES:
        return f"at most {MAX_BYTES} bytes, got {problem.bytes}"
    counted = _counted(problem)
    return f"at most {MAX_DIVIDEND} chunks or columns, got {counted}" if counted > MAX_DIVIDEND else None


def _counted(problem: ConvProblem) -> int:
    """The most that a kernel counts in 32 bits: chunks of a tensor with its pads, columns, or numbers of a K-slice."""
    sizes = zip(*(along(problem, letter) for letter in "ipo"), strict=True)
    far = (getattr(problem, f"p{axis}_r") for axis in "dhw")
    places = problem.mb * math.prod(max(i + p + r, o) for (i, p, o), r in zip(sizes, far, strict=True))
    channels, taps = max(problem.ic, problem.oc), math.prod(along(problem, "k"))
    stacked = math.prod(along(problem, "s")) if problem.direction == "bwd_data" else 1
    slice_numbers = (channels * stacked + WIDEST_TILE) * 64 * max(each.planes for each in FORMATS.values())
    return max(places * problem.g * chunks(-(-channels // problem.g)), taps * (channels + 8), slice_numbers)


def group_limits(problem: ConvProblem) -> str | None:
    """The reason to refuse groups of few channels; otherwise None."""
    least = min(problem.ic, problem.oc) // problem.g
    return f"{MIN_CHANNELS} channels a group or more, got {least}" if problem.g > 1 and least < MIN_CHANNELS else None


@dataclass(frozen=True)
class PortableText:
    """The OpenCL C text for an instruction that the compiler provides as a function, which a plugin's text calls."""

    package: str
    engine: str
    type: str
    multiplies: bool = True
    """Whether the kernel calls the instruction, and not only the conversions."""

    def text(self, emulate: bool = False) -> str:
        text = kernel_text(MATRIX_TILES, "portable.cl")
        if not self.multiplies:
            return text
        package = EMULATION if emulate else self.package
        return text + kernel_text(package, "instruction.cl.mako", engine=self.engine, type=self.type)

    def build(self, context: Any, text: str, emulate: bool = False) -> Any:
        return build(context, text)


class VendorTile(ProductTile):
    """A tile of a vendor's instructions, which a plugin's subclass names."""

    PACKAGE: ClassVar[str]
    """The plugin's package, whose ``instruction.cl.mako`` calls the instructions."""
    INSTRUCTIONS: ClassVar[Mapping[str, TileInstruction]]
    """Instructions by their names, which are the values of ``engine``."""

    @property
    def instruction(self) -> TileInstruction:
        return self.INSTRUCTIONS[self.engine]


@dataclass(unsafe_hash=True)
class VendorTiling(ProductTiling):
    """The numbers of a problem under a vendor's tile."""

    tile: VendorTile

    @property
    def instructions(self) -> PortableText:
        return PortableText(self.tile.PACKAGE, self.tile.engine, self.format.type)

    @property
    def conversions(self) -> PortableText:
        return PortableText(self.tile.PACKAGE, self.tile.engine, self.format.type, multiplies=False)


class VendorPlan(ProductPlan):
    """A Plan whose tiles are of class ``kind``; tests build plain C with ``emulate=True``."""

    def __init__(
        self, kind: type[VendorTile], context: Any, problem: ConvProblem, config: Mapping[str, Any], **emulate: bool
    ) -> None:
        self._kind, self.vendor = kind, kind.PACKAGE
        super().__init__(context, problem, config, config["engine"], **emulate)

    def _tiling_of(self, problem: ConvProblem, config: Mapping[str, Any]) -> VendorTiling:
        return VendorTiling(problem, self._kind.of(config))


class MatrixSolver(Solver):
    """Implicit GEMM on a vendor's matrix cores, all directions, over tiles of class ``kind``.

    ``peak`` is the rate of products over the device's float32 rate, from the vendor's data sheets.
    """

    kind: type[VendorTile]

    def engines(self, device: DeviceInfo) -> tuple[str, ...]:
        """Names of the instructions that the device has, the widest first."""
        raise NotImplementedError

    def peak(self, device: DeviceInfo) -> float:
        """Operations of the matrix cores for each of the device's float32 operations, by the vendor's data sheet."""
        raise NotImplementedError

    def withheld(self, name: str, device: DeviceInfo) -> str | None:
        """The reason why the device does not multiply a format's numbers exactly, or None."""
        return None

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        withheld = [self.withheld(name, device) for name in formats(problem)]
        reason = next(iter(withheld), None) if all(withheld) else size_limits(problem) or group_limits(problem)
        return reason or ("no tile fits" if next(self._tiles(problem, device), None) is None else None)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The tiles as configurations, each with its instruction."""
        for tile in self._tiles(problem, device):
            yield {**tile.config(), "engine": tile.engine}

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return Layout(VendorTiling(problem, self.kind.of(config))).size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        return float(_seconds(VendorTiling(problem, self.kind.of(config)), device, self.peak(device)))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> VendorPlan:
        return VendorPlan(self.kind, context, problem, config)

    def _tiles(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[VendorTile]:
        """Tiles of the first format that fit, the fastest by prediction first, then a few of the other formats."""
        most, engines, peak = MAX_CHOICES, self.engines(device), self.peak(device)
        for name in formats(problem):
            if not self.withheld(name, device):
                tiles = _rated(self.kind, problem, device, (name, engines, peak))[:most]
                yield from tiles
                most = 4 if tiles else most


@functools.lru_cache(maxsize=1024)
def _rated(
    kind: type[VendorTile], problem: ConvProblem, device: DeviceInfo, offered: tuple[str, Sequence[str], float]
) -> tuple[VendorTile, ...]:
    """The tiles of one format that fit, ``MAX_CHOICES`` at most, the fastest by prediction first."""
    (name, engines, peak), rated = offered, []
    for engine in engines:
        compensated = problem.math == "ieee" and FORMATS[name].float32_accurate
        base = kind(0, 0, 0, 0, name, engine, 32, 2, compensated=compensated)
        numbers = _fitting(base, problem, device)
        if len(numbers):
            costs = _seconds(VendorTiling(problem, many(base, NUMBERS, numbers)), device, peak)
            rated += [(cost, base, row) for cost, row in zip(costs.tolist(), numbers.tolist(), strict=True)]
    rated.sort(key=lambda each: each[0])
    return tuple(
        dataclasses.replace(base, **dict(zip(NUMBERS, row, strict=True))) for _, base, row in rated[:MAX_CHOICES]
    )


def _fitting(base: VendorTile, problem: ConvProblem, device: DeviceInfo) -> np.ndarray:
    """A row of ``NUMBERS`` for each tile that fits the problem and the device."""
    numbers = np.array([(*shape, *warps, 1) for shape, warps in itertools.product(SHAPES, WARPS)], np.int64)
    tiling = VendorTiling(problem, many(base, NUMBERS, numbers))
    fits = (tiling.tile.items <= device.max_work_group_size) & (tiling.local_bytes <= device.local_mem_size)
    numbers = numbers[fits & fitting(tiling, len(numbers))]
    if not len(numbers):
        return numbers
    tiling = VendorTiling(problem, many(base, NUMBERS, numbers))
    max_split, groups = max(tiling.slices) // 4, tiling.work_groups.tolist()
    counts = [(1, *part_counts(device.compute_units, groups_of_tile, max_split)) for groups_of_tile in groups]
    numbers = np.repeat(numbers, list(map(len, counts)), axis=0)
    numbers[:, NUMBERS.index("split")] = list(itertools.chain.from_iterable(counts))
    return numbers[fitting(VendorTiling(problem, many(base, NUMBERS, numbers)), len(numbers))]


def _seconds(tiling: VendorTiling, device: DeviceInfo, peak: float) -> Any:
    """Predicted seconds, an array for many tiles: the larger of memory traffic and of products at the roof, in whole
    waves of work groups."""
    t, geo, problem, rate = tiling.tile, tiling.geometry, tiling.problem, rates(device)
    depth = sum(tiling.slices) * t.bk * geo.groups * len(tiling.format.products)
    operations = 2.0 * tiling.m_tiles * t.bm * tiling.n_tiles * t.bn * depth
    units = max(1, device.compute_units)
    waves = -(-tiling.work_groups // units) * units / tiling.work_groups
    packed = sum(source.bytes for source in tiling.sources) + tiling.weights_bytes
    moved = problem.bytes + 2.0 * packed + 2.0 * tiling.partial_bytes
    launches = 1.0 + (packed > 0) + (2 if tiling.format.scaled else 0) + tiling.partial
    products = operations * waves / (ROOF_SHARE * peak * rate.flops)
    return np.maximum(products, moved / rate.bandwidth) + launches * rate.launch
