"""``implicitgemm.depthwise``: one channel a group, forward and data gradient: vectors along channels or places."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    DTYPES,
    EPILOGUE,
    OPERANDS,
    Areas,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    build,
    define,
    epilogue_macros,
    kernel_text,
    rates,
    storage_macros,
)
from convdispatch.api.cpu import PAGE
from convdispatch.api.cpu import lanes as lanes_of

from .passes import Pass, passes

__all__ = ["Depthwise"]

FILES = ("runs.cl", "planes.cl.mako", "depthwise.cl.mako")
_SLOT = 96 * 1024  # bytes of a band's source rows
_VECTORS = 4  # vectors of places that NCHW computes at a time
# Operations of the peak in the time of one, of a pass' launch and of its packing's, and of an element that is copied,
# or packed by the one work item that does so: least squares of logarithms over 67 times of 11 layers drawn for it.
_WORK, _LAUNCH, _PACK, _COPIED, _PACKED = 1.65, 5.8e6, 2.5e6, 75.0, 2500.0


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


class DepthwiseKernel:
    """One pass under one configuration."""

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.p, self.problem, self.config = p, problem, config
        self.lanes, self.size = config["lanes"], 8 if p.dtype == "float64" else 4
        self.ct = _ceil(p.groups, self.lanes) * self.lanes
        self.width = (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        self.halo = (p.taps[1] - 1) * p.spread[1] + 1
        self.wp = _ceil(self.width, p.step[2])
        self.cb = self._channels()
        per_row = self.width * self.cb if p.nhwc else self.wp * p.step[2]
        fitting = (config["slot"] // (p.taps[0] * per_row * self.size) - self.halo) // p.step[1] + 1
        self.rows = max(1, min(p.places[1], max(fitting, min(4, p.places[1]))))
        self.rows = _ceil(p.places[1], _ceil(p.places[1], self.rows))
        rows = (self.rows - 1) * p.step[1] + self.halo
        self.prows = _ceil(rows, p.step[1])
        # Vectors may run a tile beyond the last place: the parts keep room for that.
        over = (_VECTORS + 1) * self.lanes
        self.part = p.taps[0] * self.prows * self.wp + over
        slot_x = p.taps[0] * rows * self.width * self.cb + self.lanes if p.nhwc else self.part * p.step[1] * p.step[2]
        self.slot_x = _ceil(slot_x, 16) * 16
        self.slot = _ceil(self.slot_x + (0 if p.nhwc else self.rows * self.wp + over), 16) * 16
        bands = p.images * p.places[0] * _ceil(p.places[1], self.rows)
        work = bands * (_ceil(p.groups, self.cb) if p.nhwc else p.groups)
        self.items = min(work, config["items"])
        self.packed_size = self.ct * p.volume * self.size
        self.slots_size = self.items * self.slot * self.size

    def _channels(self) -> int:
        """NHWC channels at a time: all of them, copied in whole rows, unless that leaves too few jobs."""
        p, asked = self.p, self.config["cb"]
        if asked:
            return min(asked, p.groups)
        few = _ceil(16, max(1, p.images * p.places[0] * _ceil(p.places[1], 8)))
        return min(p.groups, _ceil(_ceil(p.groups, few), self.lanes) * self.lanes)

    def text(self) -> str:
        """The program: packing and convolution."""
        p, config, acc = self.p, self.config, DTYPES[self.p.dtype].accumulator
        text = storage_macros(p.dtype) + epilogue_macros(self.problem)
        text += define(V=f"{acc}{self.lanes}", LANES=self.lanes)
        for prefix, triple in (
            ("X", p.source), ("Y", p.places), ("Z", p.target), ("T", p.taps), ("S", p.step), ("D", p.spread),
            ("U", p.stride),
        ):  # fmt: skip
            text += define(**{prefix + axis: value for axis, value in zip("DHW", triple, strict=True)})
        places = min(config["p"], p.places[2])
        text += define(IMAGES=p.images, G=p.groups, R=self.rows, CB=self.cb, CHUNKS=_ceil(p.groups, self.cb), P=places)
        text += define(ITEMS=self.items, SLOT=f"{self.slot}L", SLOT_X=self.slot_x, WP=self.wp, PART=self.part)
        text += define(PROWS=self.prows, CT=self.ct, WG=math.prod(p.kernel), EMPTY=int(p.empty))
        text += define(KH_=p.kernel[1], KW_=p.kernel[2])
        text += define(**{f"KS{axis}": f"({step})" for axis, step in zip("DHW", p.w_step, strict=True)})
        rest = p.places[2] % places
        flat = (self.rows - 1) * self.wp + p.places[2]
        values = {
            "inter": p.nhwc,
            "widths": [places, rest] if rest else [places], "taps_w": p.taps[2], "taps_h": p.taps[1],
            "step_w": p.step[2], "step_h": p.step[1], "spread_w": p.spread[2], "spread_h": p.spread[1],
            "vectors": min(_VECTORS, _ceil(flat, self.lanes)), "dense": p.stride[2] == 1, "bias": self.problem.bias,
        }  # fmt: skip
        return text + "".join(kernel_text(__package__, f, **values) for f in FILES)

    def packer(self, context: Any, offset: int) -> Launch:
        """Packs w into the workspace, or the packed buffer in its place, from byte ``offset`` on."""
        first = [np.int32(f) for f in self.p.w_first]
        arguments = ["w", "workspace", np.int64(offset // self.size), *first]
        return Launch(build(context, self.text()), "pack", (1, 1, 1), (1, 1, 1), arguments, names=OPERANDS)

    def launch(self, context: Any, weights: str, offset: int) -> Launch:
        """The convolution itself; ``offset`` of the weights in bytes."""
        source, target = ("x", "y") if self.problem.direction == "fwd" else ("y", "x")
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        arguments = [source, weights, np.int64(offset // self.size), "workspace", np.int64(0), target, *extras]
        arguments += [np.int32(v) for v in (*self.p.pad, *self.p.start)]
        return Launch(
            build(context, self.text()), "depthwise", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS
        )


class Depthwise(Solver):
    """One input and one output channel a group, on a CPU: forward and data gradient."""

    name = "implicitgemm.depthwise"
    exact = True
    fuses = EPILOGUE

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but one channel a group."""
        if device.type != "cpu":
            return f"cpu only, got {device.type}"
        if problem.direction == "bwd_weights":
            return "forward and bwd_data only, got bwd_weights"
        if not problem.ic == problem.oc == problem.g:
            return f"one channel in and out a group only, got {problem.ic} and {problem.oc} in {problem.g} groups"
        if problem.kh * problem.kw > 49:
            return f"49 taps a plane at most, got {problem.kh}x{problem.kw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Places of a tile, channels of a work item at a time (0: as many as leave enough jobs), the slot's size."""
        lanes = lanes_of(device, problem.dtype)
        base = {"lanes": lanes, "p": 8, "cb": 0, "slot": _SLOT, "items": 16 * device.compute_units}
        yield base
        if problem.layout == "nhwc":
            yield {**base, "p": 4}
            yield {**base, "cb": 4 * lanes}
        yield {**base, "slot": _SLOT // 4}

    def _kernels(self, problem: ConvProblem, config: Mapping[str, Any]) -> list[DepthwiseKernel]:
        return [DepthwiseKernel(p, problem, config) for p in passes(problem)]

    def _areas(self, kernels: list[DepthwiseKernel]) -> tuple[list[int], int, int]:
        """Byte offsets of each pass' weights, their size, and that of the slots."""
        weights, slots = Areas(PAGE), Areas(PAGE)
        offsets = [weights.add(kernel.packed_size) for kernel in kernels]
        slots.add(max(kernel.slots_size for kernel in kernels))
        return offsets, weights.size, slots.size

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Slots, and packed weights unless they are constant."""
        _, weights, slots = self._areas(self._kernels(problem, config))
        return slots if problem.constant_weights else slots + weights

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The launch of each pass, what is copied, and weights that are not constant, which one work item packs."""
        launches = len(passes(problem)) * (_LAUNCH if problem.constant_weights else _LAUNCH + _PACK)
        packed = 0.0 if problem.constant_weights else _PACKED * math.prod(problem.w_shape)
        copied = _COPIED * (math.prod(problem.x_shape) + math.prod(problem.y_shape))
        return (launches + _WORK * problem.flops + copied + packed) / rates(device).flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
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
