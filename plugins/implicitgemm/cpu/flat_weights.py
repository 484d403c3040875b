"""``implicitgemm.flat_weights``: the weights' gradient of few channels a group in NCHW, vectors along the places."""

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
from convdispatch.api.cpu import PAGE, Balance, cdiv, registers
from convdispatch.api.cpu import lanes as lanes_of

from .passes import Pass, passes

_CHANNELS, _WIDTH = 64, 11  # source channels a group and taps along w at most
_MOST_BANDS = 1024
"""Divisions of an image's rows that are looked at; of more rows the largest sixteen heights are the same."""
_SLOT, _MOST_SLOT = 192 * 1024, 1 << 20  # bytes of a band's rows of x and dy: wanted, and at most
# Operations of the peak in the time of one in a tile, of adding a tile across its lanes, of an element copied for a
# band, of an element of dw, and of a launch.
_WORK, _ACROSS, _STAGED, _RESULT, _LAUNCH = 1.8, 7200.0, 18.0, 150.0, 4e6
_APART = 150.0
"""Of an element copied one by one, as every third and further of a row are."""


def _widths(p: Pass) -> list[int]:
    """Taps of a tile along w: all, or as many as move whole steps of the source from block to block; or one.

    A tile's columns lie at fixed phases of the stride, so that each block must begin at the first phase.
    """
    counts = [count for count in range(1, p.taps[2] + 1) if p.taps[2] % count == 0]
    return [count for count in counts if count in (1, p.taps[2]) or count * p.spread[2] % p.step[2] == 0]


class FlatKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.p = p = passes(problem.replace(direction="fwd", accumulate=False))[0]
        self.lanes, self.size = config["lanes"], 8 if p.dtype == "float64" else 4
        self.mn, self.jc, self.jw = config["mn"], config["jc"], config["jw"]
        self.rows = rows = config["rows"]
        height = (rows - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        width = (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        self.wp, self.prows = cdiv(width, p.step[2]), cdiv(height, p.step[1])
        self.part = p.taps[0] * self.prows * self.wp
        self.plane = (cdiv(self.part * p.step[1] * p.step[2], 16) | 1) * 16
        self.dy = (cdiv(rows * self.wp + self.lanes, 16) | 1) * 16
        self.slot_x = cdiv(p.c * self.plane + self.wp + 2 * self.lanes, 16) * 16
        self.slot = cdiv(self.slot_x + p.n * self.dy, 1024) * 1024 + 80
        self.bands = cdiv(p.places[1], rows)
        self.vectors = cdiv((rows - 1) * self.wp + p.places[2], self.lanes)
        self.parts = min(config["parts"], p.images * p.places[0] * self.bands)
        self.items = min(config["items"], p.groups * self.parts)
        self.blocks = cdiv(p.n, self.mn), cdiv(p.c, self.jc), p.taps[2] // self.jw
        self.tiles = math.prod(self.blocks) * p.taps[0] * p.taps[1]
        self.sums = cdiv(self.mn * self.jc * self.jw, self.lanes) * self.lanes
        areas = Areas(PAGE)
        areas.add(self.parts * p.groups * self.tiles * self.sums * self.size)
        self.slots_at = areas.add(self.items * self.slot * self.size)
        self.workspace_size = areas.size

    def text(self) -> str:
        """The program."""
        p, acc = self.p, DTYPES[self.p.dtype].accumulator
        text = storage_macros(p.dtype) + define(V=f"{acc}{self.lanes}", LANES=self.lanes)
        text += p.macros()
        text += define(IMAGES=p.images, GROUPS=p.groups, G=p.groups * p.c, C=p.c, N=p.n, R=self.rows, CB=1)
        text += define(WP=self.wp, PROWS=self.prows, PART=self.part, PLANE=self.plane, DY=self.dy)
        text += define(MN=self.mn, JC=self.jc, JW=self.jw, NBN=self.blocks[0], NBC=self.blocks[1], NBT=self.blocks[2])
        text += define(SUMS=self.sums, AREA=f"({self.tiles}L * SUMS)", PARTS=self.parts, ITEMS=self.items)
        text += define(SLOTS=f"{self.slots_at // self.size}L", SLOT=f"{self.slot}L", SLOT_X=self.slot_x)
        text += define(ADD=int(self.problem.accumulate))
        values = {
            "inter": False, "lanes": self.lanes, "mn": self.mn, "jc": self.jc, "jw": self.jw,
            "step_w": p.step[2], "spread_w": p.spread[2],
        }  # fmt: skip
        files = ("runs.cl", "planes.cl.mako", "plain_sum.cl", "flat_weights.cl.mako")
        return text + "".join(kernel_text(__package__, file, **values) for file in files)

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        program = build(context, self.text())
        arguments = ["x", "y", "w", "workspace", *map(np.int32, self.p.pad)]
        steps = [Launch(program, "weights", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)]
        if self.parts > 1:
            steps.append(Launch(program, "reduce", (self.p.groups, 1, 1), (1, 1, 1), arguments, names=OPERANDS))
        return StepPlan(self.workspace_size, steps)

    def cost(self, balance: Balance) -> float:
        """Operations of the peak: tiles, the sums across lanes, what is copied, parts and launches."""
        p, taps = self.p, self.jc * self.jw
        step = max(self.mn * taps, 2 * taps + self.mn, 8) + 1
        bands = p.images * p.groups * p.places[0] * self.bands
        work = bands * self.tiles * (_WORK * 2 * self.lanes * step * self.vectors + _ACROSS)
        staged = _STAGED if p.step[2] in (1, 2, 4) else _APART
        copies = bands * (staged * p.c * self.part * p.step[1] * p.step[2] + _STAGED * p.n * self.rows * self.wp)
        share = 1 if self.parts > 1 else min(1.0, self.items / 2)
        result = _RESULT * p.groups * p.n * p.c * p.volume * (1 + 0.2 * self.parts)
        return (work + copies) / max(0.5, share) + result + _LAUNCH * balance.launch * min(2, self.parts)


class FlatWeights(Solver):
    """Vectors along the places of a band: weights' gradients of few channels a group, on a CPU."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but few channels a group, a short kernel and rows that fit a slot."""
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        if problem.depthwise:
            return "more than one channel a group only"
        if problem.ic // problem.g > _CHANNELS:
            return f"{_CHANNELS} channels a group at most, got {problem.ic // problem.g}"
        if problem.kw > _WIDTH:
            return f"{_WIDTH} taps along w at most, got {problem.kw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        base = {"lanes": 16, "mn": 1, "jc": 1, "jw": 1, "rows": 1, "parts": 1, "items": 1}
        kernel = FlatKernel(problem, base)
        if kernel.slot * kernel.size > _MOST_SLOT:
            return f"rows of {_MOST_SLOT} bytes for all channels of a group at most, got {kernel.slot * kernel.size}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles and bands by predicted cost, the best first, then the best of other tiles."""
        lanes, room = lanes_of(device, problem.dtype), registers(device) * 3 // 4
        balance = Balance.of(rates(device))
        p = passes(problem.replace(direction="fwd", accumulate=False))[0]
        base = {"lanes": lanes, "items": 8 * device.compute_units}
        counts = range(1, min(p.places[1], _MOST_BANDS) + 1)
        heights = sorted({cdiv(p.places[1], count) for count in counts}, reverse=True)
        found: dict[tuple[int, ...], tuple[float, dict[str, Any]]] = {}
        for jw in _widths(p):
            for jc in range(1, min(p.c, 6) + 1):
                mn = min(p.n, room // (jc * jw))
                if not mn or jc * jw > 8:
                    continue
                mn = cdiv(p.n, cdiv(p.n, mn))
                for rows in heights[:16]:
                    config = {**base, "mn": mn, "jc": jc, "jw": jw, "rows": rows, "parts": 1}
                    bands = p.images * p.places[0] * cdiv(p.places[1], rows)
                    if p.groups < 2 * device.compute_units:
                        config["parts"] = min(bands, cdiv(4 * device.compute_units, p.groups))
                    kernel = FlatKernel(problem, config)
                    if rows > heights[-1] and kernel.slot * kernel.size > _SLOT:
                        continue
                    cost = kernel.cost(balance)
                    if (jw, jc) not in found or cost < found[jw, jc][0]:
                        found[jw, jc] = cost, config
        if not found:
            found[1, 1] = 0, {**base, "mn": 1, "jc": 1, "jw": 1, "rows": 1, "parts": 1}
        for _, config in sorted(found.values(), key=lambda each: each[0])[:4]:
            yield config

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Sums of the parts, and slots."""
        return FlatKernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Its tiles' work, and what moves."""
        known = rates(device)
        return FlatKernel(problem, config).cost(Balance.of(known)) / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        return FlatKernel(problem, config).plan(context)
