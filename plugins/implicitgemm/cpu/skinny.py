"""``implicitgemm.skinny``: forward layers of few places, whose weights are read once and where they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

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
from convdispatch.api.cpu import Balance, cdiv, registers, uneven
from convdispatch.api.cpu import lanes as lanes_of

from .passes import passes

_PLACES = 64  # of all images; more are a product's work
_TAPS = 128  # of a window, whose offsets a work item holds
_SUM = 64  # products of a sum at least: its tile's end takes as long as so many
_RUN, _COPIES = 4096, 16  # elements of x that a work item copies at most, and work items of an image at least
_AHEAD = 512  # elements of a row of w that it is asked for ahead: a tenth to a seventh of the time less
_CACHED = 6 << 20  # bytes of weights that caches keep between calls
# Operations of the peak in the time of a launch, of an element that is copied, NCHW and channels last, and of its run
# of channels there; of an element of w on its way from a cache and from memory; of a multiply-add and of a load in a
# tile, a step's least, and a tile's end: least squares of logarithms over 150 tiles of 30 layers drawn for it.
_LAUNCH, _COPIED, _RUNS, _NEAR, _FAR = 3e6, (150.0, 45.0), (0.0, 1000.0), 18.0, 30.0
_MULTIPLIED, _LOADED, _WAIT, _TILE = 1.7, 3.3, 7.0, 40.0


class SkinnyKernel:
    """One configuration, worked out without compiling."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.p = p = passes(problem)[0]
        self.lanes, self.k = config["lanes"], p.c * p.volume
        self.places = p.images * math.prod(p.places)
        self.size = 8 if p.dtype == "float64" else 4
        whole = math.prod(p.source) if p.source == p.taps and p.places == (1, 1, 1) and set(p.pad) == {0} else 0
        near = p.nhwc and p.volume == 1 and p.source == p.places and set(p.step) == {1} and set(p.pad) == {0}
        self.in_place = near or (whole > 0 and (p.groups == 1 or whole == 1 or not p.nhwc))
        if self.in_place:
            self.pitch, self.apart = p.groups * self.k, self.k
        else:
            # A pitch of an odd number of cache lines, so that places spread over the cache's sets.
            self.pitch = (cdiv(self.k, 16) | 1) * 16
            self.apart = self.places * self.pitch
        self.blocks = cdiv(p.n, config["mr"])
        self.items = min(p.groups * self.blocks, config["items"])
        self.run = max(1, min(cdiv(p.c, _COPIES), _RUN // math.prod(p.source)))
        self.workspace_size = 0 if self.in_place else p.groups * self.apart * self.size

    @property
    def far(self) -> bool:
        """Whether the weights come from memory."""
        return self.p.groups * self.p.n * self.k * self.size > _CACHED

    def cost(self, mr: int, pc: int, balance: Balance, device: DeviceInfo) -> float:
        """Operations of the peak that tiles of ``mr`` rows and ``pc`` places take, whatever the configuration says."""
        p, steps = self.p, 0.0
        for rows, times_n in ((mr, p.n // mr), (p.n % mr, 1)):
            for cols, times_p in ((pc, self.places // pc), (self.places % pc, 1)):
                if rows and cols:
                    step = max(_MULTIPLIED * rows * cols, _LOADED * (rows + cols), _WAIT)
                    steps += times_n * times_p * (step * cdiv(self.k, self.lanes) + _TILE)
        jobs = min(p.groups * cdiv(p.n, mr), self.config["items"])
        work = 2 * self.lanes * p.groups * steps * uneven(jobs, device)
        streamed = (_FAR * balance.memory if self.far else _NEAR) * p.groups * p.n * self.k
        copied = 0.0
        if not self.in_place:
            copied = p.groups * self.places * (_COPIED[p.nhwc] * self.k + _RUNS[p.nhwc] * p.volume)
        launches = _LAUNCH * balance.launch * (1 if self.in_place else 2)
        return math.hypot(work, streamed) + copied + launches

    def text(self) -> str:
        """The program."""
        p, config, acc = self.p, self.config, DTYPES[self.p.dtype].accumulator
        text = storage_macros(p.dtype) + epilogue_macros(self.problem) + p.macros()
        text += define(**{"P" + axis: f"({pad})" for axis, pad in zip("DHW", p.pad, strict=True)})
        text += define(V=f"{acc}{self.lanes}", KEPT=f"{'long' if acc == 'double' else 'int'}{self.lanes}")
        text += define(LANES=self.lanes, C=p.c, K=self.k, N=p.n, GROUPS=p.groups, RUN=self.run, NHWC=int(p.nhwc))
        text += define(PITCH=f"{self.pitch}L", APART=f"{self.apart}L", PLACES=self.places, PIXELS=math.prod(p.places))
        text += define(MR=config["mr"], BLOCKS=self.blocks, ITEMS=self.items)
        text += define(FROM="REAL" if self.in_place else "ACC", READ="LOADV" if self.in_place else "LOADW")
        rows, cols = (
            [whole, every % whole] if every % whole else [whole]
            for whole, every in ((min(config["mr"], p.n), p.n), (config["pc"], self.places))
        )
        values = {
            "lanes": self.lanes, "rest": self.k % self.lanes, "in_place": self.in_place, "nhwc": p.nhwc,
            "heights": rows, "widths": cols, "ahead": _AHEAD if self.far else 0,
        }  # fmt: skip
        copies = kernel_text(__package__, "runs.cl") if p.nhwc and not self.in_place else ""
        return text + copies + kernel_text(__package__, "skinny.cl.mako", **values)

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        p, program, alone = self.p, build(context, self.text()), (1, 1, 1)
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        steps = []
        if not self.in_place:
            size = (self.places, p.taps[0] * p.taps[1], p.groups)
            if not p.nhwc:
                size = (p.images, cdiv(p.c, self.run), p.groups)
            steps.append(Launch(program, "lower", size, alone, ["x", "workspace"], names=OPERANDS))
        source = "x" if self.in_place else "workspace"
        steps.append(Launch(program, "conv", (self.items, 1, 1), alone, [source, "w", "y", *extras], names=OPERANDS))
        return StepPlan(self.workspace_size, steps)


class Skinny(Solver):
    """Few places by long sums, on a CPU: late layers of small pictures, one pixel's channels."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Anything but few places and long sums."""
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        places, taps = problem.mb * problem.od * problem.oh * problem.ow, problem.kd * problem.kh * problem.kw
        if not 1 <= places <= _PLACES:
            return f"1 to {_PLACES} places of all images, got {places}"
        if taps > _TAPS:
            return f"{_TAPS} taps at most, got {taps}"
        if (length := problem.ic // problem.g * taps) < _SUM:
            return f"sums of {_SUM} products or more, got {length}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles by predicted cost, the best first."""
        room, balance = registers(device), Balance.of(rates(device))
        config = {"lanes": lanes_of(device, problem.dtype), "items": 16 * device.compute_units, "mr": 1, "pc": 1}
        kernel = SkinnyKernel(problem, config)
        choices = []
        for pc in sorted({cdiv(kernel.places, parts) for parts in range(1, kernel.places + 1)}):
            for mr in range(1, min(kernel.p.n, room // 4) + 1):
                if mr * pc <= room * 3 // 4 and mr * pc + pc + 2 <= room:
                    choices.append((kernel.cost(mr, pc, balance, device), -mr, pc))
        for _, mr, pc in sorted(choices)[:4]:
            yield {**config, "mr": -mr, "pc": pc}

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """The windows of all places."""
        return SkinnyKernel(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Tiles, the weights' way, what is copied, and launches."""
        known = rates(device)
        operations = SkinnyKernel(problem, config).cost(config["mr"], config["pc"], Balance.of(known), device)
        return operations / known.flops

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile."""
        return SkinnyKernel(problem, config).plan(context)
