"""``implicitgemm.weights``: the weights' gradient by register tiles of dw, over bands of rows of x and dy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import Areas, ConvProblem, DeviceInfo, StepPlan, rates
from convdispatch.api.cpu import PAGE, Balance, cdiv, registers, uneven
from convdispatch.api.cpu import lanes as lanes_of

from ..solving import KernelSolver
from .kernel import Kernel
from .passes import Pass, forward_pass
from .tiles import odd_lines, source_width

SLOT_BYTES = 256 * 1024
"""Most bytes of the source rows of one band."""
GRADIENT_BYTES = 64 * 1024
"""Most bytes of the dy of one band, for one block of channels."""
CACHE_WAYS = 12
"""Associativity of the first-level cache: the number of cache lines in one of its sets."""
PARTS_BYTES = 8 << 20
"""Most bytes of all partial dw together."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted by least squares of
# logarithms over the layers listed in docs/results.
LAUNCH_OPS = 4e6  # operations at peak rate in the time of one kernel launch
OPERATION_OPS = 1.22  # operations at peak rate per operation of a register tile
SOURCE_OPS = (30.0, 32.0)  # operations at peak rate per element of x that is copied, in NCHW and in NHWC
DY_OPS = 23.0  # operations at peak rate per element of dy that is copied
TILE_OPS = 24.0  # operations at peak rate per sum of a tile that is stored between two bands
PART_OPS = 29.0  # operations at peak rate per element of a partial dw
RESULT_OPS = 65.0  # operations at peak rate per element of dw
# Operations at peak rate per element of dw that is written across rows that compete for few sets of the cache
CROWDED_OPS = 450.0
ITEM_OPS = 4.6e3  # operations at peak rate per work item that adds partial sums
# Operations at peak rate per element of dy that a tile reads again, if the dy of a band exceeds NEAR_BYTES
REREAD_OPS = 6.5
NEAR_BYTES = 512 * 1024


class WeightsKernel(Kernel):
    """The kernel of one configuration: tiles of ``jc`` channels by ``jw`` taps by ``nv`` vectors of target channels."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, forward_pass(problem))
        p = self.p
        self.nvl = config["nv"] * self.lanes
        self.blocks = cdiv(p.n, self.nvl)
        rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        self.width = source_width(p)
        self.cp, self.wp = odd_lines(p.c), odd_lines(self.width)
        line = self.width * self.cp if p.nhwc else self.wp * p.c
        self.slot_x = cdiv(p.taps[0] * rows * line, 16) * 16
        self.slot = cdiv(self.slot_x + config["rows"] * p.places[2] * self.nvl, 1024) * 1024 + 80
        areas = Areas(PAGE)
        areas.add(config["parts"] * p.groups * self.blocks * p.volume * p.c * self.nvl * self.size)
        self.slots_at = areas.add(config["parts"] * config["chunks"] * self.slot * self.size)
        self.workspace_size = areas.size

    def text(self) -> str:
        p, config = self.p, self.config
        text = self.macros(
            NVL=self.nvl, NV=config["nv"], G=p.groups, C=p.c, N=p.n, CB=p.c, NCB=1, NB=self.blocks, R=config["rows"],
            JC=config["jc"], JW=config["jw"], PARTS=config["parts"], CHUNKS=config["chunks"], CP=self.cp, WP=self.wp,
            SLOT=f"{self.slot}L", SLOT_X=self.slot_x, INTER=int(p.nhwc), ADD=int(self.problem.accumulate),
            WN=p.w_strides[0], WC=p.w_strides[1], WT=p.w_strides[2], W_GROUP=p.n * p.c * p.volume,
        )  # fmt: skip
        rest = p.c % config["jc"]
        values = {"inter": p.nhwc, "cp": self.cp, "c": p.c, "groups": p.groups, "lanes": self.lanes, "nv": config["nv"]}
        values |= {"jw": config["jw"], "heights": [config["jc"], rest] if rest else [config["jc"]]}
        return text + self.rendered(("stage.cl.mako", "weights.cl.mako"), **values)

    def plan(self, context: Any) -> StepPlan:
        arguments = ["x", "y", "workspace", np.int64(self.slots_at // self.size), *map(np.int32, self.p.pad)]
        parts = self.launch(context, "weights", [self.config["parts"], self.config["chunks"]], arguments)
        total = self.launch(context, "reduce", [self.p.c, self.p.groups * self.blocks], ["workspace", "w"])
        return StepPlan(self.workspace_size, [parts, total])

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        return _operations(self.p, self.config, device, balance)


def _cycles(p: Pass, nv: int, jc: int, jw: int, lanes: int) -> float:
    """Return the cycles per pixel for one (d, h) tap of all of dw, at one multiply-add or load per cycle."""

    def step(channels: int) -> float:
        sums = channels * jw
        return max(sums * nv, sums + nv, 4) + 0.5 * nv + 0.6 if channels else 0.0

    return (p.c // jc * step(jc) + step(p.c % jc)) * (p.taps[2] // jw) * cdiv(p.n, nv * lanes)


def _tiles(p: Pass, device: Any) -> Iterator[tuple[float, int, int, int]]:
    """Yield (cycles, nv, jc, jw) of every tile that fits the registers."""
    lanes, register_count = lanes_of(device, p.dtype), registers(device)
    for nv in range(1, 5):
        if nv > 1 and (nv - 1) * lanes >= p.n:
            break
        for jw in (taps for taps in range(1, p.taps[2] + 1) if p.taps[2] % taps == 0):
            for jc in range(1, min(p.c, register_count) + 1):
                if jc * jw * nv + nv + 1 <= register_count:
                    yield _cycles(p, nv, jc, jw, lanes), nv, jc, jw


def _complete(p: Pass, device: Any, nv: int, jc: int, jw: int) -> Iterator[dict[str, Any]]:
    """A tile's configuration with as many parts of the sum as cores can use, and with fewer."""
    size, lanes = p.accumulator_size, lanes_of(device, p.dtype)
    height, width = p.places[1:]
    row_bytes = p.c * p.taps[0] * source_width(p) * size
    halo_rows = (p.taps[1] - 1) * p.spread[1] + 1
    rows = max(1, (SLOT_BYTES // row_bytes - halo_rows) // p.step[1] + 1, cdiv(128, width))
    rows = min(rows, max(cdiv(128, width), GRADIENT_BYTES // (width * nv * lanes * size)), height)
    rows = cdiv(height, cdiv(height, rows))
    bands = p.images * p.places[0] * cdiv(height, rows)
    blocks = cdiv(p.n, nv * lanes)
    area = p.groups * blocks * p.volume * p.c * nv * lanes * size
    parts = max(1, min(bands, 8 * device.compute_units, PARTS_BYTES // area))
    # Make the number of parts a multiple of the compute units, so that they have even shares.
    parts -= parts % device.compute_units if parts > device.compute_units else 0
    for count in sorted({parts, max(1, parts // 4), 1}, reverse=True):
        chunks = max(1, min(p.groups * blocks, cdiv(4 * device.compute_units, count)))
        yield {"lanes": lanes, "nv": nv, "jc": jc, "jw": jw, "rows": rows, "parts": count, "chunks": chunks}


def _operations(p: Pass, config: Mapping[str, Any], device: DeviceInfo, balance: Balance) -> float:
    """Return the predicted time of a configuration, in operations at the device's peak rate."""
    lanes, groups, nvl = config["lanes"], p.groups, config["nv"] * config["lanes"]
    pixels, blocks, area = p.images * groups * math.prod(p.places), cdiv(p.n, nvl), p.c * p.volume
    cycles = _cycles(p, config["nv"], config["jc"], config["jw"], lanes)
    work = OPERATION_OPS * 2 * lanes * cycles * p.taps[0] * p.taps[1] * pixels
    # Factor by which x is copied more than once, because each work item of a group copies it
    copies = max(1.0, config["chunks"] / groups)
    bands = p.images * p.places[0] * cdiv(p.places[1], config["rows"])
    rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
    copied_elements = bands * groups * p.taps[0] * rows * source_width(p) * p.c
    work += SOURCE_OPS[p.nhwc] * copied_elements * copies + DY_OPS * pixels * blocks * nvl
    size = p.accumulator_size
    # If the dy of a band exceeds the second-level cache, tiles read it from the third-level cache.
    if config["rows"] * p.places[2] * nvl * size > NEAR_BYTES:
        sweeps = cdiv(p.c, config["jc"]) * (p.volume // config["jw"])
        work += REREAD_OPS * pixels * blocks * nvl * sweeps
    work += TILE_OPS * bands * groups * area * blocks * nvl
    work *= uneven(config["parts"] * config["chunks"], device)
    # A vector of sums is written across rows of w, which share few cache sets if they are whole pages apart.
    crowded = min(nvl, p.n) * math.gcd(p.w_strides[0] * size, PAGE) > CACHE_WAYS * PAGE
    dw_ops = (CROWDED_OPS * min(2, config["nv"]) if crowded else RESULT_OPS) * p.n
    dw_ops += PART_OPS * config["parts"] * blocks * nvl
    return work + groups * (area * dw_ops + ITEM_OPS * p.c * blocks) + 2 * LAUNCH_OPS * balance.launch


class Weights(KernelSolver):
    """Register tiles of dw over bands of rows: any rank, group, stride, dilation, padding, layout and dtype."""

    kernel = WeightsKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield the best tile of each width with numbers of parts of the sum, by predicted cost."""
        p, balance = forward_pass(problem), Balance.of(rates(device))
        best: dict[int, tuple[int, int, int]] = {}
        for _, *tile in sorted(_tiles(p, device), key=lambda choice: (choice[0], -choice[1])):
            best.setdefault(tile[0], tuple(tile))
        # The predicted cost decides, not the width alone: wide tiles leave few blocks of channels, cores idle if there
        # are few bands, and parts must be written and added.
        candidates = [config for tile in best.values() for config in _complete(p, device, *tile)]
        rated = [(_operations(p, each, device, balance), -each["nv"], -each["parts"], each) for each in candidates]
        rated.sort(key=lambda choice: choice[:3])
        for cost, *_, config in rated:
            if cost <= 1.3 * rated[0][0]:
                yield config
