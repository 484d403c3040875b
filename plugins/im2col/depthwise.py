"""One source channel a group, lowered in registers: a product with one row, or few, would only copy the matrix.

Forward, the data gradient of stride 1 with the taps flipped, and on a CPU the weights' gradient.
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
from convdispatch.api.cpu import Balance

from .window import PatchWindow

MAX_TAPS = 64
"""Taps, which are unrolled."""
MAX_TARGETS = 8
"""Output channels a group."""
MAX_PLANE_BYTES = 1 << 26
"""Bytes of one padded plane."""

# The cost model counts operations of the peak.
OPERATION_OPS = 3.0  # an operation of the direct sum, NCHW
LAUNCH_OPS = 4.8e6  # the launch, NCHW
FILLED_OPS = (12.0, 31.0)  # an element that is copied into its plane: forward, and for the weights' gradient
STRIDED_OPS = 42.0  # the same where a stride deals columns out
ADDED_OPS = 700.0  # an element of dw, whose vector is added lane by lane
NHWC_OPERATION_OPS = 4.3  # an operation of the direct sum, NHWC
NHWC_LAUNCH_OPS = 7.5e6  # the launch, NHWC
NHWC_READ_OPS = 17.0  # an element of the source, NHWC


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """One configuration a cap; none where the problem is not of this kind."""
    flipped = problem.direction == "bwd_data"
    window = PatchWindow.of(problem, flipped)
    if window.groups == 1 or window.group_channels > 1 or window.volume > MAX_TAPS:
        return
    if window.group_targets > (1 if window.nhwc else MAX_TARGETS):
        return
    config = {"method": "depthwise", "flipped": flipped, "cpu": device.type == "cpu"}
    if problem.direction == "bwd_weights" and not config["cpu"]:
        return
    if not config["cpu"]:
        yield config
    elif window.nhwc:
        rows = window.images * window.places[0] * window.places[1]
        yield {**config, "rows": max(1, min(window.places[1], rows // (16 * device.compute_units)))}
    else:
        plane = Depthwise(problem, {**config, "items": 1}).workspace_size
        jobs = window.targets if problem.direction == "bwd_weights" else window.images * window.groups
        for cap in caps if plane <= MAX_PLANE_BYTES else []:
            yield {**config, "items": max(1, min(jobs, 16 * device.compute_units, cap // plane))}


class Depthwise:
    """One configuration, nothing compiled."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.window = window = PatchWindow.of(problem, config["flipped"])
        self.lanes = 8 if window.dtype == "float64" else 16
        self.gradient = problem.direction == "bwd_weights"
        self.packs = config["cpu"] and window.nhwc and not self.gradient
        # A padded NCHW plane: ``reach`` has the taps' offsets from its first element, ``zero`` is that element in x.
        low = [min(0, (taps - 1) * spread) for taps, spread in zip(window.taps, window.spread, strict=True)]
        self.zero = [base - pad for base, pad in zip(low, window.pad, strict=True)]
        self.reach = [
            [tap * spread - base for tap in range(taps)]
            for taps, spread, base in zip(window.taps, window.spread, low, strict=True)
        ]
        self.extent = [
            (places - 1) * step + max(reach) + 1
            for places, step, reach in zip(window.places, window.step, self.reach, strict=True)
        ]
        self.pitch = up(up(window.places[2], self.lanes) + max(self.reach[2]) // window.step[2], self.lanes)

    @property
    def packed_size(self) -> int:
        """Bytes of the weights as [tap][channel]."""
        return self.window.volume * up(self.window.channels, self.lanes) * self.window.accumulator_size

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace: NCHW's padded planes, or NHWC's flipped weights."""
        if self.packs:
            return 0 if self.problem.constant_weights else self.packed_size
        if not self.config["cpu"] or self.window.nhwc:
            return 0
        plane = self.extent[0] * self.extent[1] * self.window.step[2] * self.pitch
        return plane * self.window.accumulator_size * self.config["items"]

    def cost(self, balance: Balance) -> float:
        """Operations of the peak, on a CPU: one launch, the padded planes, and vectors with empty lanes at row ends."""
        window = self.window
        source = window.images * window.channels * math.prod(window.source)
        if window.nhwc:
            return NHWC_LAUNCH_OPS * balance.launch + NHWC_READ_OPS * source + NHWC_OPERATION_OPS * self.problem.flops
        filled = (STRIDED_OPS if window.step[2] > 1 else FILLED_OPS[self.gradient]) * source
        filled += ADDED_OPS * math.prod(self.problem.w_shape) * self.gradient
        work = OPERATION_OPS * self.problem.flops * up(window.places[2], self.lanes) / window.places[2]
        return LAUNCH_OPS * balance.launch + filled + work

    def plan(self, context: Any) -> StepPlan:
        """The packing of NHWC weights, and one launch."""
        program, window, problem = build(context, self.text()), self.window, self.problem
        if self.gradient:
            items = -(-window.channels // self.lanes) if window.nhwc else self.config["items"]
            names = ["x", "y", "w"] + ([] if window.nhwc else ["workspace"])
            launch = Launch(program, "gradient", (items, 1, 1), (1, 1, 1), names, names=OPERANDS)
            return StepPlan(self.workspace_size, [launch])
        source, target = ("y", "x") if self.config["flipped"] else ("x", "y")
        extras = [part for part in ("bias", "residual") if getattr(problem, part)]
        steps: list[Any] = []
        local: tuple[int, ...] | None = (1, 1, 1)
        written, scratch = [target, *extras], []
        arguments: list[Any] = [source, "w"]
        if not self.config["cpu"]:
            size: tuple[int, ...] = (up(window.images * window.targets * window.pixels, 128),)
            local = (128,)
        elif window.nhwc:
            size = (-(-window.places[1] // self.config["rows"]), window.places[0], window.images)
            arguments.append(np.int64(0))
            if not problem.constant_weights:
                arguments[1] = "workspace"
                steps.append(self._packer(program))
        else:
            size = (self.config["items"], 1, 1)
            scratch.append("workspace")
        steps.append(Launch(program, "depthwise", size, local, [*arguments, *written, *scratch], names=OPERANDS))
        if not (self.packs and problem.constant_weights):
            return StepPlan(self.workspace_size, steps)
        key = f"im2col depthwise nhwc {problem.dtype} {problem.w_shape} lanes {self.lanes}"
        return StepPlan(self.workspace_size, steps, self.packed_size, [self._packer(program)], key)

    def _packer(self, program: Any) -> Launch:
        size = (up(self.window.channels, self.lanes), self.window.volume)
        return Launch(program, "pack", size, None, ["w", "workspace", np.int64(0)], names=OPERANDS)

    def text(self) -> str:
        """The program."""
        window, problem = self.window, self.problem
        text = window.macros() + epilogue_macros(problem)
        text += define(ACCSIZE=window.accumulator_size, IMAGES=window.images, M=window.group_targets)
        text += define(NHWC=int(window.nhwc))
        if not self.config["cpu"]:
            return text + kernel_text(__package__, "depthwise_gpu.cl")
        text += define(LANES=self.lanes, V=f"{DTYPES[window.dtype].accumulator}{self.lanes}")
        text += kernel_text(__package__, "first.cl")
        plain = window.dtype in ("float32", "float64")
        if window.nhwc:
            low, high = self._inside()
            text += define(ROWS=self.config["rows"], XLO=low, XHI=high, CP=up(window.channels, self.lanes))
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
        """Places of a row, from and to, whose every tap reads inside the source's row."""
        step, zero, width = self.window.step[2], self.zero[2], self.window.source[2]
        low = max(0, -(zero // step))
        last = (width - 1 - zero - max(self.reach[2])) // step
        return low, max(low, min(self.window.places[2], math.floor(last) + 1))


def up(value: int, unit: int) -> int:
    """The least multiple of ``unit`` that is no less."""
    return -(-value // unit) * unit
