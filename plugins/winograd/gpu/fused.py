"""The fused form: one launch that transforms, multiplies and transforms back, for few channels or few tiles."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import EPILOGUE, ConvProblem, DeviceInfo, Plan, StepPlan, rates

from .choice import COPY, SUSTAINED
from .geometry import TileGeometry
from .plan import Passes, pack_key
from .solver import Tiles
from .work import Data, Filter, Work

__all__ = ["Fused", "FusedWork"]

_SHAPES = ((4, 4), (2, 4), (4, 2), (2, 2), (1, 2), (1, 1))  # work items a point along channels and tiles, best first
_DEPTHS = (3, 4, 8, 2, 6, 1)
_INT = 2**31 - 2**24
_REGISTERS = 105  # of an item: products, operands and addresses, without what is loaded ahead
_FLOPS = 230  # operations of a compute unit a cycle, of a unit of 60 TFLOP/s on an H200


@dataclasses.dataclass(frozen=True)
class FusedWork:
    """A geometry in groups of 8 ``im`` channels and 8 ``jn`` tiles, ``bk`` source channels at a time."""

    geometry: TileGeometry
    im: int
    jn: int
    bk: int

    @property
    def work(self) -> Work:
        """The same geometry as passes: its weights' form is this one's."""
        return Work(self.geometry)

    @property
    def tm(self) -> int:
        """Channels of a group."""
        return 8 * self.im

    @property
    def tn(self) -> int:
        """Tiles of a group."""
        return 8 * self.jn

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.geometry.points * self.im * self.jn

    @property
    def accsize(self) -> int:
        """Bytes of a sum."""
        return self.work.accsize

    @functools.cached_property
    def filter(self) -> Filter:
        """The weights, alone in their memory."""
        return dataclasses.replace(self.work.filter, at=0)

    @property
    def data(self) -> Data:
        """The source's tiles."""
        return self.work.source

    @property
    def er(self) -> int:
        """Rows of an item that leave at a time: as many as the slices' memory holds."""
        each = self.geometry.points * self.im * self.tn
        return next((er for er in (4, 2) if er * each <= self._slices_size), 1)

    @property
    def _slices_size(self) -> int:
        return 2 * self.geometry.points * self.bk * self.tn

    @property
    def local(self) -> int:
        """Elements of local memory."""
        return max(self._slices_size, self.geometry.points * self.im * self.tn * self.er)

    @property
    def slices(self) -> int:
        """Slices of the source's channels."""
        return -(-self.work.k // self.bk)

    @property
    def m_blocks(self) -> int:
        """Groups along the target's channels."""
        return -(-self.work.m // self.tm)

    @property
    def t_blocks(self) -> int:
        """Groups along the tiles."""
        return -(-self.geometry.tiles // self.tn)

    @property
    def work_groups(self) -> int:
        """Work groups."""
        return self.m_blocks * self.t_blocks * self.geometry.groups

    @property
    def slice_cycles(self) -> float:
        """Cycles of a compute unit for a slice: multiply-adds, and each access of 32 items to 128 bytes."""
        a_h, a_w = self.geometry.alpha
        products = self.geometry.points * self.tm * self.tn * self.bk
        loads = self.items * 16 * self.bk
        lines = 1 + (16 / self.bk if self.geometry.nhwc else min(4, self.geometry.tile[1]) / 2)
        rows = a_h * self.bk * self.tn * a_w * (1 + lines)
        columns = a_w * self.bk * self.tn * a_h * 2 if a_h > 1 else 0
        slots = [-(-length * self.bk * self.tn // self.items) for length in (a_h, a_w)]
        registers = _REGISTERS + slots[0] * (a_w + 3)
        crowded = 1.2 if self.items * registers > 65536 else 1.0  # some of them are moved to memory
        alone = 600 + 100 * slots[0] + (100 * slots[1] if a_h > 1 else 0) + 130 * self.bk  # what one item does in turn
        return max(alone, 600 + 1.2 * crowded * (products / 256 + (loads + rows + columns) / 32))

    @property
    def put_cycles(self) -> float:
        """Cycles for the products' way out, and a group's first loads."""
        return 3000 + self.geometry.points * self.tm * self.tn * 3 / 32

    @property
    def weights_size(self) -> int:
        """Bytes of transformed weights."""
        return self.work.second_size * self.accsize

    @property
    def index(self) -> str:
        """OpenCL type of offsets."""
        most = max(self.geometry.images * self.geometry.source.image, self.work.second_size)
        return "int" if most < _INT else "long"


class Fused(Tiles):
    """F(m, r) in one launch, forward and data gradient; weights are transformed before it."""

    fuses = EPILOGUE

    def __init__(self, m: int, r: int) -> None:
        super().__init__(m, r, f"winograd.fused_f{m}x{r}")

    def _work(self, problem: ConvProblem, config: Mapping[str, Any]) -> FusedWork:
        return FusedWork(TileGeometry(problem, self.m), config["im"], config["jn"], config["bk"])

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """What the kernels cannot do."""
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got bwd_weights"
        reason = super().limits(problem, device)
        if reason is None and next(iter(self.configs(problem, device)), None) is None:
            least = FusedWork(TileGeometry(problem, self.m), 1, 1, 1)
            reason = f"groups of {least.items} items with {least.local * least.accsize} bytes of local memory, got "
            reason += f"{device.max_work_group_size} and {device.local_mem_size}"
        return reason

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Groups that fit the device, the cheapest first."""
        found = []
        for im, jn in _SHAPES:
            for bk in _DEPTHS:
                config = {"im": im, "jn": jn, "bk": bk}
                work = self._work(problem, config)
                fits = work.items <= min(device.max_work_group_size, device.max_work_item_sizes[0])
                if fits and work.local * work.accsize <= device.local_mem_size:
                    found.append((self.cost(problem, device, config), len(found), config))
        return (config for _, _, config in sorted(found, key=lambda entry: entry[:2]))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Transformed weights that are not constant."""
        return 0 if problem.constant_weights else self._work(problem, config).weights_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Multiply-adds of the products and of the transforms that every block of channels repeats."""
        work = self._work(problem, config)
        busy = work.work_groups / device.compute_units  # groups that a compute unit runs, one after or beside the other
        busy = math.ceil(busy) if busy < 4 else busy + 0.3
        cycles = work.slices * work.slice_cycles + work.put_cycles
        known = rates(device)
        weights = 0 if problem.constant_weights else 2 * work.weights_size / (COPY * known.bandwidth) + known.launch
        return busy * cycles * device.compute_units * _FLOPS / (SUSTAINED * known.flops) + weights + known.launch

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """Compile a configuration."""
        work = self._work(problem, config)
        maker = Passes(context, work.work)
        pack, launch = maker.filter(work.filter), maker.fused(work)
        if problem.constant_weights:
            return StepPlan(0, [launch], work.weights_size, [pack], pack_key(work.geometry))
        return StepPlan(work.weights_size, [pack, launch])
