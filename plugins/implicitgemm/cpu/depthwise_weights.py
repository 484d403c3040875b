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
from .depthwise_kernels import Bands
from .depthwise_vectors import VectorSums
from .kernel import Kernel
from .passes import forward_pass
from .places import fits

SLOT_BYTES = 48 * 1024
"""Bytes of the source rows of one band, which a work item copies into its slot of the workspace."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted on timings of layers
# drawn at random.
OPERATION_OPS = 2.25  # operations at peak rate per operation of the direct sum
LAUNCHES_OPS = 8e6  # operations at peak rate in the time of both launches: the parts of dw and their sum
COPIED_OPS = 70.0  # operations at peak rate per element of x or dy that is copied into a slot
RESULT_OPS = 670.0  # operations at peak rate per element of dw


class BandSums(Kernel):
    """The kernel that copies bands of rows into slots, where x has the layout of the forward direction."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, forward_pass(problem))
        self.bands = b = Bands(self.p, config)
        p = self.p
        # All taps are summed in one pass while their sums fit the registers, otherwise one row of taps at a time.
        all_taps = p.taps[1] * p.taps[2] <= config["sums"] and (p.taps[0] == 1 or not p.nhwc)
        self.tile_rows = p.taps[1] if all_taps else 1
        bands = p.images * p.places[0] * cdiv(p.places[1], b.rows)
        self.chunks = cdiv(p.groups, b.cb) if p.nhwc else min(p.groups, config["chunks"])
        self.parts = max(1, min(bands, config["parts"] // self.chunks))
        self.gradient = b.rows * (p.places[2] * b.cb if p.nhwc else b.wp) + b.lanes
        self.slot = cdiv(b.slot_x + self.gradient + (0 if p.nhwc else p.volume * b.lanes), 16) * 16
        areas = Areas(PAGE)
        areas.add(self.parts * p.volume * b.ct * b.size)
        self.slots_at = areas.add(self.parts * self.chunks * self.slot * b.size)
        self.workspace_size = areas.size

    def text(self) -> str:
        p, b = self.p, self.bands
        text = self.macros(
            G=p.groups, GROUPS=p.groups, N=1, C=1, R=b.rows, CB=b.cb, CT=b.ct, CHUNKS=self.chunks, PARTS=self.parts,
            SLOT=f"{self.slot}L", SLOT_X=b.slot_x, GRADIENT=self.gradient, WP=b.wp, PART=b.part, PROWS=b.prows,
            ADD=int(self.problem.accumulate),
        )  # fmt: skip
        files = ("runs.cl", "planes.cl.mako", "plain_sum.cl", "depthwise_weights.cl.mako")
        values = {"lanes": b.lanes, "inter": p.nhwc, "tile_rows": self.tile_rows, "taps_w": p.taps[2]}
        values |= {"step_w": p.step[2], "step_h": p.step[1], "spread_w": p.spread[2], "spread_h": p.spread[1]}
        return text + self.rendered(files, **values)

    def plan(self, context: Any) -> StepPlan:
        """Compile the launch that computes the parts of dw, and the launch that adds them."""
        pads = [*map(np.int32, self.p.pad)]
        arguments = ["x", "y", "workspace", np.int64(self.slots_at // self.size), *pads]
        parts = self.launch(context, "weights", [self.parts, self.chunks], arguments)
        total = self.launch(context, "reduce", [self.p.groups], ["x", "y", "workspace", "w", *pads])
        return StepPlan(self.workspace_size, [parts, total])

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        """Return operations at peak rate: the launches, the direct sum, and the copies of x and dy."""
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
        """Reject everything but the weights' gradient of one channel per group."""
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        if not problem.ic == problem.oc == problem.g:
            return f"one channel in and out a group only, got {problem.ic} and {problem.oc} in {problem.g} groups"
        if problem.kw > 25:
            return f"25 taps a row at most, got {problem.kw}"
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield vectors per tile of register kernels; then slot size, channels per band and parts of the sum."""
        lanes, units = lanes_of(device, problem.dtype), device.compute_units
        sums = 25 if device.simd_width >= 16 else 12
        if fits(problem.replace(direction="fwd", accumulate=False), lanes):
            for rows in (6, 4, 2) if sums > 16 else (3, 2):
                yield {"lanes": lanes, "items": 16 * units, "rows": rows, "sums": sums}
        base = {"lanes": lanes, "p": 8, "cb": 0, "slot": SLOT_BYTES, "sums": sums}
        base |= {"chunks": 16 * units, "parts": 16 * units}
        yield base
        yield {**base, "slot": 4 * SLOT_BYTES}
        if problem.layout == "nhwc":
            yield {**base, "cb": lanes}
