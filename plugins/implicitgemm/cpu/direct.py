"""``implicitgemm.direct``: forward and data gradient by register tiles over bands of rows, for every geometry."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import (
    DTYPES,
    MOST_PHASES,
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
    phase_count,
    rates,
    storage_macros,
)
from convdispatch.api.cpu import PAGE, Balance, cdiv
from convdispatch.api.cpu import lanes as lanes_of

from .passes import Pass, passes
from .tiles import default, predicted, spaces, straight

# Operations of the peak in the time of packing an element of w, one by one or turned in registers, and of a launch.
_PACKED, _LAUNCH = (145.0, 60.0), 3.7e6
_FAR, _CACHED = 240.0, 6 << 20  # the same of more bytes of w than caches keep, in either order


class PassKernel:
    """One pass under one configuration: its sizes, its text, its launches."""

    def __init__(self, p: Pass, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.p, self.problem, self.config = p, problem, config
        self.lanes, self.inter = config["lanes"], p.nhwc
        self.size = 8 if p.dtype == "float64" else 4
        self.nvl = config["nv"] * self.lanes
        self.cb = config["cb"]
        self.ncb = cdiv(p.c, self.cb)
        self.blocks = cdiv(p.n, self.nvl)
        rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        self.width = (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        # Pitches of an odd number of cache lines, so that rows and columns spread over the cache's sets.
        self.cp = self.cb if self.cb < 32 else cdiv(self.cb - 16, 32) * 32 + 16
        self.wp = self.width if self.width < 32 else cdiv(self.width - 16, 32) * 32 + 16
        line = self.width * self.cp if self.inter else self.wp * self.cb
        self.slot_block = p.taps[0] * rows * line
        self.slot_x = cdiv(self.ncb * self.slot_block, 16) * 16
        self.straight = straight(p, self.cb)
        sums = 0 if self.straight else config["rows"] * p.places[2] * self.nvl
        self.slot = cdiv(self.slot_x + sums, 1024) * 1024 + 80
        self.wblock = p.c * p.volume * self.nvl
        pads = (getattr(problem, f"p{axis}{side}") for axis in problem.axes for side in ("", "_r"))
        padded = problem.direction == "fwd" and any(pad > 0 for pad in pads)
        self.nonfinite = p.groups * self.blocks * self.wblock if padded else 0
        """Elements before the flags of weights that hold an infinity or NaN; 0: no flags, as in a data gradient."""
        flags = p.groups * self.blocks * cdiv(p.c, self.pack_c) if padded else 0
        self.packed_size = (p.groups * self.blocks * self.wblock + flags) * self.size
        self.slots_size = config["items"] * config["parts"] * self.slot * self.size

    def text(self) -> str:
        """The program: packing and convolution."""
        p, config, acc = self.p, self.config, DTYPES[self.p.dtype].accumulator
        text = storage_macros(p.dtype) + epilogue_macros(self.problem)
        text += define(V=f"{acc}{self.lanes}", LANES=self.lanes, NVL=self.nvl, NV=config["nv"])
        text += p.macros("XYZTSDU")
        text += define(IMAGES=p.images, G=p.groups, C=p.c, N=p.n, CB=self.cb, NCB=self.ncb)
        text += define(NB=self.blocks, R=config["rows"], PR=config["pr"], PC=config["pc"], ITEMS=config["items"])
        text += define(PARTS=config["parts"], CP=self.cp, WP=self.wp, SLOT=f"{self.slot}L", SLOT_X=self.slot_x)
        text += define(SLOT_BLOCK=self.slot_block, WBLOCK=f"{self.wblock}L", INTER=int(self.inter), PACK_C=self.pack_c)
        text += define(NONFINITE=f"{self.nonfinite}L" if self.nonfinite else 0)
        text += define(WN=p.w_strides[0], WC=p.w_strides[1], WT=p.w_strides[2], EMPTY=int(p.empty))
        text += define(FOLD=p.fold, YW_ALL=p.width or p.places[2])
        text += define(W_GROUP=self.problem.w_shape[0] // p.groups * _row(self.problem))
        text += define(KH_=p.kernel[1], KW_=p.kernel[2])
        text += define(**{f"KS{axis}": f"({step})" for axis, step in zip("DHW", p.w_step, strict=True)})
        whole, rest = config["pc"], p.places[2] % config["pc"]
        values = {
            "lanes": self.lanes,
            "nv": config["nv"], "pr": config["pr"], "widths": [whole, rest] if rest else [whole],
            "inter": self.inter, "c": p.c, "cp": self.cp, "groups": p.groups,
            "straight": self.straight,
            "runs": p.spread[2] == 1 and self.cp == p.c, "dense": p.dense, "fold": p.fold, "bias": self.problem.bias,
        }  # fmt: skip
        text += kernel_text(__package__, "pack.cl.mako", lanes=self.lanes, turned=self.turned)
        text += kernel_text(__package__, "runs.cl")
        last = [] if self.straight else ["finish.cl.mako"]
        files = ("stage.cl.mako", *last, "direct.cl.mako")
        return text + "".join(kernel_text(__package__, file, **values) for file in files)

    @property
    def turned(self) -> bool:
        """Whether a target channel's weights lie in the order of the tile's loops."""
        p = self.p
        if p.fold > 1 or p.empty or p.volume != math.prod(p.kernel) or any(p.w_first) or set(p.w_step) != {1}:
            return False
        order = (1, p.c) if self.inter else (p.volume, 1)
        return p.w_strides[1:] == order and (not self.inter or self.ncb == 1)

    @property
    def pack_c(self) -> int:
        """Source channels of a packing work item."""
        return max(1, min(self.p.c, 16384 // (self.p.volume * self.nvl)))

    def packer(self, context: Any, offset: int, into: str = "workspace") -> Launch:
        """Packs w into operand ``into`` from byte ``offset`` on."""
        program = build(context, self.text())
        sizes = (cdiv(self.p.c, self.pack_c), self.p.groups * self.blocks, 1)
        first = [np.int32(f) for f in self.p.w_first]
        arguments = ["w", into, np.int64(offset // self.size), *first]
        return Launch(program, "pack", sizes, (1, 1, 1), arguments, names=OPERANDS)

    def launch(self, context: Any, weights: str, weights_offset: int, slots_offset: int) -> Launch:
        """The convolution itself; offsets in bytes."""
        program, p = build(context, self.text()), self.p
        source, target = ("x", "y") if self.problem.direction == "fwd" else ("y", "x")
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        arguments = [source, weights, np.int64(weights_offset // self.size), "workspace"]
        arguments += [np.int64(slots_offset // self.size), target, *extras]
        arguments += [np.int32(v) for v in (*p.pad, *p.start)]
        sizes = (self.config["items"], self.config["parts"], 1)
        return Launch(program, "conv", sizes, (1, 1, 1), arguments, names=OPERANDS)


def _passes(problem: ConvProblem, lanes: int) -> list[Pass]:
    return [p.folded(lanes) for p in passes(problem)]


def _row(problem: ConvProblem) -> int:
    return problem.ic // problem.g * problem.kd * problem.kh * problem.kw


class Direct(Solver):
    """Register tiles over bands of rows: any rank, group, stride, dilation, padding, layout and dtype."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but a forward convolution or data gradient on a CPU."""
        if problem.direction == "bwd_weights":
            return "forward and bwd_data only, got bwd_weights"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles and blocks for the largest pass; the other passes take what their own counts favour."""
        largest = max(_passes(problem, lanes_of(device, problem.dtype)), key=lambda p: p.flops)
        for config in spaces(largest, device):
            yield {"lanes": lanes_of(device, problem.dtype), **config}

    def _kernels(self, problem: ConvProblem, config: Mapping[str, Any], device: DeviceInfo) -> list[PassKernel]:
        found = _passes(problem, config["lanes"])
        largest = max(found, key=lambda p: p.flops)
        same = (largest.places, largest.taps, largest.c)
        return [
            PassKernel(p, problem, config if (p.places, p.taps, p.c) == same else {**config, **default(p, device)})
            for p in found
        ]

    def _areas(self, problem: ConvProblem, kernels: list[PassKernel]) -> tuple[list[int], int, int]:
        """Byte offsets of each pass' packed weights, their size, and that of the slots, which all passes share."""
        weights = Areas(PAGE)
        offsets = [weights.add(kernel.packed_size) for kernel in kernels]
        return offsets, weights.size, max(kernel.slots_size for kernel in kernels)

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Slots, and packed weights unless they are constant."""
        _, weights, slots = self._areas(problem, self._kernels(problem, config, device))
        return slots if problem.constant_weights else slots + weights

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The tiles' cycles, staging, stores and launches, and the packing of weights that are not constant."""
        kernels = self._kernels(problem, config, device)
        known = rates(device)
        balance = Balance.of(known)
        launch = _LAUNCH * balance.launch
        cost = sum(predicted(kernel.p, kernel.config, device) for kernel in kernels) + launch * len(kernels)
        if not problem.constant_weights:
            cost += sum(
                (_FAR * balance.memory if kernel.packed_size > _CACHED else _PACKED[kernel.turned])
                * kernel.packed_size
                / kernel.size
                + launch
                for kernel in kernels
            )
        return cost / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        device = _Wide(config["lanes"] * (2 if problem.dtype == "float64" else 1), context.devices[0].max_compute_units)
        kernels = self._kernels(problem, config, device)
        offsets, weights, slots = self._areas(problem, kernels)
        held, base = ("w", 0) if problem.constant_weights else ("workspace", slots)
        packers = [k.packer(context, at + base) for k, at in zip(kernels, offsets, strict=True)]
        steps = [k.launch(context, held, at + base, 0) for k, at in zip(kernels, offsets, strict=True)]
        if problem.constant_weights:
            key = json.dumps([self.name, str(problem), dict(config)], sort_keys=True)
            return StepPlan(slots, steps, weights, packers, key)
        return StepPlan(slots + weights, [*packers, *steps])


class _Wide:
    """The two numbers of a DeviceInfo that choosing tiles needs, from a configuration and a context."""

    def __init__(self, simd_width: int, compute_units: int) -> None:
        self.simd_width, self.compute_units = simd_width, compute_units
