"""``implicitgemm.depthwise_weights``: the weights' gradient of depthwise layers, one vector of sums per tap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import Areas, ConvProblem, DeviceInfo, StepPlan
from convdispatch.api.cpu import PAGE, Balance, cdiv
from convdispatch.api.cpu import lanes as lanes_of

from ..solving import KernelSolver
from .depthwise_vectors import VectorSums
from .kernel import Kernel
from .passes import forward_pass
from .places import MISFIT, fits

SLOT_BYTES = 48 * 1024
"""Bytes of the source rows of one band, which a work item copies into its slot of the workspace."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted on timings of layers
# drawn at random.
OPERATION_OPS = 2.25  # operations at peak rate per operation of the direct sum
LAUNCHES_OPS = 8e6  # operations at peak rate in the time of both launches: the parts of dw and their sum
COPIED_OPS = 70.0  # operations at peak rate per element of x or dy that is copied into a slot
RESULT_OPS = 670.0  # operations at peak rate per element of dw


class BandSums(Kernel):
    """The kernel in NHWC, which copies bands of source rows into slots, with zeros around them."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, forward_pass(problem))
        p = self.p
        self.ct = cdiv(p.groups, self.lanes) * self.lanes
        self.cb = self._channels()
        width = (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        halo = (p.taps[1] - 1) * p.spread[1] + 1
        fitting = (config["slot"] // (p.taps[0] * width * self.cb * self.size) - halo) // p.step[1] + 1
        rows = max(1, min(p.places[1], max(fitting, min(4, p.places[1]))))
        self.rows = cdiv(p.places[1], cdiv(p.places[1], rows))
        source_rows = (self.rows - 1) * p.step[1] + halo
        self.slot_x = cdiv(p.taps[0] * source_rows * width * self.cb + self.lanes, 16) * 16
        # All taps are summed in one pass while their sums fit the registers, otherwise one row of taps at a time.
        self.tile_rows = p.taps[1] if p.taps[1] * p.taps[2] <= config["sums"] and p.taps[0] == 1 else 1
        bands = p.images * p.places[0] * cdiv(p.places[1], self.rows)
        self.chunks = cdiv(p.groups, self.cb)
        self.parts = max(1, min(bands, config["parts"] // self.chunks))
        gradient = self.rows * p.places[2] * self.cb + self.lanes
        self.slot = cdiv(self.slot_x + gradient, 16) * 16
        areas = Areas(PAGE)
        areas.add(self.parts * p.volume * self.ct * self.size)
        self.slots_at = areas.add(self.parts * self.chunks * self.slot * self.size)
        self.workspace_size = areas.size

    def _channels(self) -> int:
        """Return the channels of a slot: all, so that whole rows are copied, unless that gives under 16 jobs."""
        p, block = self.p, self.config["cb"]
        if block:
            return min(block, p.groups)
        parts = cdiv(16, max(1, p.images * p.places[0] * cdiv(p.places[1], 8)))
        return min(p.groups, cdiv(cdiv(p.groups, parts), self.lanes) * self.lanes)

    def text(self) -> str:
        p = self.p
        text = self.macros(
            G=p.groups, R=self.rows, CB=self.cb, CT=self.ct, CHUNKS=self.chunks, PARTS=self.parts,
            SLOT=f"{self.slot}L", SLOT_X=self.slot_x, ADD=int(self.problem.accumulate),
        )  # fmt: skip
        return text + self.rendered(["depthwise_weights.cl.mako"], tile_rows=self.tile_rows, taps_w=p.taps[2])

    def plan(self, context: Any) -> StepPlan:
        pads = [*map(np.int32, self.p.pad)]
        arguments = ["x", "y", "workspace", np.int64(self.slots_at // self.size), *pads]
        parts = self.launch(context, "weights", [self.parts, self.chunks], arguments)
        total = self.launch(context, "reduce", [self.p.groups], ["x", "y", "workspace", "w", *pads])
        return StepPlan(self.workspace_size, [parts, total])

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        x, y, w = (math.prod(getattr(self.problem, f"{name}_shape")) for name in "xyw")
        copied, result = COPIED_OPS * (x + y), RESULT_OPS * w
        return LAUNCHES_OPS * balance.launch + OPERATION_OPS * self.problem.flops + copied + result


class DepthwiseWeights(KernelSolver):
    """Solves the weights' gradient of layers with one input and one output channel per group, on a CPU."""

    @staticmethod
    def kernel(problem: ConvProblem, config: Mapping[str, Any]) -> Any:
        """Return the kernel that computes from registers, or the one that copies bands, as the configuration says."""
        return (VectorSums if "rows" in config else BandSums)(problem, config)

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        if not problem.ic == problem.oc == problem.g:
            return f"one channel in and out a group only, got {problem.ic} and {problem.oc} in {problem.g} groups"
        if problem.kw > 25:
            return f"25 taps a row at most, got {problem.kw}"
        if problem.layout == "nchw" and not _fits(problem, device):
            return MISFIT
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield vectors per tile of register kernels (NCHW), or slot size, channels per band and parts of the sum."""
        lanes, units = lanes_of(device, problem.dtype), device.compute_units
        sums = 25 if device.simd_width >= 16 else 12
        if problem.layout == "nchw":
            for rows in (6, 4, 2) if sums > 16 else (3, 2):
                yield {"lanes": lanes, "items": 16 * units, "rows": rows, "sums": sums}
            return
        base = {"lanes": lanes, "p": 8, "cb": 0, "slot": SLOT_BYTES, "sums": sums, "parts": 16 * units}
        yield base
        yield {**base, "slot": 4 * SLOT_BYTES}
        yield {**base, "cb": lanes}


def _fits(problem: ConvProblem, device: DeviceInfo) -> bool:
    return fits(problem.replace(direction="fwd", accumulate=False), lanes_of(device, problem.dtype))
