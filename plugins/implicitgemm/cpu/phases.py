"""``implicitgemm.phases``: strided data gradients in NCHW, all phases of the stride in one launch."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
    epilogue_macros,
    kernel_text,
    rates,
    storage_macros,
)
from convdispatch.api.cpu import PAGE, Balance, cdiv, registers
from convdispatch.api.cpu import lanes as lanes_of

from .passes import passes

_SLOT, _MOST_SLOT = 256 * 1024, 2 << 20  # bytes of a band's source rows: wanted, and at most
# Operations of the peak in the time of one in a tile, of an element that is copied for a band or written, of packing an
# element of w, of more bytes than caches keep, and of a launch.
_WORK, _STAGED, _STORED, _PACKED, _FAR, _CACHED, _LAUNCH = 1.06, 12.0, 16.0, 112.0, 600.0, 6 << 20, 4e6
_DENSE = 1.08
"""What one phase alone takes beside this count: without a stride, many channels are read for few places."""


class Part(NamedTuple):
    """One phase as the kernel meets it."""

    number: int
    volume: int
    taps: tuple[int, ...]
    w_first: tuple[int, ...]
    w_step: tuple[int, ...]
    at: int
    """Of the slot, where place 0 and tap 0 read."""
    before: int
    """Of a block's packed weights, where this phase's begin."""


_MOST_BANDS = 1024
"""Divisions of an image's rows that are looked at; of more rows the largest twelve heights are the same."""


class PhasesKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.passes = found = passes(problem)
        self.p = p = max(found, key=lambda each: each.volume * (not each.empty))
        self.lanes, self.size, self.mr = config["lanes"], 8 if p.dtype == "float64" else 4, config["mr"]
        live = [each for each in found if not each.empty]
        # The slot's first row and column in the source, the rows that a band reads beyond its places, and its pitch.
        self.zero = tuple(min((-each.pad[axis] for each in live), default=0) for axis in (1, 2))
        reach = [
            max((-each.pad[axis] - zero + (each.taps[axis] - 1) * each.spread[axis] for each in live), default=0)
            for axis, zero in zip((1, 2), self.zero, strict=True)
        ]
        self.height, self.width = (max(each.places[axis] for each in found) for axis in (1, 2))
        self.wp = self.width + reach[1]
        self.rows = min(config["rows"], self.height)
        self.slot_rows = self.rows + reach[0]
        flat = (self.rows - 1) * self.wp + self.width
        self.vectors = max(cdiv(flat, self.lanes), config["nv"])
        # An odd number of vectors, so that channels spread over the cache's sets.
        self.plane = (cdiv(self.slot_rows * self.wp, 16) | 1) * 16
        self.sums = self.vectors * self.lanes
        self.slot_x = p.c * self.plane + self.vectors * self.lanes + reach[1] + 80
        self.slot = cdiv(self.slot_x + len(found) * self.mr * self.sums + self.lanes, 1024) * 1024 + 80
        self.blocks, self.bands = cdiv(p.n, self.mr), cdiv(self.height, self.rows)
        self.jobs = p.images * p.groups * self.bands * self.blocks
        self.items = min(self.jobs, config["items"])
        self.wblock = p.c * self.mr * sum(each.volume for each in live)
        self.packed_size = p.groups * self.blocks * self.wblock * self.size
        self.slots_size = self.items * self.slot * self.size

    @property
    def parts(self) -> list[Part]:
        """The phases in their order."""
        found, before = [], 0
        for number, p in enumerate(self.passes):
            volume = 0 if p.empty else p.volume
            at = (-p.pad[1] - self.zero[0]) * self.wp - p.pad[2] - self.zero[1]
            found.append(Part(number, volume, p.taps, p.w_first, p.w_step, 0 if p.empty else at, before))
            before += p.c * self.mr * volume
        return found

    @property
    def pack_c(self) -> int:
        """Source channels of a packing work item."""
        return max(1, min(self.p.c, 16384 // max(1, self.wblock // self.p.c)))

    def text(self) -> str:
        """The program."""
        p, parts = self.p, self.parts
        text = storage_macros(p.dtype) + epilogue_macros(self.problem)
        text += define(
            V=f"{DTYPES[p.dtype].accumulator}{self.lanes}", LANES=self.lanes, MR=self.mr, NV=self.config["nv"]
        )
        text += define(XH=p.source[1], XW=p.source[2], YH=p.target[1], YW=p.target[2], SH=p.stride[1], SW=p.stride[2])
        text += define(DH=p.spread[1], DW=p.spread[2], YH0=self.height, YW0=self.width, ROW0=f"({self.zero[0]})")
        text += define(C=p.c, N=p.n, G=p.groups, NB=self.blocks, R=self.rows, BANDS=self.bands, ROWS=self.slot_rows)
        text += define(WP=self.wp, PLANE=self.plane, SUMS=self.sums, SLOT=f"{self.slot}L", SLOT_X=self.slot_x)
        text += define(ITEMS=self.items, JOBS=f"{self.jobs}L", WBLOCK=f"{self.wblock}L", PACK_C=self.pack_c)
        text += define(WN=p.w_strides[0], WC=p.w_strides[1], KW=p.kernel[2])
        text += define(W_GROUP=math.prod(self.problem.w_shape) // p.groups)
        low = min(self.wp, max(0, -self.zero[1]))
        high = max(low, min(self.wp, p.source[2] - self.zero[1]))
        order = zip((each.start[1] for each in self.passes), parts, strict=True)
        rows = [(first, [part for _, part in row]) for first, row in itertools.groupby(order, key=lambda pair: pair[0])]
        return text + kernel_text(__package__, "runs.cl") + kernel_text(
            __package__, "phases.cl.mako", phases=parts, rows_of_phases=rows, mr=self.mr, nv=self.config["nv"],
            shapes=sorted({part.taps[1:] for part in parts if part.volume}), lanes=self.lanes, step=p.stride[2],
            low=low, high=high, x0=self.zero[1],
        )  # fmt: skip

    def plan(self, context: Any, key: str) -> StepPlan:
        """Compile."""
        program, constant = build(context, self.text()), self.problem.constant_weights
        areas = Areas(PAGE)
        areas.add(self.slots_size)
        at = 0 if constant else areas.add(self.packed_size) // self.size
        source, target = ("x", "y") if self.problem.direction == "fwd" else ("y", "x")
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        sizes = (self.p.groups * self.blocks, cdiv(self.p.c, self.pack_c), 1)
        arguments = ["w", "workspace", np.int64(at)]
        pack = Launch(program, "pack", sizes, (1, 1, 1), arguments, names=OPERANDS)
        arguments = [source, "w" if constant else "workspace", np.int64(at), "workspace", target, *extras]
        conv = Launch(program, "conv", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)
        if constant:
            return StepPlan(areas.size, [conv], self.packed_size, [pack], key)
        return StepPlan(areas.size, [pack, conv])

    def cost(self, balance: Balance) -> float:
        """Operations of the peak: tiles, what is copied and written, launches, and packing."""
        p, nv = self.p, self.config["nv"]
        step = max(self.mr * nv, 2 * nv + self.mr, 8) + 1
        tiles = p.images * p.groups * self.bands * self.blocks * cdiv(self.vectors, nv)
        work = 2 * self.lanes * step * tiles * (self.wblock // self.mr)
        again = min(self.blocks, max(1.0, self.items / (p.images * p.groups * self.bands)))
        staged = p.images * p.groups * p.c * self.bands * self.slot_rows * self.wp * again
        stored = p.images * p.groups * p.n * math.prod(p.target)
        cost = _WORK * work + _STAGED * staged + _STORED * stored
        cost = cost * (_DENSE if len(self.passes) == 1 else 1.0) + _LAUNCH * balance.launch
        if not self.problem.constant_weights:
            packed = _FAR * balance.memory if self.packed_size > _CACHED else _PACKED
            cost += packed * self.packed_size / self.size + _LAUNCH * balance.launch
        return cost


class Phases(Solver):
    """Vectors along a row's places, all phases of a stride in one launch, on a CPU: data gradients in NCHW."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but an NCHW data gradient in one or two dimensions whose rows fit a slot."""
        if problem.direction != "bwd_data":
            return f"bwd_data only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        if problem.ndim > 2:
            return f"1 or 2 dimensions only, got {problem.ndim}"
        if problem.depthwise:
            return "more than one channel a group only"
        if problem.sh * problem.sw > 16:
            return f"strides of 16 phases at most, got {problem.sh * problem.sw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if all(each.empty for each in passes(problem)):
            return "some tap that reaches the image only"
        base = {"lanes": lanes_of(device, problem.dtype), "mr": 1, "nv": 1, "rows": 1, "items": 1}
        size = PhasesKernel(problem, base).slots_size
        if size > _MOST_SLOT:
            return f"rows of {_MOST_SLOT} bytes for all channels of a group at most, got {size}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles and bands by predicted cost, the best first, then the best of other tiles."""
        lanes, room, balance = lanes_of(device, problem.dtype), registers(device), Balance.of(rates(device))
        base = {"lanes": lanes, "items": 4 * device.compute_units}
        height = PhasesKernel(problem, {**base, "mr": 1, "nv": 1, "rows": 1}).height
        bands = sorted({cdiv(height, count) for count in range(1, min(height, _MOST_BANDS) + 1)}, reverse=True)
        found: dict[tuple[int, int], tuple[float, dict[str, Any]]] = {}
        for nv in range(1, 5):
            for mr in range(1, min(problem.ic // problem.g, 16) + 1):
                if mr * nv > room * 3 // 4 or mr + 2 * nv > 14:
                    continue
                for rows in bands[:12]:
                    config = {**base, "mr": mr, "nv": nv, "rows": rows}
                    kernel = PhasesKernel(problem, config)
                    if rows > 1 and kernel.slot * kernel.size > _SLOT:
                        continue
                    cost = kernel.cost(balance)
                    if (mr, nv) not in found or cost < found[mr, nv][0]:
                        found[mr, nv] = cost, config
        if not found:
            found[1, 1] = 0, {**base, "mr": 1, "nv": 1, "rows": 1}
        for _, config in sorted(found.values(), key=lambda each: each[0])[:4]:
            yield config

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Slots, and packed weights unless they are constant."""
        kernel, areas = PhasesKernel(problem, config), Areas(PAGE)
        areas.add(kernel.slots_size)
        if not problem.constant_weights:
            areas.add(kernel.packed_size)
        return areas.size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Its tiles' work, and what moves."""
        known = rates(device)
        return PhasesKernel(problem, config).cost(Balance.of(known)) / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        key = json.dumps([self.name, str(problem), dict(config)], sort_keys=True)
        return PhasesKernel(problem, config).plan(context, key)
