"""``implicitgemm.depthwise``: depthwise layers, forward and data gradient; vectors along channels or along pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, StepPlan, phase_count, rates
from convdispatch.api.cpu import Balance, registers
from convdispatch.api.cpu import lanes as lanes_of

from .depthwise_kernels import DepthwiseKernel, PlaneKernel, RowKernel
from .depthwise_vectors import VectorKernel
from .kernel import PackedSolver
from .passes import passes
from .places import fits

SLOT_BYTES = 96 * 1024
"""Bytes of the source rows of one band, which a work item copies into its slot of the workspace."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted by least squares of
# logarithms over 67 timings of 11 layers in NCHW and over 37 layers in NHWC.
LAUNCH_OPS = 5.8e6  # operations at peak rate in the time of the launch of one pass
PACK_LAUNCH_OPS = 2.5e6  # operations at peak rate in the time of the launch that packs the weights of one pass
PACKED_OPS = 160.0  # operations at peak rate per packed weight
OPERATION_OPS = {"nchw": 1.65, "nhwc": 0.95}  # operations at peak rate per operation of the direct sum, by layout
# Operations at peak rate per element of x or y that is copied (NCHW), or read or written (NHWC)
ELEMENT_OPS = {"nchw": 75.0, "nhwc": 15.0}


class Depthwise(PackedSolver):
    """Solves layers of one input and one output channel per group on a CPU: forward and data gradient."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject everything but forward and data gradient of one channel per group."""
        if problem.direction == "bwd_weights":
            return "forward and bwd_data only, got bwd_weights"
        if not problem.ic == problem.oc == problem.g:
            return f"one channel in and out a group only, got {problem.ic} and {problem.oc} in {problem.g} groups"
        if problem.kh * problem.kw > 49:
            return f"49 taps a plane at most, got {problem.kh}x{problem.kw}"
        if problem.layout == "nhwc" and problem.g < 4:
            return f"vectors of 4 channels at least where channels are last, got {problem.g}"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """For NHWC: output pixels ``p`` of a tile and channels ``cb`` of a pass over a band (0: as many as the cache
        holds). For NCHW: vectors ``rows`` of a tile, or bytes ``slot`` of a work item's slot."""
        lanes = lanes_of(device, problem.dtype)
        base: dict[str, Any] = {"lanes": lanes, "items": 16 * device.compute_units}
        if problem.layout == "nchw":
            if fits(problem, lanes):
                vectors = 6 if registers(device) > 16 else 3
                yield from ({**base, "rows": rows} for rows in (vectors, vectors - 2, vectors + 2))
            yield from ({**base, "slot": slot} for slot in (SLOT_BYTES, SLOT_BYTES // 4))
            return
        while lanes > problem.g:
            lanes //= 2
        # A tile of 8 output pixels reads twice as many columns under a stride: with tiles of 4, 5x5 layers of stride 2
        # take a tenth less time.
        pixels = 8 if problem.sw == 1 else 4
        base |= {"lanes": lanes, "p": pixels, "cb": 0}
        yield base
        yield {**base, "p": 12 - pixels}
        yield {**base, "cb": 4 * lanes}
        yield {**base, "cb": problem.g}

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], device: Any) -> list[DepthwiseKernel]:
        kernel = RowKernel if problem.layout == "nhwc" else PlaneKernel
        return [kernel(p, problem, config) for p in passes(problem)]

    def pack_key(self, problem: ConvProblem, config: Mapping[str, Any], kernels: list[Any]) -> Any:
        taps = [(kernel.p.taps, kernel.p.w_first, kernel.p.w_step) for kernel in kernels]
        return [self.name, problem.dtype, problem.layout, problem.direction, problem.w_shape, taps, config["lanes"]]

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of slots, and of packed weights unless they are constant; 0 for kernels without slots."""
        return 0 if "rows" in config else super().workspace(problem, device, config)

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted seconds: launches, operations, elements, and the packing of weights that change."""
        if "rows" in config:
            return VectorKernel(problem, config).seconds(device)
        peaks = rates(device)
        launch = LAUNCH_OPS if problem.constant_weights else LAUNCH_OPS + PACK_LAUNCH_OPS
        packed = 0.0 if problem.constant_weights else PACKED_OPS * math.prod(problem.w_shape)
        launches = len(passes(problem)) * launch * Balance.of(peaks).launch
        elements = ELEMENT_OPS[problem.layout] * (math.prod(problem.x_shape) + math.prod(problem.y_shape))
        return (launches + OPERATION_OPS[problem.layout] * problem.flops + elements + packed) / peaks.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile the kernel that computes from registers if ``config`` has ``rows``, otherwise the packed kernels."""
        if "rows" in config:
            return VectorKernel(problem, config).plan(context)
        return super().plan(context, problem, config)
