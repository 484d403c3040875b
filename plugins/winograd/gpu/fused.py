"""The fused form: one launch transforms, multiplies and transforms back; it suits few channels or few tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Plan, StepPlan, rates

from ..geometry import TileGeometry
from .choice import COPY_SHARE, SUSTAINED
from .plan import Passes, pack_key
from .solver import Tiles
from .work import FusedWork

SHAPES = ((4, 4), (2, 4), (4, 2), (2, 2), (1, 2), (1, 1))
"""Work items per transformed element along channels and along tiles, the best pair first."""
DEPTHS = (3, 4, 8, 2, 6, 1)
"""Source channels in one slice of the sum, the best first."""
UNIT_OPS_PER_CYCLE = 230
"""Operations that one compute unit of an H200 does per cycle at 60 TFLOP/s."""


class Fused(Tiles):
    """F(m, r) in one launch, forward and data gradient; weights are transformed before it."""

    def _work(self, problem: ConvProblem, config: Mapping[str, Any]) -> FusedWork:
        return FusedWork(TileGeometry(problem, self.m), config["im"], config["jn"], config["bk"])

    def limits(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject also the weights' gradient, and devices whose limits no work group fits."""
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got bwd_weights"
        reason = super().limits(problem, device)
        if reason is None and next(iter(self.configs(problem, device)), None) is None:
            smallest = FusedWork(TileGeometry(problem, self.m), 1, 1, 1)
            nbytes = smallest.local * smallest.accsize
            reason = f"groups of {smallest.items} items with {nbytes} bytes of local memory, got "
            reason += f"{device.max_work_group_size} and {device.local_mem_size}"
        return reason

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield sizes of work groups that fit the device, the cheapest first."""
        rated = []
        for im, jn in SHAPES:
            for bk in DEPTHS:
                config = {"im": im, "jn": jn, "bk": bk}
                work = self._work(problem, config)
                fits = work.items <= min(device.max_work_group_size, device.max_work_item_sizes[0])
                if fits and work.local * work.accsize <= device.local_mem_size:
                    rated.append((self.cost(problem, device, config), len(rated), config))
        return (config for _, _, config in sorted(rated, key=lambda entry: entry[:2]))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes of transformed weights, unless the weights are constant."""
        return 0 if problem.constant_weights else self._work(problem, config).weights_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Multiply-adds of the products and of the transforms that every block of channels repeats."""
        work = self._work(problem, config)
        rounds = work.work_groups / device.compute_units
        rounds = math.ceil(rounds) if rounds < 4 else rounds + 0.3
        cycles = work.slices * work.slice_cycles + work.put_cycles
        peaks = rates(device)
        seconds = rounds * cycles * device.compute_units * UNIT_OPS_PER_CYCLE / (SUSTAINED * peaks.flops)
        if not problem.constant_weights:
            seconds += 2 * work.weights_size / (COPY_SHARE * peaks.bandwidth) + peaks.launch
        return seconds + peaks.launch

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> Plan:
        """The weights' transform, unless they are constant, and one launch."""
        work = self._work(problem, config)
        passes = Passes(context, work.work)
        pack, launch = passes.filter(work.filter), passes.fused(work)
        if problem.constant_weights:
            return StepPlan(0, [launch], work.weights_size, [pack], pack_key(work.geometry))
        return StepPlan(work.weights_size, [pack, launch])
