"""``implicitgemm.flat_weights``: weights' gradients of few channels per group in NCHW, vectors along the pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import Areas, ConvProblem, DeviceInfo, StepPlan, rates
from convdispatch.api.cpu import PAGE, Balance, cdiv, registers
from convdispatch.api.cpu import lanes as lanes_of

from ..solving import KernelSolver
from .kernel import Kernel, band_heights, cheapest
from .passes import Pass, forward_pass
from .tiles import source_width

MAX_CHANNELS = 64
"""Most source channels per group."""
MAX_TAPS_W = 11
"""Most taps along w: the loop over them is unrolled."""
SLOT_BYTES = 192 * 1024
"""Bytes of a band's rows of x and dy that configurations do not exceed, unless the smallest band does."""
MAX_SLOT_BYTES = 1 << 20
"""A problem is rejected if the rows of its smallest band have more bytes."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted on timings of layers
# drawn at random.
OPERATION_OPS = 1.8  # operations at peak rate per operation of a register tile
ACROSS_OPS = 7200.0  # operations at peak rate for adding the vectors of one register tile across their lanes
STAGED_OPS = 18.0  # operations at peak rate per element that is copied for a band
# Operations at peak rate per element that is copied alone; rows are copied in vectors only for strides of 1, 2 and 4
SINGLE_OPS = 150.0
RESULT_OPS = 150.0  # operations at peak rate per element of dw
LAUNCH_OPS = 4e6  # operations at peak rate in the time of one kernel launch


def _widths(p: Pass) -> list[int]:
    """Return the numbers of taps per tile along w: all, one, or those whose blocks begin at a multiple of the stride.

    The columns of a tile have fixed phases of the stride, so each block of taps must begin at the first phase.
    """
    counts = [count for count in range(1, p.taps[2] + 1) if p.taps[2] % count == 0]
    return [count for count in counts if count in (1, p.taps[2]) or count * p.spread[2] % p.step[2] == 0]


class FlatKernel(Kernel):
    """The kernel of one configuration: tiles of ``mn`` target channels by ``jc`` source channels by ``jw`` taps."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, forward_pass(problem))
        p = self.p
        self.mn, self.jc, self.jw = config["mn"], config["jc"], config["jw"]
        self.rows = rows = config["rows"]
        height = (rows - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        self.wp, self.prows = cdiv(source_width(p), p.step[2]), cdiv(height, p.step[1])
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
        p, (nbn, nbc, nbt) = self.p, self.blocks
        text = self.macros(
            GROUPS=p.groups, G=p.groups * p.c, C=p.c, N=p.n, R=self.rows, WP=self.wp, PROWS=self.prows,
            PART=self.part, PLANE=self.plane, DY=self.dy, MN=self.mn, JC=self.jc, JW=self.jw, NBN=nbn, NBC=nbc, NBT=nbt,
            SUMS=self.sums, AREA=f"({self.tiles}L * SUMS)", PARTS=self.parts, ITEMS=self.items,
            SLOTS=f"{self.slots_at // self.size}L", SLOT=f"{self.slot}L", SLOT_X=self.slot_x,
            ADD=int(self.problem.accumulate),
        )  # fmt: skip
        files = ("runs.cl", "planes.cl.mako", "plain_sum.cl", "flat_weights.cl.mako")
        values = {"mn": self.mn, "jc": self.jc, "jw": self.jw, "step_w": p.step[2], "spread_w": p.spread[2]}
        return text + self.rendered(files, lanes=self.lanes, **values)

    def plan(self, context: Any) -> StepPlan:
        """Compile the launch that computes the parts of dw, and the one that adds them if there are several."""
        arguments = ["x", "y", "w", "workspace", *map(np.int32, self.p.pad)]
        steps = [self.launch(context, "weights", [self.items], arguments)]
        if self.parts > 1:
            steps.append(self.launch(context, "reduce", [self.p.groups], arguments))
        return StepPlan(self.workspace_size, steps)

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        """Return operations at peak rate: tiles, sums across lanes, copied elements, partial sums and launches."""
        p, taps = self.p, self.jc * self.jw
        step = max(self.mn * taps, 2 * taps + self.mn, 8) + 1
        bands = p.images * p.groups * p.places[0] * self.bands
        tile_ops = bands * self.tiles * (OPERATION_OPS * 2 * self.lanes * step * self.vectors + ACROSS_OPS)
        staged = STAGED_OPS if p.step[2] in (1, 2, 4) else SINGLE_OPS
        copy_ops = bands * (staged * p.c * self.part * p.step[1] * p.step[2] + STAGED_OPS * p.n * self.rows * self.wp)
        share = 1 if self.parts > 1 else min(1.0, self.items / 2)
        result = RESULT_OPS * p.groups * p.n * p.c * p.volume * (1 + 0.2 * self.parts)
        return (tile_ops + copy_ops) / max(0.5, share) + result + LAUNCH_OPS * balance.launch * min(2, self.parts)


class FlatWeights(KernelSolver):
    """Solves weights' gradients of few channels per group on a CPU, with vectors along the pixels of a band."""

    kernel = FlatKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject everything but few channels per group, a short kernel and rows that fit a slot."""
        if problem.direction != "bwd_weights":
            return f"bwd_weights only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        if problem.depthwise:
            return "more than one channel a group only"
        if problem.ic // problem.g > MAX_CHANNELS:
            return f"{MAX_CHANNELS} channels a group at most, got {problem.ic // problem.g}"
        if problem.kw > MAX_TAPS_W:
            return f"{MAX_TAPS_W} taps along w at most, got {problem.kw}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        kernel = FlatKernel(problem, _config(lanes=16, items=1))
        if (slot := kernel.slot * kernel.size) > MAX_SLOT_BYTES:
            return f"rows of {MAX_SLOT_BYTES} bytes for all channels of a group at most, got {slot}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles and bands by predicted cost, the best first, then the best of other tiles."""
        yield from cheapest(self._rated(problem, device), _base(problem, device))

    def _rated(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[tuple[Any, float, dict[str, Any]]]:
        """Yield (tile, cost, configuration) for tiles that fit the registers, with bands that fit a slot."""
        max_sums, units, balance = registers(device) * 3 // 4, device.compute_units, Balance.of(rates(device))
        p, base = forward_pass(problem), _base(problem, device)
        heights = band_heights(p.places[1])
        for jw in _widths(p):
            for jc in range(1, min(p.c, 6) + 1):
                mn = min(p.n, max_sums // (jc * jw))
                if not mn or jc * jw > 8:
                    continue
                mn = cdiv(p.n, cdiv(p.n, mn))
                for rows in heights[:16]:
                    config = {**base, "mn": mn, "jc": jc, "jw": jw, "rows": rows, "parts": 1}
                    bands = p.images * p.places[0] * cdiv(p.places[1], rows)
                    if p.groups < 2 * units:
                        config["parts"] = min(bands, cdiv(4 * units, p.groups))
                    kernel = FlatKernel(problem, config)
                    if rows == heights[-1] or kernel.slot * kernel.size <= SLOT_BYTES:
                        yield (jw, jc), kernel.cost(balance, device), config


def _config(**changes: int) -> dict[str, Any]:
    """Return the configuration with the smallest tile and band, changed by ``changes``."""
    return {"mn": 1, "jc": 1, "jw": 1, "rows": 1, "parts": 1, **changes}


def _base(problem: ConvProblem, device: DeviceInfo) -> dict[str, Any]:
    return {"lanes": lanes_of(device, problem.dtype), "items": 8 * device.compute_units, **_config()}
