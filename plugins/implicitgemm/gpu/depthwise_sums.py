"""implicitgemm.tiled_depthwise_sums: the weights' gradient of depthwise layers, several channels per work item."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, kernel_text, rates
from convdispatch.api.matrix import Parts, reduction_launch

from ..solving import KernelSolver, launch
from .depthwise import DepthwiseTile, busy, limits, shapes
from .product import element_index

MAX_CONFIGS = 24
LOCAL_BYTES = 16384
"""Bytes of local memory in which a work group adds the sums of its work items."""
REDUCTION_LANES = 16
"""Work items that share the sum of an element's parts."""
GROUPS_PER_UNIT = (1, 2, 3, 4, 6)
"""Numbers of work groups per compute unit that are tried."""

# The constants of the cost model were fitted to 344 timings on an H200, with an rms error of the logarithm of 0.19.
REACHED_SHARE = 0.77  # share of the device's instruction rate that a busy device reaches
LOAD_INSTRUCTIONS = 4.3  # instructions of a work item per vector that it reads
# Additional instructions of a work item per vector that it reads, if consecutive work items do not read contiguously
GAP_INSTRUCTIONS = 1.2
# Instead of one conversion, instructions per 16-bit number that is read alone, not in a vector: 14 timings on an H200,
# rms error of the logarithm 0.15, without it 0.87
LONE_HALF_INSTRUCTIONS = 30.0
TILE_INSTRUCTIONS = 231  # instructions of a work item per tile
SUM_INSTRUCTIONS = 19  # instructions of a work item per sum that it stores
BUSY_ITEMS = 329  # work items per compute unit that are enough to hide each other's latency
COPY_SHARE = 0.65  # share of the measured bandwidth of a copy that the kernel reaches
LAUNCH_SHARE = 0.72  # share of a launch's time that a call of one launch takes in addition to its work
LAUNCHES_SHARE = 1.46  # share of a launch's time that a call of two launches takes in addition to its work


@dataclass(unsafe_hash=True)
class Sums:
    """A tile of the weights' gradient, and the number of parts in which all tiles are summed."""

    tile: DepthwiseTile
    parts: int

    def __post_init__(self) -> None:
        tile = self.tile
        self.per = -(-tile.tiles // self.parts)
        values = tile.geometry.volume * len(tile.parts)
        self.chunk = max(1, min(values, LOCAL_BYTES // (tile.lanes * tile.deep * tile.part * tile.accsize)))
        """Sums of each work item that are in local memory at the same time."""
        self.segments = max(1, min(tile.deep // 2, tile.deep // self.chunk))
        """Number of work items that add the sum of one element of dw."""
        self.size = math.prod(tile.problem.w_shape)
        self.workspace_size = self.parts * self.size * tile.accsize if self.parts > 1 else 0

    @classmethod
    def of(cls, problem: ConvProblem, config: Mapping[str, Any]) -> Sums:
        numbers = dict(config)
        parts = numbers.pop("parts")
        return cls(DepthwiseTile(problem, **numbers), parts)

    def config(self) -> dict[str, Any]:
        return {**self.tile.config(), "parts": self.parts}

    def plan(self, context: Any) -> StepPlan:
        """Compile the launch that computes the parts of dw, and the launch that adds them."""
        tile, problem, macros = self.tile, self.tile.problem, self.tile.problem.macros()
        text = macros + kernel_text(__package__, "depthwise_sums.cl.mako", p=tile, s=self, math=math)
        operands = ["y", "x", "workspace" if self.parts > 1 else "w"]
        size, local = tile.size(self.parts * tile.deep, tile.slabs * tile.lanes), tile.size(tile.deep, tile.lanes)
        steps = [launch(context, text, "sums", size, local, operands)]
        if self.parts == 1:
            return StepPlan(0, steps)
        parts = Parts(self.parts, self.size, element_index(self.parts * self.size), order=1,
                      axes=(problem.oc, tile.geometry.volume), lanes=REDUCTION_LANES)  # fmt: skip
        return StepPlan(self.workspace_size, [*steps, reduction_launch(context, problem, parts, ["w"])])

    def seconds(self, device: DeviceInfo) -> float:
        """Return the predicted seconds: instructions, memory traffic, adding parts, and idle time of few work items."""
        tile, problem, peaks = self.tile, self.tile.problem, rates(device)
        loads = tile.counts[0]
        widened = (tile.vector if tile.vector > 1 else LONE_HALF_INSTRUCTIONS) if problem.itemsize == 2 else 0
        per_tile = tile.steps * tile.vector + (loads + len(tile.places)) * (LOAD_INSTRUCTIONS + widened)
        per_tile += TILE_INSTRUCTIONS
        per_tile += 0 if tile.nhwc else (tile.columns - 1) * loads * GAP_INSTRUCTIONS
        items = self.parts * tile.slabs * tile.lanes * tile.deep
        per_item = -(-self.per // tile.deep) * per_tile + SUM_INSTRUCTIONS * tile.geometry.volume * tile.vector
        compute = items * per_item * 2 / (REACHED_SHARE * peaks.flops * busy(tile, items, device, BUSY_ITEMS))
        moved = math.hypot(compute, problem.bytes / (COPY_SHARE * peaks.bandwidth))
        launches = (LAUNCH_SHARE if self.parts == 1 else LAUNCHES_SHARE) * peaks.launch
        return moved + 2 * self.workspace_size / peaks.bandwidth + launches


class DepthwiseSums(KernelSolver):
    """The weights' gradient of layers whose channels each have one kernel."""

    kernel = Sums.of

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction != "bwd_weights":
            return "the weights' gradient only, got another direction"
        return limits(problem, device)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield tiles and numbers of parts, the fastest by prediction first."""
        candidates = []
        for tile in shapes(problem):
            max_parts = max(1, -(-tile.tiles // tile.deep))
            counts = {max(1, min(max_parts, device.compute_units * groups // tile.slabs)) for groups in GROUPS_PER_UNIT}
            candidates += [Sums(tile, parts) for parts in sorted({1} | counts)]
        return (sums.config() for sums in sorted(candidates, key=lambda sums: sums.seconds(device))[:MAX_CONFIGS])
