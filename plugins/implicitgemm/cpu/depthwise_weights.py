"""``implicitgemm.depthwise_weights``: the weights' gradient of one channel a group, a vector a tap in registers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    build,
    define,
    kernel_text,
    rates,
    storage_macros,
)
from convdispatch.api.cpu import PAGE, Balance, cdiv, uneven
from convdispatch.api.cpu import lanes as lanes_of

from .depthwise_kernels import Bands
from .depthwise_vectors_weights import VectorSums
from .passes import Pass, passes
from .places import fits, lanes_in

_SLOT = 48 * 1024  # bytes of a band's source rows
# Operations of the peak in the time of one, of both launches, of an element of x or dy, and of dw.
_WORK, _LAUNCHES, _COPIED, _RESULT = 2.25, 8e6, 70.0, 670.0
# From registers: of the launch, an operation of a lane, an element of x or dy, one of x with a stride, and of dw.
_LAUNCH, _LANE, _ELEMENT, _APART, _ADDED = 4.8e6, 1.8, 12.0, 27.0, 450.0


def _pass(problem: ConvProblem) -> Pass:
    return passes(problem.replace(direction="fwd", accumulate=False))[0]


class _Kernel:
    """One configuration, worked out without compiling; x lies in slots as for the forward direction in NCHW."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config, self.p = problem, config, _pass(problem)
        self.forward = f = Bands(self.p, config)
        p = self.p
        # The taps of all rows at once while their sums fit the registers, else row by row.
        whole = p.taps[1] * p.taps[2] <= config["sums"] and (p.taps[0] == 1 or not p.nhwc)
        self.tile_rows = p.taps[1] if whole else 1
        self.bands = p.images * p.places[0] * cdiv(p.places[1], f.rows)
        self.chunks = cdiv(p.groups, f.cb) if p.nhwc else min(p.groups, config["chunks"])
        self.parts = max(1, min(self.bands, config["parts"] // self.chunks))
        if p.nhwc:
            self.gradient = f.rows * p.places[2] * f.cb + f.lanes
        else:
            self.gradient = f.rows * f.wp + f.lanes
        self.slot = cdiv(f.slot_x + self.gradient + (0 if p.nhwc else p.volume * f.lanes), 16) * 16
        areas = Areas(PAGE)
        areas.add(self.parts * p.volume * f.ct * f.size)
        self.slots_at = areas.add(self.parts * self.chunks * self.slot * f.size)
        self.workspace_size = areas.size

    def text(self) -> str:
        """The program."""
        p, f = self.p, self.forward
        text = storage_macros(p.dtype) + define(V=f"{DTYPES[p.dtype].accumulator}{f.lanes}", LANES=f.lanes)
        text += p.macros()
        text += define(IMAGES=p.images, G=p.groups, R=f.rows, CB=f.cb, CHUNKS=self.chunks, PARTS=self.parts, CT=f.ct)
        text += define(SLOT=f"{self.slot}L", SLOT_X=f.slot_x, GRADIENT=self.gradient, WP=f.wp, PART=f.part)
        text += define(PROWS=f.prows, ADD=int(self.problem.accumulate), GROUPS=p.groups, N=1, C=1)
        values = {
            "lanes": f.lanes, "inter": p.nhwc,
            "taps_w": p.taps[2], "step_w": p.step[2], "step_h": p.step[1], "spread_w": p.spread[2],
            "spread_h": p.spread[1], "tile_rows": self.tile_rows,
        }  # fmt: skip
        files = ("runs.cl", "planes.cl.mako", "plain_sum.cl", "depthwise_weights.cl.mako")
        return text + "".join(kernel_text(__package__, file, **values) for file in files)

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        program = build(context, self.text())
        pads = [*map(np.int32, self.p.pad)]
        arguments = ["x", "y", "workspace", np.int64(self.slots_at // self.forward.size), *pads]
        steps = [
            Launch(program, "weights", (self.parts, self.chunks, 1), (1, 1, 1), arguments, names=OPERANDS),
            Launch(program, "reduce", (self.p.groups, 1, 1), (1, 1, 1), ["x", "y", "workspace", "w", *pads],
                   names=OPERANDS),
        ]  # fmt: skip
        return StepPlan(self.workspace_size, steps)


class DepthwiseWeights(Solver):
    """One input and one output channel a group, on a CPU: the weights' gradient."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but the weights' gradient of one channel a group."""
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        if not problem.ic == problem.oc == problem.g:
            return f"one channel in and out a group only, got {problem.ic} and {problem.oc} in {problem.g} groups"
        if problem.kw > 25:
            return f"25 taps a row at most, got {problem.kw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The slot's size, the channels at a time, the parts of the sum."""
        lanes, units = lanes_of(device, problem.dtype), device.compute_units
        sums = 25 if device.simd_width >= 16 else 12
        base = {"lanes": lanes, "p": 8, "cb": 0, "slot": _SLOT, "sums": sums}
        if fits(problem.replace(direction="fwd", accumulate=False), lanes):
            for rows in (6, 4, 2) if sums > 16 else (3, 2):
                yield {"lanes": lanes, "items": 16 * units, "rows": rows, "sums": sums}
        base |= {"chunks": 16 * units, "parts": 16 * units}
        yield base
        yield {**base, "slot": 4 * _SLOT}
        if problem.layout == "nhwc":
            yield {**base, "cb": lanes}

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Parts of dw and the bands' slots."""
        return 0 if "rows" in config else _Kernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The launches, and the copies of x and dy; from registers their elements."""
        x, y, w = (math.prod(shape) for shape in (problem.x_shape, problem.y_shape, problem.w_shape))
        known = rates(device)
        balance = Balance.of(known)
        if "rows" in config:
            work = _LANE * 2 * lanes_in(_pass(problem), config["lanes"]) * problem.kh * problem.kw
            work *= uneven(problem.g, device)
            moved = (_ELEMENT if problem.sw == 1 else _APART) * x + _ELEMENT * y
            return (_LAUNCH * balance.launch + work + moved + _ADDED * w) / known.flops
        copied = _COPIED * (x + y)
        result = _RESULT * w
        return (_LAUNCHES * balance.launch + _WORK * problem.flops + copied + result) / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        kernel = VectorSums if "rows" in config else _Kernel
        return kernel(problem, config).plan(context)
