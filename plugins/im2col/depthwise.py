"""Convolutions with one source channel per group in NCHW on a CPU, lowered in registers.

A matrix product with one or a few rows would spend its time on copying the lowered matrix. This method serves the
forward convolution, the data gradient of stride 1 with the taps flipped, and the weights' gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Launch,
    StepPlan,
    build,
    define,
    epilogue_macros,
    kernel_text,
)
from convdispatch.api.cpu import Balance, round_up

from .window import PatchWindow

MAX_TAPS = 128
"""Most taps of a kernel: the loop over taps is unrolled."""
MAX_TARGETS = 8
"""Most output channels per group."""
MAX_PLANE_BYTES = 1 << 26
"""Most bytes of one padded plane of the source, which one work item copies."""

# The constants of the cost model are in operations at the device's peak multiply-add rate.
OPERATION_OPS = 3.0  # operations at peak rate per operation of the direct sum
LAUNCH_OPS = 4.8e6  # operations at peak rate in the time of the one kernel launch
# Operations at peak rate per element copied into its padded plane: forward, and in the weights' gradient
FILLED_OPS = (12.0, 31.0)
# Operations at peak rate per element copied into its padded plane, where a stride separates the columns by phase
STRIDED_OPS = 42.0
ADDED_OPS = 700.0  # operations at peak rate per element of dw: the lanes of its vector of sums are added one by one


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """Yield one configuration per workspace cap; none on GPUs, in NHWC, nor if the problem is not depthwise or exceeds
    a limit above."""
    if device.type != "cpu" or problem.layout == "nhwc":
        return
    flipped = problem.direction == "bwd_data"
    window = PatchWindow.of(problem, flipped)
    if window.groups == 1 or window.group_channels > 1 or window.volume > MAX_TAPS:
        return
    if window.group_targets > MAX_TARGETS:
        return
    config = {"method": "depthwise", "flipped": flipped}
    plane = Depthwise(problem, {**config, "items": 1}).workspace_size
    jobs = window.targets if problem.direction == "bwd_weights" else window.images * window.groups
    for cap in caps if plane <= MAX_PLANE_BYTES else []:
        yield {**config, "items": max(1, min(jobs, 16 * device.compute_units, cap // plane))}


class Depthwise:
    """The depthwise method under one configuration: sizes, text and launches; nothing is compiled."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.window = window = PatchWindow.of(problem, config["flipped"])
        self.lanes = 64 // window.accumulator_size
        self.gradient = problem.direction == "bwd_weights"
        # In a padded plane, ``reach`` has the taps' offsets along each axis from the plane's first element, and
        # ``zero`` is the position of that element in x.
        low = [min(0, (taps - 1) * spread) for taps, spread in zip(window.taps, window.spread, strict=True)]
        self.zero = [base - pad for base, pad in zip(low, window.pad, strict=True)]
        self.reach = [
            [tap * spread - base for tap in range(taps)]
            for taps, spread, base in zip(window.taps, window.spread, low, strict=True)
        ]
        self.extent = [
            (positions - 1) * step + max(reach) + 1
            for positions, step, reach in zip(window.positions, window.step, self.reach, strict=True)
        ]
        width = round_up(window.positions[2], self.lanes) + max(self.reach[2]) // window.step[2]
        self.pitch = round_up(width, self.lanes)

    @property
    def workspace_size(self) -> int:
        """Bytes of the work items' padded planes."""
        plane = self.extent[0] * self.extent[1] * self.window.step[2] * self.pitch
        return plane * self.window.accumulator_size * self.config["items"]

    def cost(self, balance: Balance) -> float:
        """Return operations at peak rate on a CPU: one launch, padded planes, vectors with empty lanes at row ends."""
        window = self.window
        source = window.images * window.channels * math.prod(window.source)
        fill_ops = (STRIDED_OPS if window.step[2] > 1 else FILLED_OPS[self.gradient]) * source
        fill_ops += ADDED_OPS * math.prod(self.problem.w_shape) * self.gradient
        sum_ops = OPERATION_OPS * self.problem.flops * round_up(window.positions[2], self.lanes) / window.positions[2]
        return LAUNCH_OPS * balance.launch + fill_ops + sum_ops

    def plan(self, context: Any) -> StepPlan:
        """Compile the one launch of the convolution."""
        program, size = build(context, self.text()), (self.config["items"], 1, 1)
        if self.gradient:
            launch = Launch(program, "gradient", size, (1, 1, 1), ["x", "y", "w", "workspace"], names=OPERANDS)
            return StepPlan(self.workspace_size, [launch])
        source, target = ("y", "x") if self.config["flipped"] else ("x", "y")
        epilogue_operands = [part for part in ("bias", "residual") if getattr(self.problem, part)]
        operands = [source, "w", target, *epilogue_operands, "workspace"]
        launch = Launch(program, "depthwise", size, (1, 1, 1), operands, names=OPERANDS)
        return StepPlan(self.workspace_size, [launch])

    def text(self) -> str:
        window, problem = self.window, self.problem
        text = window.macros() + epilogue_macros(problem)
        text += define(ACCSIZE=window.accumulator_size, IMAGES=window.images, M=window.group_targets)
        text += define(LANES=self.lanes, V=f"{DTYPES[window.dtype].accumulator}{self.lanes}")
        text += define(ITEMS=self.config["items"], EZ=self.extent[0], EY=self.extent[1], PITCH=self.pitch)
        text += define(ZERO_Z=f"({self.zero[0]})", ZERO_Y=f"({self.zero[1]})")
        step, row = window.step[2], window.step[2] * self.pitch
        offsets = [
            (z * self.extent[1] + y) * row + x % step * self.pitch + x // step
            for z, y, x in itertools.product(*self.reach)
        ]
        values = {"gradient": self.gradient, "volume": window.volume, "offsets": offsets, "lanes": self.lanes}
        values |= {"step": step, "pitch": self.pitch, "zero_x": self.zero[2], "width": window.source[2]}
        return text + kernel_text(__package__, "depthwise.cl.mako", bias=problem.bias, **values)
