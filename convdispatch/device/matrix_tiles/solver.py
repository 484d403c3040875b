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

from ...api.device import DeviceInfo
from ...api.geometry import MOST_PHASES, phase_count
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ..programs.kernels import build, kernel_text
from ..rates import rates
from . import MATRIX_TILES
from .configured import MAX_BYTES, part_counts
from .formats import FORMATS, formats
from .instruction import TileInstruction
from .product.plan import Layout, ProductPlan
from .product.tiling import ProductTile, ProductTiling

EMULATION = "emulated_tiles"
"""The test package whose plain OpenCL C replaces the instructions of a plan that is built with ``emulate``."""
ROOF_SHARE = 0.3
"""The share of the matrix cores' peak that a product is predicted to reach; a guess, a third of vendors' libraries'."""
MIN_CHANNELS = 4
"""The fewest channels per group of a grouped convolution; fewer leave matrix cores idle."""
MAX_CHOICES = 24
"""The most tiles that are offered as configurations."""
SHAPES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 32), (32, 16))
"""Rows and columns of the tiles that are tried."""
WARPS = ((2, 2), (4, 1), (2, 1), (1, 2), (1, 1), (4, 2), (4, 4), (8, 4))
"""Warps along rows and columns that cut a tile."""


def size_limits(problem: ConvProblem) -> str | None:
    """The reason to refuse too many phases or bytes, or an empty batch; otherwise None."""
    if phase_count(problem) > MOST_PHASES:
        return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
    if problem.mb < 1:
        return f"1 image or more, got {problem.mb}"
    return f"at most {MAX_BYTES} bytes, got {problem.bytes}" if problem.bytes > MAX_BYTES else None


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
        return reason or (None if self._tiles(problem, device) else "no tile fits")

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The tiles as configurations, each with its instruction."""
        for tile in self._tiles(problem, device):
            yield {**tile.config(), "engine": tile.engine}

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        return Layout(VendorTiling(problem, self.kind.of(config))).size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        return _seconds(VendorTiling(problem, self.kind.of(config)), device, self.peak(device))

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> VendorPlan:
        return VendorPlan(self.kind, context, problem, config)

    def _tiles(self, problem: ConvProblem, device: DeviceInfo) -> Sequence[VendorTile]:
        names = tuple(name for name in formats(problem) if not self.withheld(name, device))
        return _choices(self.kind, problem, device, (names, self.engines(device), self.peak(device)))


@functools.lru_cache(maxsize=1024)
def _choices(
    kind: type[VendorTile],
    problem: ConvProblem,
    device: DeviceInfo,
    offered: tuple[Sequence[str], Sequence[str], float],
) -> tuple[VendorTile, ...]:
    """The tiles of the first format that fit, the fastest by prediction first, then a few of the other formats."""
    names, engines, peak = offered
    tiles: list[VendorTile] = []
    for name in names:
        rated = []
        for engine, shape, warps in itertools.product(engines, SHAPES, WARPS):
            compensated = problem.math == "ieee" and FORMATS[name].float32_accurate
            tile = kind(*shape, *warps, name, engine, 32, 2, compensated=compensated)
            tiling = VendorTiling(problem, tile)
            fits = tile.items <= device.max_work_group_size and tiling.local_bytes <= device.local_mem_size
            if not fits or tiling.misfit:
                continue
            max_split = max(tiling.slices) // 4
            for split in (1, *part_counts(device.compute_units, tiling.work_groups, max_split)):
                split_tiling = VendorTiling(problem, dataclasses.replace(tile, split=split))
                if not split_tiling.misfit:
                    rated.append((_seconds(split_tiling, device, peak), split_tiling.tile))
        rated.sort(key=lambda each: each[0])
        tiles += [tile for _, tile in rated[: 4 if tiles else MAX_CHOICES]]
    return tuple(tiles)


def _seconds(tiling: VendorTiling, device: DeviceInfo, peak: float) -> float:
    """Predicted seconds: the larger of products at the roof, in whole waves of work groups, and of memory traffic."""
    t, geo, problem, rate = tiling.tile, tiling.geometry, tiling.problem, rates(device)
    depth = sum(tiling.slices) * t.bk * geo.groups * len(tiling.format.products)
    operations = 2.0 * tiling.m_tiles * t.bm * tiling.n_tiles * t.bn * depth
    units = max(1, device.compute_units)
    waves = math.ceil(tiling.work_groups / units) * units / tiling.work_groups
    packed = sum(source.bytes for source in tiling.sources) + tiling.weights_bytes
    moved = problem.bytes + 2.0 * packed + 2.0 * tiling.partial_bytes
    launches = 1 + (packed > 0) + (2 if tiling.format.scaled else 0) + bool(tiling.partial)
    products = operations * waves / (ROOF_SHARE * peak * rate.flops)
    return float(max(products, moved / rate.bandwidth) + launches * rate.launch)
