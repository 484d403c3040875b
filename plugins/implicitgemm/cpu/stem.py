"""``implicitgemm.stem``: forward layers of few source channels in NCHW, vectors along a row's places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from convdispatch.api import (
    DTYPES,
    OPERANDS,
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
from convdispatch.api.cpu import Balance, cdiv, registers
from convdispatch.api.cpu import lanes as lanes_of

from .passes import Pass, passes
from .places import Read, cover, moved, name, runs_of

FILES = ("runs.cl", "planes.cl.mako", "stem.cl.mako")
_CHANNELS, _MANY, _WIDTH = 8, 32, 11
"""Source channels a group at most, where rows are copied and where taps are read in place; taps along w, unrolled."""
_SHORT = 3  # taps along w, at most, that are read where they lie
_SLOT = 24 * 1024  # bytes of a band's source rows: half of the nearest cache, beside what a tile writes
# Operations of the peak in the time of one in a tile, of an element copied for a band, read in place or written, and of
# the launch.
_WORK, _STAGED, _READ, _STORED, _LAUNCH = 1.15, 20.0, 6.0, 12.0, 4e6
_APART = 150.0
"""Of an element copied one by one, as every third and further of a row are."""


class StemKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.p = p = passes(problem)[0]
        self.lanes, self.size = config["lanes"], 8 if p.dtype == "float64" else 4
        rows = (config["rows"] - 1) * p.step[1] + (p.taps[1] - 1) * p.spread[1] + 1
        width = (p.places[2] - 1) * p.step[2] + (p.taps[2] - 1) * p.spread[2] + 1
        # A pitch of an odd number of half cache lines, so that rows spread over the cache's sets.
        self.wp = cdiv(cdiv(width, p.step[2]), 16) * 16 + 8
        self.prows = cdiv(rows, p.step[1])
        self.part = p.taps[0] * self.prows * self.wp
        self.plane = self.part * p.step[1] * p.step[2]
        self.slot = cdiv(p.c * self.plane, 16) * 16 + 80
        work = p.images * p.groups * p.places[0] * cdiv(p.places[1], config["rows"])
        self.items = min(work, config["items"])
        self.workspace_size = self.items * self.slot * self.size

    @property
    def tiles(self) -> list[tuple[list[int], int]]:
        """Of whole tiles and of the rest: where vectors begin, and the last one's first lane that no other computes."""
        wide, width = self.config["nv"] * self.lanes, self.p.places[2]
        rest = width % wide
        found = [([v * self.lanes for v in range(self.config["nv"])], 0)] if width >= wide else []
        if rest:
            starts = [v * self.lanes for v in range(rest // self.lanes)]
            over = rest % self.lanes
            found.append(([*starts, rest - self.lanes], self.lanes - over) if over else (starts, 0))
        return found

    def _macros(self) -> str:
        p, config, acc = self.p, self.config, DTYPES[self.p.dtype].accumulator
        text = storage_macros(p.dtype) + epilogue_macros(self.problem)
        text += define(V=f"{acc}{self.lanes}", LANES=self.lanes)
        text += p.macros()
        text += define(IMAGES=p.images, GROUPS=p.groups, G=p.groups * p.c, C=p.c, N=p.n, R=config["rows"])
        return text + define(MR=config["mr"], BLOCKS=cdiv(p.n, config["mr"]), ITEMS=self.items)

    def text(self) -> str:
        """The program."""
        p, config = self.p, self.config
        text = self._macros() + define(SLOT=f"{self.slot}L", CB=1)
        text += define(WP=self.wp, PROWS=self.prows, PART=self.part, PLANE=self.plane)
        rest, wide = p.n % config["mr"], config["nv"] * self.lanes
        values = {
            "inter": False, "bias": self.problem.bias,
            "rereads": self.problem.accumulate or self.problem.residual, "taps_w": p.taps[2],
            "step_w": p.step[2], "spread_w": p.spread[2], "tiles": self.tiles, "wide": wide,
            "whole": p.places[2] // wide * wide, "heights": [config["mr"], rest] if rest else [config["mr"]],
        }  # fmt: skip
        return text + "".join(kernel_text(__package__, f, **values) for f in FILES)

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        arguments = ["x", "w", "workspace", "y", *extras, *map(np.int32, self.p.pad)]
        sizes = (self.items, 1, 1)
        launch = Launch(build(context, self.text()), "conv", sizes, (1, 1, 1), arguments, names=OPERANDS)
        return StepPlan(self.workspace_size, [launch])


class Across(NamedTuple):
    """A tile of ``RowsKernel``: where its vectors begin, the last one's first lane that no other computes, the source's
    vectors that it reads, and of each tap each vector's operand, None outside of the row."""

    starts: tuple[int, ...]
    first: int
    windows: tuple[int, ...]
    reads: tuple[tuple[Read | None, ...], ...]


class RowsKernel(StemKernel):
    """The same without a copy: taps are read where they lie."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config)
        self.workspace_size = 0

    def _across(self) -> tuple[dict[Across, str], list[tuple[str, int, int, int]]]:
        """Functions, and their calls along a row."""
        p, wide, width = self.p, self.config["nv"] * self.lanes, self.p.places[2]
        tiles: dict[Across, str] = {}
        calls = []
        for column in range(0, width, wide):
            starts, first = self.tiles[0] if column + wide <= width else self.tiles[-1]
            base, windows, reads = column * p.step[2], [], []
            for tap in range(p.taps[2]):
                operands = []
                for start in starts:
                    at = ((column + start + i) * p.step[2] + tap * p.spread[2] - p.pad[2] for i in range(self.lanes))
                    offsets = tuple(each - base if 0 <= each < p.source[2] else None for each in at)
                    outside = all(each is None for each in offsets)
                    operands.append(
                        None if outside else cover(offsets, windows, -base, p.source[2] - self.lanes - base)
                    )
                reads.append(tuple(operands))
            tile = Across(tuple(starts), first, tuple(windows), tuple(reads))
            calls.append((0, column, tiles.setdefault(tile, f"tile_{len(tiles)}")))
        return tiles, runs_of(calls)[0].calls

    def text(self) -> str:
        """The program."""
        p, config, acc = self.p, self.config, DTYPES[self.p.dtype].accumulator
        tiles, calls = self._across()
        rest = p.n % config["mr"]
        text = self._macros() + define(KEPT=f"{'long' if acc == 'double' else 'int'}{self.lanes}")
        text += define(**{"P" + axis: f"({pad})" for axis, pad in zip("DHW", p.pad, strict=True)})
        text += define(BANDS=cdiv(p.places[1], config["rows"]))
        return text + kernel_text(
            __package__, "stem_rows.cl.mako", tiles=tiles, calls=calls, moved=moved, name=name,
            heights=[config["mr"], rest] if rest else [config["mr"]], bias=self.problem.bias,
            rereads=self.problem.accumulate or self.problem.residual,
        )  # fmt: skip

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        arguments, size = ["x", "w", "y", *extras], (self.items, 1, 1)
        return StepPlan(0, [Launch(build(context, self.text()), "conv", size, (1, 1, 1), arguments, names=OPERANDS)])


class Stem(Solver):
    """Vectors of a row's places by a few target channels, on a CPU: stems, whose three channels fill no vector."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but few channels, a short kernel and rows of a vector or more."""
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        most = _MANY if _in_place(passes(problem)[0], lanes_of(device, problem.dtype)) else _CHANNELS
        if problem.ic // problem.g > most:
            return f"{most} channels a group at most, got {problem.ic // problem.g}"
        if problem.kw > _WIDTH:
            return f"{_WIDTH} taps along w at most, got {problem.kw}"
        if problem.ow < lanes_of(device, problem.dtype):
            return f"rows of {lanes_of(device, problem.dtype)} places or more, got {problem.ow}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles by their count of cycles, the best first."""
        p, lanes, room = passes(problem)[0], lanes_of(device, problem.dtype), registers(device)
        size = 8 if p.dtype == "float64" else 4
        choices = []
        for nv in range(1, 5):
            if nv > 1 and (nv - 1) * lanes >= p.places[2]:
                break
            for mr in range(1, min(p.n, 16) + 1):
                # Sums, vectors and the weights of a tap share the registers: six by four, eight by three and ten by two
                # took 1.1 to 1.25 times as long as five by four, seven by three and eight by two.
                if mr * nv <= room * 3 // 4 and mr + 2 * nv <= 13:
                    choices.append((self._cycles(problem, mr, nv, lanes), nv, mr))
        row = p.c * p.taps[0] * (p.places[2] * p.step[2] + p.taps[2] * p.spread[2]) * size
        rows = max(1, (_SLOT // row - (p.taps[1] - 1) * p.spread[1] - 1) // p.step[1] + 1)
        outer = p.images * p.groups * p.places[0]
        rows = min(rows, max(1, p.places[1] * outer // (8 * device.compute_units)), p.places[1])
        base = {"lanes": lanes, "rows": rows, "items": 16 * device.compute_units}
        choices.sort()
        if _in_place(p, lanes):
            # What is read and moved needs registers too.
            few = [(nv, mr) for _, nv, mr in choices if nv <= 2 and mr <= room // 4]
            yield from ({**base, "mr": mr, "nv": nv, "staged": False} for nv, mr in few[:2])
        for _, nv, mr in choices[:3]:
            yield {**base, "mr": mr, "nv": nv}
        if rows > 3:
            yield {**base, "rows": rows // 2, "mr": choices[0][2], "nv": choices[0][1]}

    @staticmethod
    def _cycles(problem: ConvProblem, mr: int, nv: int, lanes: int) -> float:
        """Cycles of a tap over a row of places for all channels of a group: multiply-adds, or the loads beside them."""

        def step(rows: int, vectors: int) -> float:
            return max(rows * vectors, 2 * vectors + rows, 8) + 1 if rows and vectors else 0.0

        whole, rest = divmod(cdiv(problem.ow, lanes), nv)
        n = problem.oc // problem.g
        return sum(
            times * (whole * step(rows, nv) + step(rows, rest)) for rows, times in ((mr, n // mr), (n % mr, 1)) if rows
        )

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """The work items' slots."""
        return _kernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """The tiles' cycles, what is copied and written, and one launch."""
        p = passes(problem)[0]
        cycles = self._cycles(problem, config["mr"], config["nv"], config["lanes"])
        work = 2 * config["lanes"] * cycles * p.images * p.groups * p.c * p.volume * p.places[0] * p.places[1]
        halo = 1 + (p.taps[1] - 1) / max(1, config["rows"] * p.step[1])
        staged = _READ if not config.get("staged", True) else _STAGED if p.step[2] in (1, 2, 4) else _APART
        moved = staged * math.prod(problem.x_shape) * halo * p.taps[0] + _STORED * math.prod(problem.y_shape)
        known = rates(device)
        return (_WORK * work + moved + _LAUNCH * Balance.of(known).launch) / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        return _kernel(problem, config).plan(context)


def _in_place(p: Pass, lanes: int) -> bool:
    """Whether taps may be read where they lie."""
    return p.source[2] >= lanes and p.step[2] <= 2 and p.taps[2] <= _SHORT


def _kernel(problem: ConvProblem, config: Mapping[str, Any]) -> StemKernel:
    return (StemKernel if config.get("staged", True) else RowsKernel)(problem, config)
