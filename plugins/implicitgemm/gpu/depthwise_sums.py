"""implicitgemm.tiled_depthwise_sums: the weights' gradient of depthwise layers, several channels per work item."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, define, kernel_text, rates

from ..solving import KernelSolver, launch
from .depthwise_tile import DepthwiseTile, busy, limits, shapes

MAX_CONFIGS = 24
LOCAL_BYTES = 16384
"""Bytes of local memory in which a work group adds the sums of its work items."""
FOLD_ACROSS = 16
FOLD_DEEP = 16
"""Work items of a work group of the kernel ``fold``: along channels, and along the shares of one element's sum."""
GROUPS_PER_UNIT = (1, 2, 3, 4, 6)
"""Numbers of work groups per compute unit that are tried."""

# The constants of the cost model were fitted to 344 timings on an H200, with an rms error of the logarithm of 0.19.
REACHED_SHARE = 0.77  # share of the device's instruction rate that a busy device reaches
LOAD_INSTRUCTIONS = 4.3  # instructions of a work item per vector that it reads
# Additional instructions per read if neighbouring work items read elements that are not contiguous
GAP_INSTRUCTIONS = 1.2
# Instead of one conversion, instructions per 16-bit number that is read alone, not in a vector: 14 timings on an H200,
# rms error of the logarithm 0.15, without it 0.87
LONE_HALF_INSTRUCTIONS = 30.0
TILE_INSTRUCTIONS = 231  # instructions of a work item per tile
SUM_INSTRUCTIONS = 19  # instructions of a work item per sum that it stores
BUSY_ITEMS = 329  # work items of a compute unit that are enough to hide each other's latency
COPY_SHARE = 0.65  # share of the measured bandwidth of a copy that the kernel reaches
LAUNCH_SHARE = 0.72  # share of a launch's time that a call of one launch takes besides its work
LAUNCHES_SHARE = 1.46  # share of a launch's time that a call of two launches takes besides its work


@dataclass(unsafe_hash=True)
class Sums:
    """A tile of the weights' gradient, and the number of parts in which all tiles are summed."""

    tile: DepthwiseTile
    parts: int

    def __post_init__(self) -> None:
        tile = self.tile
        self.per = -(-tile.tiles // self.parts)
        """Number of tiles in one part of the sum."""
        values = tile.geometry.volume * len(tile.parts)
        self.chunk = max(1, min(values, LOCAL_BYTES // (tile.lanes * tile.deep * tile.part * tile.accsize)))
        """Sums of each work item that are in local memory at the same time."""
        self.segments = max(1, min(tile.deep // 2, tile.deep // self.chunk))
        """Number of work items that add the sum of one element of dw."""
        self.size = math.prod(tile.problem.w_shape)
        """Elements of one partial dw."""
        self.workspace_size = self.parts * self.size * tile.accsize if self.parts > 1 else 0

    @classmethod
    def of(cls, problem: ConvProblem, config: Mapping[str, Any]) -> Sums:
        """Build from a configuration."""
        numbers = dict(config)
        parts = numbers.pop("parts")
        return cls(DepthwiseTile(problem, **numbers), parts)

    def config(self) -> dict[str, Any]:
        """Return the configuration that describes these sums."""
        return {**self.tile.config(), "parts": self.parts}

    def plan(self, context: Any) -> StepPlan:
        """Compile the launch that computes the parts of dw, and the launch that adds them."""
        tile, problem, macros = self.tile, self.tile.problem, self.tile.problem.macros()
        text = macros + kernel_text(__package__, "depthwise_sums.cl.mako", p=tile, s=self, math=math)
        given = ["y", "x", "workspace" if self.parts > 1 else "w"]
        size, local = tile.size(self.parts * tile.deep, tile.slabs * tile.lanes), tile.size(tile.deep, tile.lanes)
        steps = [launch(context, text, "sums", size, local, given)]
        if self.parts == 1:
            return StepPlan(0, steps)
        macros += define(CHANNELS=problem.oc, TAPS=tile.geometry.volume, COUNT=self.parts)
        macros += define(ACROSS=FOLD_ACROSS, DEEP=FOLD_DEEP)
        text = macros + kernel_text(__package__, "depthwise_fold.cl")
        items = FOLD_ACROSS * FOLD_DEEP
        size = -(-self.size // FOLD_ACROSS) * items
        steps.append(launch(context, text, "fold", [size], [items], ["workspace", "w"]))
        return StepPlan(self.workspace_size, steps)

    def seconds(self, device: DeviceInfo) -> float:
        """Return the predicted seconds: instructions, memory traffic, adding the parts, too few work items."""
        tile, problem, known = self.tile, self.tile.problem, rates(device)
        loads = tile.counts[0]
        widened = (tile.vector if tile.vector > 1 else LONE_HALF_INSTRUCTIONS) if problem.itemsize == 2 else 0
        turn = tile.steps * tile.vector + (loads + len(tile.places)) * (LOAD_INSTRUCTIONS + widened) + TILE_INSTRUCTIONS
        turn += 0 if tile.nhwc else (tile.columns - 1) * loads * GAP_INSTRUCTIONS
        items = self.parts * tile.slabs * tile.lanes * tile.deep
        item = -(-self.per // tile.deep) * turn + SUM_INSTRUCTIONS * tile.geometry.volume * tile.vector
        work = items * item * 2 / (REACHED_SHARE * known.flops * busy(tile, items, device, BUSY_ITEMS))
        moved = math.hypot(work, problem.bytes / (COPY_SHARE * known.bandwidth))
        launches = (LAUNCH_SHARE if self.parts == 1 else LAUNCHES_SHARE) * known.launch
        return moved + 2 * self.workspace_size / known.bandwidth + launches


class DepthwiseSums(KernelSolver):
    """The weights' gradient of layers whose channels each have one kernel."""

    kernel = Sums.of

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject other directions, and layers that are not depthwise."""
        if problem.direction != "bwd_weights":
            return "the weights' gradient only, got another direction"
        return limits(problem, device)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield tiles and numbers of parts, the ones that are expected to be fastest first."""
        found = []
        for tile in shapes(problem):
            most = max(1, -(-tile.tiles // tile.deep))
            wanted = {max(1, min(most, device.compute_units * groups // tile.slabs)) for groups in GROUPS_PER_UNIT}
            found += [Sums(tile, parts) for parts in sorted({1} | wanted)]
        return (sums.config() for sums in sorted(found, key=lambda sums: sums.seconds(device))[:MAX_CONFIGS])
