"""``implicitgemm.stem``: forward layers of few source channels in NCHW, vectors along the pixels of a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, define
from convdispatch.api.cpu import Balance, cdiv, registers
from convdispatch.api.cpu import lanes as lanes_of

from ..solving import KernelSolver
from .kernel import Kernel
from .passes import Pass, passes
from .places import Read, cover, gather_lanes, name, runs_of
from .tiles import source_width

MAX_CHANNELS = 8
"""Most source channels per group if rows are copied to a slot."""
MAX_CHANNELS_IN_PLACE = 32
"""Most source channels per group if taps are read from the tensor in place."""
MAX_TAPS_W = 11
"""Most taps along w: the loop over them is unrolled."""
MAX_TAPS_IN_PLACE = 3
"""Most taps along w if taps are read from the tensor in place."""
SLOT_BYTES = 24 * 1024
"""Most bytes of the source rows of one band: half of a first-level cache, which also holds a tile's results."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted on timings of layers
# drawn at random.
OPERATION_OPS = 1.15  # operations at peak rate per operation of a register tile
STAGED_OPS = 20.0  # operations at peak rate per element that is copied for a band
READ_OPS = 6.0  # operations at peak rate per element that is read from the tensor in place
# Operations at peak rate per element that is copied alone; rows are copied in vectors only for strides of 1, 2 and 4
SINGLE_OPS = 150.0
STORED_OPS = 12.0  # operations at peak rate per element of the result
LAUNCH_OPS = 4e6  # operations at peak rate in the time of the one kernel launch


class Across(NamedTuple):
    """A tile along a row: first pixels of its vectors, the last vector's first lane that no other tile computes,
    windows of the source that it reads, and for each tap each vector's operand, None if it is outside of the row."""

    starts: tuple[int, ...]
    first: int
    windows: tuple[int, ...]
    reads: tuple[tuple[Read | None, ...], ...]


class StemKernel(Kernel):
    """The kernel of one configuration: tiles of ``mr`` target channels by ``nv`` vectors of output pixels."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, passes(problem)[0])
        p = self.p
        rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        # The pitch is an odd number of half cache lines, so that rows are spread over the sets of the cache.
        self.wp = cdiv(cdiv(source_width(p), p.step[2]), 16) * 16 + 8
        self.prows = cdiv(rows, p.step[1])
        self.part = p.taps[0] * self.prows * self.wp
        self.plane = self.part * p.step[1] * p.step[2]
        self.slot = cdiv(p.c * self.plane, 16) * 16 + 80
        self.bands = cdiv(p.places[1], config["rows"])
        self.items = min(p.images * p.groups * p.places[0] * self.bands, config["items"])
        self.staged = config.get("staged", True)
        """Whether a band's rows are copied to a slot; otherwise taps are read from the tensor."""
        self.workspace_size = self.items * self.slot * self.size if self.staged else 0

    @property
    def tiles(self) -> list[tuple[list[int], int]]:
        """For a whole tile, and for a row's rest: (first columns of the vectors, the last vector's first new lane)."""
        wide, width = self.config["nv"] * self.lanes, self.p.places[2]
        rest = width % wide
        result = [([v * self.lanes for v in range(self.config["nv"])], 0)] if width >= wide else []
        if rest:
            starts = [v * self.lanes for v in range(rest // self.lanes)]
            extra = rest % self.lanes
            result.append(([*starts, rest - self.lanes], self.lanes - extra) if extra else (starts, 0))
        return result

    def _across(self) -> tuple[dict[Across, str], list[tuple[str, int, int, int]]]:
        """Return the functions that read taps from the tensor, and their calls along a row."""
        p, wide, width = self.p, self.config["nv"] * self.lanes, self.p.places[2]
        tiles: dict[Across, str] = {}
        calls = []
        for column in range(0, width, wide):
            starts, first_lane = self.tiles[0] if column + wide <= width else self.tiles[-1]
            base, windows, reads = column * p.step[2], [], []
            for tap in range(p.taps[2]):
                operands = []
                for start in starts:
                    first_read = (column + start) * p.step[2] + tap * p.spread[2] - p.pad[2]
                    positions = (first_read + i * p.step[2] for i in range(self.lanes))
                    offsets = tuple(position - base if 0 <= position < p.source[2] else None for position in positions)
                    outside = all(position is None for position in offsets)
                    highest = p.source[2] - self.lanes - base
                    operands.append(None if outside else cover(offsets, windows, -base, highest))
                reads.append(tuple(operands))
            tile = Across(tuple(starts), first_lane, tuple(windows), tuple(reads))
            calls.append((0, column, tiles.setdefault(tile, f"tile_{len(tiles)}")))
        return tiles, runs_of(calls)[0].calls

    def text(self) -> str:
        p, config, mr = self.p, self.config, self.config["mr"]
        wide, width = config["nv"] * self.lanes, p.places[2]
        text = self.macros(
            "XYTSDP" if not self.staged else "XYTSD", GROUPS=p.groups, G=p.groups * p.c, C=p.c, N=p.n, R=config["rows"],
            MR=mr, BLOCKS=cdiv(p.n, mr), ITEMS=self.items,
        )  # fmt: skip
        values = {"heights": [mr, p.n % mr] if p.n % mr else [mr], "bias": self.problem.bias, "taps_w": p.taps[2]}
        values |= {"rereads": self.problem.accumulate or self.problem.residual, "staged": self.staged}
        values |= {"step_w": p.step[2], "spread_w": p.spread[2], "wide": wide, "whole": width // wide * wide}
        if self.staged:
            text += define(SLOT=f"{self.slot}L", WP=self.wp, PROWS=self.prows, PART=self.part, PLANE=self.plane)
            tiles = {f"tile_{i}": Across(tuple(starts), first, (), ()) for i, (starts, first) in enumerate(self.tiles)}
            values |= {"tiles": tiles, "calls": []}
            files = ["planes.cl.mako", "stem.cl.mako"]
        else:
            text += define(BANDS=self.bands)
            tiles, calls = self._across()
            values |= {"tiles": {function: tile for tile, function in tiles.items()}, "calls": calls}
            files = ["masks.cl", "stem.cl.mako"]
        return text + self.rendered(files, gather_lanes=gather_lanes, name=name, **values)

    def plan(self, context: Any) -> StepPlan:
        arguments = ["x", "w", "y", *self.problem.epilogue_operands]
        if self.staged:
            arguments = ["x", "w", "workspace", "y", *self.problem.epilogue_operands, *map(np.int32, self.p.pad)]
        return StepPlan(self.workspace_size, [self.launch(context, "conv", [self.items], arguments)])

    @staticmethod
    def cycles(problem: ConvProblem, mr: int, nv: int, lanes: int) -> float:
        """Return the cycles of one tap over a row of pixels for all channels of a group, by multiply-adds or loads."""

        def step(rows: int, vectors: int) -> float:
            return max(rows * vectors, 2 * vectors + rows, 8) + 1 if rows and vectors else 0.0

        full_tiles, rest_vectors = divmod(cdiv(problem.ow, lanes), nv)
        n = problem.oc // problem.g
        return sum(
            times * (full_tiles * step(rows, nv) + step(rows, rest_vectors))
            for rows, times in ((mr, n // mr), (n % mr, 1))
            if rows
        )

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        p, config, problem = self.p, self.config, self.problem
        cycles = self.cycles(problem, config["mr"], config["nv"], config["lanes"])
        tile_ops = 2 * config["lanes"] * cycles * p.images * p.groups * p.c * p.volume * p.places[0] * p.places[1]
        halo = 1 + (p.taps[1] - 1) / max(1, config["rows"] * p.step[1])
        copied = READ_OPS if not self.staged else STAGED_OPS if p.step[2] in (1, 2, 4) else SINGLE_OPS
        element_ops = copied * math.prod(problem.x_shape) * halo * p.taps[0] + STORED_OPS * math.prod(problem.y_shape)
        return OPERATION_OPS * tile_ops + element_ops + LAUNCH_OPS * balance.launch


class Stem(KernelSolver):
    """Solves first layers, whose few channels fill no vector, on a CPU: vectors of a row's pixels by a few channels."""

    kernel = StemKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        lanes = lanes_of(device, problem.dtype)
        max_channels = MAX_CHANNELS_IN_PLACE if _in_place(passes(problem)[0], lanes) else MAX_CHANNELS
        if problem.ic // problem.g > max_channels:
            return f"{max_channels} channels a group at most, got {problem.ic // problem.g}"
        if problem.kw > MAX_TAPS_W:
            return f"{MAX_TAPS_W} taps along w at most, got {problem.kw}"
        if problem.ow < lanes:
            return f"rows of {lanes} places or more, got {problem.ow}"
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield tiles by their predicted cycles, the best first."""
        p, lanes, register_count = passes(problem)[0], lanes_of(device, problem.dtype), registers(device)
        size = p.accumulator_size
        choices = []
        for nv in range(1, 5):
            if nv > 1 and (nv - 1) * lanes >= p.places[2]:
                break
            for mr in range(1, min(p.n, 16) + 1):
                # Sums, source vectors and the weights of a tap share the registers: tiles of 6 channels by 4 vectors, 8
                # by 3 and 10 by 2 took 1.1 to 1.25 times as long as 5 by 4, 7 by 3 and 8 by 2. With 16 registers, 3
                # channels by 4 vectors took 1.4 times as long as 4 by 3.
                fits = mr * nv + nv + 1 <= register_count
                if mr * nv <= register_count * 3 // 4 and mr + 2 * nv <= 13 and fits:
                    choices.append((StemKernel.cycles(problem, mr, nv, lanes), nv, mr))
        row = p.c * p.taps[0] * (p.places[2] * p.step[2] + p.taps[2] * p.spread[2]) * size
        rows = max(1, (SLOT_BYTES // row - (p.taps[1] - 1) * p.spread[1] - 1) // p.step[1] + 1)
        planes = p.images * p.groups * p.places[0]
        rows = min(rows, max(1, p.places[1] * planes // (8 * device.compute_units)), p.places[1])
        base = {"lanes": lanes, "rows": rows, "items": 16 * device.compute_units}
        choices.sort()
        if _in_place(p, lanes):
            # Vectors that are read in place and moved between lanes also need registers, so only small tiles are
            # offered.
            small_tiles = [(nv, mr) for _, nv, mr in choices if nv <= 2 and mr <= register_count // 4]
            yield from ({**base, "mr": mr, "nv": nv, "staged": False} for nv, mr in small_tiles[:2])
        for _, nv, mr in choices[:3]:
            yield {**base, "mr": mr, "nv": nv}
        if rows > 3:
            yield {**base, "rows": rows // 2, "mr": choices[0][2], "nv": choices[0][1]}


def _in_place(p: Pass, lanes: int) -> bool:
    """Whether taps may be read from the tensor. With a stride of 2 copied rows are 1.2 times as fast."""
    return p.source[2] >= lanes and p.step[2] == 1 and p.taps[2] <= MAX_TAPS_IN_PLACE
