"""implicitgemm.tiled_depthwise: forward and data gradient of depthwise layers, several channels per work item."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, define, kernel_text, rates

from ..solving import KernelSolver, launch
from .choice import SECTOR_OPS, SUSTAINED
from .depthwise_tile import DepthwiseTile, busy, limits, shapes
from .product import element_index

MANY_GROUPS = 64
"""Work groups per compute unit from which on each work item processes several tiles."""
MAX_CONFIGS = 24
SECTOR_BYTES = 32
"""Bytes of a sector, the unit in which the second-level cache is read and written."""

# The constants of the cost model were fitted to 669 timings on an H200, with an rms error of the logarithm of 0.17.
REACHED_SHARE = 0.83  # share of the device's instruction rate that a busy device reaches
LOAD_INSTRUCTIONS = 5.0  # instructions of a work item per vector that it reads
# Additional instructions per 16-bit number that is read alone, not in a vector: 3 timings on an H200
LONE_HALF_INSTRUCTIONS = 12.0
PLACE_INSTRUCTIONS = 7.7  # instructions of a work item per result
TILE_INSTRUCTIONS = 28  # instructions of a work item per tile
FILL_INSTRUCTIONS = 88  # instructions of a work item per weight that it copies to local memory
BUSY_ITEMS = 437  # work items of a compute unit that are enough to hide each other's latency
COPY_SHARE = 0.91  # share of the measured bandwidth of a copy that the kernel reaches
LAUNCH_SHARE = 0.75  # share of a launch's time that a call takes besides its work


class ForwardTile(DepthwiseTile):
    """A tile of output pixels, of the forward convolution or the data gradient."""

    def plan(self, context: Any) -> StepPlan:
        """Compile the one launch of the kernel."""
        problem = self.problem
        text = problem.macros() + define(OUT_INDEX=element_index(math.prod(problem.out_shape)), PARTIAL=0)
        text += kernel_text(__package__, "output.cl") + kernel_text(__package__, "depthwise.cl.mako", p=self)
        source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
        given = ["w", source, written, *(name for name in ("bias", "residual") if getattr(problem, name))]
        size = self.size(self.blocks * self.deep, self.slabs * self.lanes)
        return StepPlan(0, [launch(context, text, "depthwise", size, self.size(self.deep, self.lanes), given)])

    def seconds(self, device: DeviceInfo) -> float:
        """Return the predicted seconds: instructions, memory traffic, and the idle time of too few work items."""
        problem, known = self.problem, rates(device)
        loads, weight_reads, _ = self.counts
        widened = self.vector if problem.itemsize == 2 else 0
        load = LOAD_INSTRUCTIONS + (LONE_HALF_INSTRUCTIONS if problem.itemsize == 2 and self.vector == 1 else 0)
        item = self.steps * self.vector + loads * load + weight_reads * len(self.parts)
        item += len(self.places) * (PLACE_INSTRUCTIONS + (widened or 1)) + TILE_INSTRUCTIONS
        item += FILL_INSTRUCTIONS * self.geometry.volume * self.vector / self.deep / self.turns
        items = self.tiles * self.slabs * self.lanes
        work = items * item * 2 / (REACHED_SHARE * known.flops * busy(self, items, device, BUSY_ITEMS))
        gaps = SECTOR_OPS * self._partial_sectors() / (SUSTAINED * known.flops)
        traffic = problem.bytes / (COPY_SHARE * known.bandwidth)
        return math.hypot(work, traffic, gaps) + LAUNCH_SHARE * known.launch

    def _partial_sectors(self) -> float:
        """Return sectors written besides those that results fill: NCHW neighbours are a tile and a stride apart."""
        if self.nhwc:
            return 0.0
        size = self.problem.itemsize
        apart = min(self.columns * self.geometry.out_step[2], SECTOR_BYTES // size)
        return math.prod(self.problem.out_shape) * (apart - 1) * size / SECTOR_BYTES


class Depthwise(KernelSolver):
    """Forward and data gradient of layers whose channels each have one kernel."""

    @staticmethod
    def kernel(problem: ConvProblem, config: Mapping[str, Any]) -> ForwardTile:
        return ForwardTile(problem, **config)

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject the weights' gradient, and layers that are not depthwise."""
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got the weights' gradient"
        return limits(problem, device)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield tiles, the one that is expected to be fastest first."""
        tiles, many = list(shapes(problem, ForwardTile)), MANY_GROUPS * device.compute_units
        tiles += [replace(tile, turns=4) for tile in tiles if tile.blocks * tile.slabs > many]
        return (tile.config() for tile in sorted(tiles, key=lambda tile: tile.seconds(device))[:MAX_CONFIGS])
