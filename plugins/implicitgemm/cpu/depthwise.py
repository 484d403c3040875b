"""``implicitgemm.depthwise``: one channel a group, forward and data gradient: vectors along channels or places."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import MOST_PHASES, Areas, ConvProblem, DeviceInfo, Solver, StepPlan, phase_count, rates
from convdispatch.api.cpu import PAGE, Balance, registers, uneven
from convdispatch.api.cpu import lanes as lanes_of

from .depthwise_kernels import DepthwiseKernel, PlaneKernel, RowKernel
from .depthwise_vectors import VectorKernel
from .passes import passes
from .places import fits, lanes_in

_SLOT = 96 * 1024  # bytes of a band's source rows
# Operations of the peak in the time of a pass' launch, of its packing's, and of a packed weight; by layout, of an
# operation, and of an element that is copied (NCHW) or read and written (NHWC): least squares of logarithms over 67
# times of 11 layers drawn for it, and over 37 layers with channels last.
_LAUNCH, _PACK, _PACKED = 5.8e6, 2.5e6, 160.0
_RATES = {"nchw": (1.65, 75.0), "nhwc": (0.95, 15.0)}
# The same from registers: of the launch, an operation of a lane, used or not, an element, one of x with a stride.
_LAUNCHED, _LANE, _ELEMENT, _APART = 4.8e6, 1.3, 12.0, 27.0


class Depthwise(Solver):
    """One input and one output channel a group, on a CPU: forward and data gradient."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but one channel a group."""
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
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """NHWC: places of a tile, channels at a time (0: as many as stay near). NCHW: vectors of a tile, or a slot."""
        lanes = lanes_of(device, problem.dtype)
        base: dict[str, Any] = {"lanes": lanes, "items": 16 * device.compute_units}
        if problem.layout == "nchw":
            if fits(problem, lanes):
                most = 6 if registers(device) > 16 else 3
                yield from ({**base, "rows": rows} for rows in (most, most - 2, most + 2))
            yield from ({**base, "slot": slot} for slot in (_SLOT, _SLOT // 4))
            return
        while lanes > problem.g:
            lanes //= 2
        # With a stride a tile of 8 reads twice as many columns: 5x5 layers of stride 2 take a tenth less by 4.
        places = 8 if problem.sw == 1 else 4
        base |= {"lanes": lanes, "p": places, "cb": 0}
        yield base
        yield {**base, "p": 12 - places}
        yield {**base, "cb": 4 * lanes}
        yield {**base, "cb": problem.g}

    def _kernels(self, problem: ConvProblem, config: Mapping[str, Any]) -> list[DepthwiseKernel]:
        kernel = RowKernel if problem.layout == "nhwc" else PlaneKernel
        return [kernel(p, problem, config) for p in passes(problem)]

    def _areas(self, kernels: list[DepthwiseKernel]) -> tuple[list[int], int, int]:
        """Byte offsets of each pass' weights, their size, and that of the slots."""
        weights, slots = Areas(PAGE), Areas(PAGE)
        offsets = [weights.add(kernel.packed_size) for kernel in kernels]
        slots.add(max(kernel.slots_size for kernel in kernels))
        return offsets, weights.size, slots.size

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Slots, and packed weights unless they are constant; nothing for what is computed from registers."""
        if "rows" in config:
            return 0
        _, weights, slots = self._areas(self._kernels(problem, config))
        return slots if problem.constant_weights else slots + weights

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The launch of each pass, operations, elements, and weights that are not constant, which are packed."""
        known = rates(device)
        balance = Balance.of(known)
        if "rows" in config:
            x, y = math.prod(problem.x_shape), math.prod(problem.y_shape)
            element = _ELEMENT if problem.sw == 1 else _APART
            work = _LANE * 2 * lanes_in(passes(problem)[0], config["lanes"]) * problem.kh * problem.kw
            work *= uneven(problem.mb * problem.g, device)
            return (_LAUNCHED * balance.launch + work + element * x + _ELEMENT * y) / known.flops
        work, element = _RATES[problem.layout]
        launches = len(passes(problem)) * (_LAUNCH if problem.constant_weights else _LAUNCH + _PACK)
        packed = 0.0 if problem.constant_weights else _PACKED * math.prod(problem.w_shape)
        elements = element * (math.prod(problem.x_shape) + math.prod(problem.y_shape))
        return (launches * balance.launch + work * problem.flops + elements + packed) / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        if "rows" in config:
            return VectorKernel(problem, config).plan(context)
        kernels = self._kernels(problem, config)
        offsets, weights, slots = self._areas(kernels)
        held, base = ("w", 0) if problem.constant_weights else ("workspace", slots)
        packers = [k.packer(context, at + base) for k, at in zip(kernels, offsets, strict=True)]
        steps = [k.launch(context, held, at + base) for k, at in zip(kernels, offsets, strict=True)]
        if problem.constant_weights:
            key = json.dumps([self.name, problem.dtype, problem.layout, problem.direction, problem.w_shape,
                              [(k.p.taps, k.p.w_first, k.p.w_step) for k in kernels], config["lanes"]])  # fmt: skip
            return StepPlan(slots, steps, weights, packers, key)
        return StepPlan(slots + weights, [*packers, *steps])
