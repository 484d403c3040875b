"""``implicitgemm.weights``: the weights' gradient by register tiles of dw, over bands of rows of x and dy."""

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
from convdispatch.api.cpu import PAGE, Balance, cdiv, registers, uneven
from convdispatch.api.cpu import lanes as lanes_of

from .passes import Pass, passes

FILES = ("runs.cl", "stage.cl.mako", "weights.cl.mako")
_SLOT = 256 * 1024  # bytes of a band's source rows
_GRADIENT = 64 * 1024  # bytes of a band's dy, one block of channels
_LAUNCH = 4e6  # operations of the peak in the time of a launch
# Operations of the peak in the time of one, of an element of x (NCHW, channels last) or dy that is copied, of a tile's
# sum that is kept between bands, of a part of dw, of dw, and of a work item that adds parts: least squares of
# logarithms over the layers that docs/results names.
_WORK, _SOURCE, _DY, _TILE = 1.22, (30.0, 32.0), 23.0, 24.0
_PART, _RESULT, _CROWDED, _ITEM = 29.0, 65.0, 450.0, 4.6e3
_AGAIN, _NEAR = 6.5, 512 * 1024  # of an element of dy that a tile reads anew, of bands of more bytes
_WAYS = 12  # lines of one place that the first-level cache holds
_AREAS = 8 << 20  # bytes of all parts of dw


class WeightsKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.p = p = passes(problem.replace(direction="fwd", accumulate=False))[0]
        self.lanes, self.size = config["lanes"], 8 if p.dtype == "float64" else 4
        self.nvl = config["nv"] * self.lanes
        self.blocks = cdiv(p.n, self.nvl)
        rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        self.width = source_width(p)
        self.cp = p.c if p.c < 32 else cdiv(p.c - 16, 32) * 32 + 16
        self.wp = self.width if self.width < 32 else cdiv(self.width - 16, 32) * 32 + 16
        line = self.width * self.cp if p.nhwc else self.wp * p.c
        self.slot_x = cdiv(p.taps[0] * rows * line, 16) * 16
        self.slot = cdiv(self.slot_x + config["rows"] * p.places[2] * self.nvl, 1024) * 1024 + 80
        areas = Areas(PAGE)
        areas.add(config["parts"] * p.groups * self.blocks * p.volume * p.c * self.nvl * self.size)
        self.slots_at = areas.add(config["parts"] * config["chunks"] * self.slot * self.size)
        self.workspace_size = areas.size

    def text(self) -> str:
        """The program."""
        p, config, acc = self.p, self.config, DTYPES[self.p.dtype].accumulator
        text = storage_macros(p.dtype)
        text += define(V=f"{acc}{self.lanes}", LANES=self.lanes, NVL=self.nvl, NV=config["nv"])
        text += p.macros()
        text += define(IMAGES=p.images, G=p.groups, C=p.c, N=p.n, CB=p.c, NCB=1, NB=self.blocks, R=config["rows"])
        text += define(JC=config["jc"], JW=config["jw"], PARTS=config["parts"], CHUNKS=config["chunks"])
        text += define(CP=self.cp, WP=self.wp, SLOT=f"{self.slot}L", SLOT_X=self.slot_x, INTER=int(p.nhwc))
        text += define(WN=p.w_strides[0], WC=p.w_strides[1], WT=p.w_strides[2], ADD=int(self.problem.accumulate))
        text += define(W_GROUP=p.n * p.c * p.volume)
        rest = p.c % config["jc"]
        values = {
            "inter": p.nhwc, "cp": self.cp,
            "c": p.c, "groups": p.groups, "lanes": self.lanes, "nv": config["nv"], "jw": config["jw"],
            "heights": [config["jc"], rest] if rest else [config["jc"]],
        }  # fmt: skip
        return text + "".join(kernel_text(__package__, file, **values) for file in FILES)

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        program, config = build(context, self.text()), self.config
        arguments = ["x", "y", "workspace", np.int64(self.slots_at // self.size), *map(np.int32, self.p.pad)]
        sizes = (config["parts"], config["chunks"], 1)
        reduce_sizes = (self.p.c, self.p.groups * self.blocks, 1)
        steps = [
            Launch(program, "weights", sizes, (1, 1, 1), arguments, names=OPERANDS),
            Launch(program, "reduce", reduce_sizes, (1, 1, 1), "workspace w", names=OPERANDS),
        ]
        return StepPlan(self.workspace_size, steps)


def source_width(p: Pass) -> int:
    """Columns of the source that a row of places reads."""
    return (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1


def _cycles(p: Pass, nv: int, jc: int, jw: int, lanes: int) -> float:
    """Cycles a place for all of dw but its d and h taps: one multiply-add or load a cycle."""

    def step(channels: int) -> float:
        sums = channels * jw
        return max(sums * nv, sums + nv, 4) + 0.5 * nv + 0.6 if channels else 0.0

    return (p.c // jc * step(jc) + step(p.c % jc)) * (p.taps[2] // jw) * cdiv(p.n, nv * lanes)


def _tiles(p: Pass, device: Any) -> Iterator[tuple[float, int, int, int]]:
    lanes, room = lanes_of(device, p.dtype), registers(device)
    for nv in range(1, 5):
        if nv > 1 and (nv - 1) * lanes >= p.n:
            break
        for jw in (taps for taps in range(1, p.taps[2] + 1) if p.taps[2] % taps == 0):
            for jc in range(1, min(p.c, room) + 1):
                if jc * jw * nv + nv + 1 <= room:
                    yield _cycles(p, nv, jc, jw, lanes), nv, jc, jw


def _complete(p: Pass, device: Any, nv: int, jc: int, jw: int) -> Iterator[dict[str, Any]]:
    """A tile's configuration with as many parts of the sum as cores can use, and with fewer."""
    size, lanes = 8 if p.dtype == "float64" else 4, lanes_of(device, p.dtype)
    height, width = p.places[1:]
    row_bytes = p.c * p.taps[0] * source_width(p) * size
    extra = (p.taps[1] - 1) * p.spread[1] + 1
    rows = max(1, (_SLOT // row_bytes - extra) // p.step[1] + 1, cdiv(128, width))
    rows = min(rows, max(cdiv(128, width), _GRADIENT // (width * nv * lanes * size)), height)
    rows = cdiv(height, cdiv(height, rows))
    bands = p.images * p.places[0] * cdiv(height, rows)
    blocks = cdiv(p.n, nv * lanes)
    area = p.groups * blocks * p.volume * p.c * nv * lanes * size
    parts = max(1, min(bands, 8 * device.compute_units, _AREAS // area))
    parts -= parts % device.compute_units if parts > device.compute_units else 0  # even shares
    for count in sorted({parts, max(1, parts // 4), 1}, reverse=True):
        chunks = max(1, min(p.groups * blocks, cdiv(4 * device.compute_units, count)))
        yield {"lanes": lanes, "nv": nv, "jc": jc, "jw": jw, "rows": rows, "parts": count, "chunks": chunks}


def _operations(p: Pass, config: Mapping[str, Any], device: DeviceInfo) -> float:
    """Operations of the peak that a configuration's time amounts to."""
    lanes, groups, nvl = config["lanes"], p.groups, config["nv"] * config["lanes"]
    places, blocks, area = p.images * groups * math.prod(p.places), cdiv(p.n, nvl), p.c * p.volume
    cycles = _cycles(p, config["nv"], config["jc"], config["jw"], lanes)
    work = _WORK * 2 * lanes * cycles * p.taps[0] * p.taps[1] * places
    again = max(1.0, config["chunks"] / groups)  # items that share a group each copy its x
    bands = p.images * p.places[0] * cdiv(p.places[1], config["rows"])
    rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
    staged = bands * groups * p.taps[0] * rows * source_width(p) * p.c
    work += _SOURCE[p.nhwc] * staged * again + _DY * places * blocks * nvl
    size = 8 if p.dtype == "float64" else 4
    if config["rows"] * p.places[2] * nvl * size > _NEAR:  # every tile reads a band's dy from beyond the second cache
        sweeps = cdiv(p.c, config["jc"]) * (p.volume // config["jw"])
        work += _AGAIN * places * blocks * nvl * sweeps
    work += _TILE * bands * groups * area * blocks * nvl
    work *= uneven(config["parts"] * config["chunks"], device)
    # A vector of sums is written across rows of w, which share few places of the caches where they lie pages apart.
    crowded = min(nvl, p.n) * math.gcd(p.w_strides[0] * size, PAGE) > _WAYS * PAGE
    written = (_CROWDED * min(2, config["nv"]) if crowded else _RESULT) * p.n + _PART * config["parts"] * blocks * nvl
    return work + groups * (area * written + _ITEM * p.c * blocks) + 2 * _LAUNCH * Balance.of(rates(device)).launch


class Weights(Solver):
    """Register tiles of dw over bands of rows: any rank, group, stride, dilation, padding, layout and dtype."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but a weights' gradient on a CPU."""
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The best tile of each width, and how many parts of the sum it is given, by what they cost."""
        p = passes(problem.replace(direction="fwd", accumulate=False))[0]
        best: dict[int, tuple[int, int, int]] = {}
        for _, *tile in sorted(_tiles(p, device), key=lambda choice: (choice[0], -choice[1])):
            best.setdefault(tile[0], tuple(tile))
        # Wide tiles leave few blocks of channels, and cores idle where bands are few; parts are written and added.
        each = [config for tile in best.values() for config in _complete(p, device, *tile)]
        rated = [(_operations(p, config, device), -config["nv"], -config["parts"], config) for config in each]
        rated.sort(key=lambda choice: choice[:3])
        for cost, *_, config in rated:
            if cost <= 1.3 * rated[0][0]:
                yield config

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Parts of dw and the bands' slots."""
        return WeightsKernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The tiles' cycles, the copies of x and dy, the sum of the parts."""
        p = passes(problem.replace(direction="fwd", accumulate=False))[0]
        return _operations(p, config, device) / rates(device).flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        return WeightsKernel(problem, config).plan(context)
