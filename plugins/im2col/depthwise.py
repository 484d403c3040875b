"""Convolutions with one source channel per group, lowered in registers.

A matrix product with one or a few rows would spend its time on copying the lowered matrix. This method serves the
forward convolution, the data gradient of stride 1 with the taps flipped, and on a CPU the weights' gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

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

MAX_TAPS = 64
"""Most taps of a kernel: the loop over taps is unrolled."""
MAX_TARGETS = 8
"""Most output channels per group."""
MAX_PLANE_BYTES = 1 << 26
"""Most bytes of one padded plane of the source, which one work item copies."""

# The constants of the cost model are in operations at the device's peak multiply-add rate.
OPERATION_OPS = 3.0  # operations at peak rate per operation of the direct sum, in NCHW
LAUNCH_OPS = 4.8e6  # operations at peak rate in the time of the one kernel launch, in NCHW
# Operations at peak rate per element copied into its padded plane: forward, and in the weights' gradient
FILLED_OPS = (12.0, 31.0)
# Operations at peak rate per element copied into its padded plane, where a stride separates the columns by phase
STRIDED_OPS = 42.0
ADDED_OPS = 700.0  # operations at peak rate per element of dw: the lanes of its vector of sums are added one by one
NHWC_OPERATION_OPS = 4.3  # operations at peak rate per operation of the direct sum, in NHWC
NHWC_LAUNCH_OPS = 7.5e6  # operations at peak rate in the time of the one kernel launch, in NHWC
NHWC_READ_OPS = 17.0  # operations at peak rate per element of the source that is read, in NHWC


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """Yield one configuration per workspace cap; none on GPUs, nor if the problem is not depthwise or exceeds a limit
    above."""
    if device.type != "cpu":
        return
    flipped = problem.direction == "bwd_data"
    window = PatchWindow.of(problem, flipped)
    if window.groups == 1 or window.group_channels > 1 or window.volume > MAX_TAPS:
        return
    if window.group_targets > (1 if window.nhwc else MAX_TARGETS):
        return
    config = {"method": "depthwise", "flipped": flipped}
    if window.nhwc:
        rows = window.images * window.positions[0] * window.positions[1]
        yield {**config, "rows": max(1, min(window.positions[1], rows // (16 * device.compute_units)))}
    else:
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
        self.packs = window.nhwc and not self.gradient
        # In a padded NCHW plane, ``reach`` has the taps' offsets along each axis from the plane's first element, and
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
    def packed_size(self) -> int:
        """Bytes of the weights packed as [tap][channel]."""
        return self.window.volume * round_up(self.window.channels, self.lanes) * self.window.accumulator_size

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace: NCHW's padded planes, or NHWC's flipped weights."""
        if self.packs:
            return 0 if self.problem.constant_weights else self.packed_size
        if self.window.nhwc:
            return 0
        plane = self.extent[0] * self.extent[1] * self.window.step[2] * self.pitch
        return plane * self.window.accumulator_size * self.config["items"]

    def cost(self, balance: Balance) -> float:
        """Return operations at peak rate on a CPU: one launch, padded planes, vectors with empty lanes at row ends."""
        window = self.window
        source = window.images * window.channels * math.prod(window.source)
        if window.nhwc:
            return NHWC_LAUNCH_OPS * balance.launch + NHWC_READ_OPS * source + NHWC_OPERATION_OPS * self.problem.flops
        fill_ops = (STRIDED_OPS if window.step[2] > 1 else FILLED_OPS[self.gradient]) * source
        fill_ops += ADDED_OPS * math.prod(self.problem.w_shape) * self.gradient
        sum_ops = OPERATION_OPS * self.problem.flops * round_up(window.positions[2], self.lanes) / window.positions[2]
        return LAUNCH_OPS * balance.launch + fill_ops + sum_ops

    def plan(self, context: Any) -> StepPlan:
        """Compile the packing of NHWC weights and the one launch of the convolution."""
        program, window, problem = build(context, self.text()), self.window, self.problem
        if self.gradient:
            items = -(-window.channels // self.lanes) if window.nhwc else self.config["items"]
            names = ["x", "y", "w"] + ([] if window.nhwc else ["workspace"])
            launch = Launch(program, "gradient", (items, 1, 1), (1, 1, 1), names, names=OPERANDS)
            return StepPlan(self.workspace_size, [launch])
        source, target = ("y", "x") if self.config["flipped"] else ("x", "y")
        epilogue_operands = [part for part in ("bias", "residual") if getattr(problem, part)]
        steps: list[Any] = []
        outputs, scratch = [target, *epilogue_operands], []
        arguments: list[Any] = [source, "w"]
        if window.nhwc:
            size = (-(-window.positions[1] // self.config["rows"]), window.positions[0], window.images)
            arguments.append(np.int64(0))
            arguments[1] = "w" if problem.constant_weights else "workspace"
        else:
            size = (self.config["items"], 1, 1)
            scratch.append("workspace")
        steps.append(Launch(program, "depthwise", size, (1, 1, 1), [*arguments, *outputs, *scratch], names=OPERANDS))
        if not self.packs:
            return StepPlan(self.workspace_size, steps)
        once, key = (
            problem.constant_weights,
            f"im2col depthwise nhwc {problem.dtype} {problem.w_shape} lanes {self.lanes}",
        )
        return StepPlan.packing(once, self.workspace_size, [self._packer(program)], steps, self.packed_size, key)

    def _packer(self, program: Any) -> Launch:
        size = (round_up(self.window.channels, self.lanes), self.window.volume)
        return Launch(program, "pack", size, None, ["w", "workspace", np.int64(0)], names=OPERANDS)

    def text(self) -> str:
        window, problem = self.window, self.problem
        text = window.macros() + epilogue_macros(problem)
        text += define(ACCSIZE=window.accumulator_size, IMAGES=window.images, M=window.group_targets)
        text += define(NHWC=int(window.nhwc), LANES=self.lanes, V=f"{DTYPES[window.dtype].accumulator}{self.lanes}")
        text += kernel_text(__package__, "first.cl")
        plain = not DTYPES[window.dtype].widened
        if window.nhwc:
            low, high = self._inside()
            text += define(ROWS=self.config["rows"], XLO=low, XHI=high, CP=round_up(window.channels, self.lanes))
            values = {"plain": plain, "gradient": self.gradient, "volume": window.volume, "taps": window.taps}
            return text + kernel_text(__package__, "depthwise_nhwc.cl.mako", **values)
        text += define(ITEMS=self.config["items"], EZ=self.extent[0], EY=self.extent[1], PITCH=self.pitch)
        text += define(ZERO_Z=f"({self.zero[0]})", ZERO_Y=f"({self.zero[1]})")
        step, row = window.step[2], window.step[2] * self.pitch
        offsets = [
            (z * self.extent[1] + y) * row + x % step * self.pitch + x // step
            for z, y, x in itertools.product(*self.reach)
        ]
        values = {"gradient": self.gradient, "volume": window.volume, "offsets": offsets, "lanes": self.lanes}
        values |= {"step": step, "pitch": self.pitch, "zero_x": self.zero[2], "width": window.source[2]}
        return text + kernel_text(__package__, "depthwise_nchw.cl.mako", bias=problem.bias, **values)

    def _inside(self) -> tuple[int, int]:
        """Return the range of output columns whose every tap reads inside the source's row."""
        step, zero, width = self.window.step[2], self.zero[2], self.window.source[2]
        low = max(0, -(zero // step))
        last_column = (width - 1 - zero - max(self.reach[2])) // step
        return low, max(low, min(self.window.positions[2], math.floor(last_column) + 1))
