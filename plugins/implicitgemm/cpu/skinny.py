"""``implicitgemm.skinny``: forward layers of few output pixels, whose weights are read once and never packed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan, rates
from convdispatch.api.cpu import Balance, cdiv, registers, uneven
from convdispatch.api.cpu import lanes as lanes_of

from ..solving import KernelSolver
from .kernel import Kernel
from .passes import passes

MAX_PLACES = 64
"""Most output pixels of all images; layers with more suit an ordinary matrix product."""
MAX_TAPS = 128
"""Most taps of a window: a work item holds their offsets."""
MIN_SUM = 64
"""Fewest products of a sum: the end of a tile takes as long as so many products."""
COPIED_ELEMENTS = 4096
"""Most elements of x that one work item copies."""
COPY_ITEMS = 16
"""Least work items that copy one image."""
AHEAD_ELEMENTS = 512
"""Elements of a row of w by which prefetching is ahead of reading, which saves a tenth to a seventh of the time."""
CACHED_BYTES = 6 << 20
"""Bytes of weights that caches hold between calls."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted by least squares of
# logarithms over 150 tiles of 30 layers drawn at random.
LAUNCH_OPS = 3e6  # operations at peak rate in the time of one kernel launch
COPIED_OPS = (150.0, 45.0)  # operations at peak rate per element of x that is copied, in NCHW and in NHWC
RUN_OPS = (0.0, 1000.0)  # operations at peak rate per run of channels that is copied, in NCHW and in NHWC
NEAR_OPS = 18.0  # operations at peak rate per element of w that is read from a cache
FAR_OPS = 30.0  # operations at peak rate per element of w that is read from memory
MULTIPLY_OPS = 1.7  # time of a vector multiply-add in one step of a tile, in vector multiply-adds at peak rate
LOAD_OPS = 3.3  # time of a vector load in one step of a tile, in vector multiply-adds at peak rate
STEP_OPS = 7.0  # least time of one step of a tile, in vector multiply-adds at peak rate
TILE_OPS = 40.0  # time of the end of a tile, in vector multiply-adds at peak rate


class SkinnyKernel(Kernel):
    """The kernel of one configuration: tiles of ``mr`` rows of w by ``pc`` output pixels."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, passes(problem)[0])
        p = self.p
        self.k = p.c * p.volume
        self.places = p.images * math.prod(p.places)
        source_size = math.prod(p.source) if p.source == p.taps and p.places == (1, 1, 1) and set(p.pad) == {0} else 0
        pointwise = p.nhwc and p.volume == 1 and p.source == p.places and set(p.step) == {1} and set(p.pad) == {0}
        self.in_place = pointwise or (source_size > 0 and (p.groups == 1 or source_size == 1 or not p.nhwc))
        if self.in_place:
            self.pitch, self.group_pitch = p.groups * self.k, self.k
        else:
            # The pitch is an odd number of cache lines, so that neighbouring pixels are spread over the sets of the
            # cache.
            self.pitch = (cdiv(self.k, 16) | 1) * 16
            self.group_pitch = self.places * self.pitch
        self.blocks = cdiv(p.n, config["mr"])
        self.items = min(p.groups * self.blocks, config["items"])
        self.run = max(1, min(cdiv(p.c, COPY_ITEMS), COPIED_ELEMENTS // math.prod(p.source)))
        self.workspace_size = 0 if self.in_place else p.groups * self.group_pitch * self.size
        self.far = p.groups * p.n * self.k * self.size > CACHED_BYTES
        """Whether the weights come from memory."""

    def cost(self, balance: Balance, device: DeviceInfo, tile: tuple[int, int] | None = None) -> float:
        """Return operations at peak rate with the configuration's tile, or with another ``tile`` of (rows, pixels)."""
        mr, pc = tile or (self.config["mr"], self.config["pc"])
        p, steps = self.p, 0.0
        for rows, times_n in ((mr, p.n // mr), (p.n % mr, 1)):
            for cols, times_p in ((pc, self.places // pc), (self.places % pc, 1)):
                if rows and cols:
                    step = max(MULTIPLY_OPS * rows * cols, LOAD_OPS * (rows + cols), STEP_OPS)
                    steps += times_n * times_p * (step * cdiv(self.k, self.lanes) + TILE_OPS)
        jobs = min(p.groups * cdiv(p.n, mr), self.config["items"])
        multiply_ops = 2 * self.lanes * p.groups * steps * uneven(jobs, device)
        weight_ops = (FAR_OPS * balance.memory if self.far else NEAR_OPS) * p.groups * p.n * self.k
        copy_ops = 0.0
        if not self.in_place:
            copy_ops = p.groups * self.places * (COPIED_OPS[p.nhwc] * self.k + RUN_OPS[p.nhwc] * p.volume)
        launches = LAUNCH_OPS * balance.launch * (1 if self.in_place else 2)
        return math.hypot(multiply_ops, weight_ops) + copy_ops + launches

    def text(self) -> str:
        p, config, in_place = self.p, self.config, self.in_place
        text = self.macros(
            "XYTSDP", C=p.c, K=self.k, N=p.n, GROUPS=p.groups, RUN=self.run, NHWC=int(p.nhwc), PITCH=f"{self.pitch}L",
            APART=f"{self.group_pitch}L", PLACES=self.places, PIXELS=math.prod(p.places), MR=config["mr"],
            BLOCKS=self.blocks, ITEMS=self.items, FROM="REAL" if in_place else "ACC",
            READ="LOADV" if in_place else "LOADW",
        )  # fmt: skip
        rows, cols = (
            [tile_size, total % tile_size] if total % tile_size else [tile_size]
            for tile_size, total in ((min(config["mr"], p.n), p.n), (config["pc"], self.places))
        )
        values = {"lanes": self.lanes, "rest": self.k % self.lanes, "in_place": in_place, "nhwc": p.nhwc}
        values |= {"heights": rows, "widths": cols, "ahead": AHEAD_ELEMENTS if self.far else 0}
        return text + self.rendered(["masks.cl", "skinny.cl.mako"], **values)

    def plan(self, context: Any) -> StepPlan:
        p = self.p
        steps = []
        if not self.in_place:
            size = (self.places, p.taps[0] * p.taps[1], p.groups)
            if not p.nhwc:
                size = (p.images, cdiv(p.c, self.run), p.groups)
            steps.append(self.launch(context, "lower", size, ["x", "workspace"]))
        source = "x" if self.in_place else "workspace"
        steps.append(self.launch(context, "conv", [self.items], [source, "w", "y", *self.problem.epilogue_operands]))
        return StepPlan(self.workspace_size, steps)


class Skinny(KernelSolver):
    """Solves forward layers of few output pixels and long sums on a CPU: late layers of small images."""

    kernel = SkinnyKernel

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        pixels, taps = problem.mb * problem.od * problem.oh * problem.ow, problem.kd * problem.kh * problem.kw
        if not 1 <= pixels <= MAX_PLACES:
            return f"1 to {MAX_PLACES} places of all images, got {pixels}"
        if taps > MAX_TAPS:
            return f"{MAX_TAPS} taps at most, got {taps}"
        if (length := problem.ic // problem.g * taps) < MIN_SUM:
            return f"sums of {MIN_SUM} products or more, got {length}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield tiles by predicted cost, the best first."""
        register_count, balance = registers(device), Balance.of(rates(device))
        config = {"lanes": lanes_of(device, problem.dtype), "items": 16 * device.compute_units, "mr": 1, "pc": 1}
        kernel = SkinnyKernel(problem, config)
        choices = []
        for pc in sorted({cdiv(kernel.places, parts) for parts in range(1, kernel.places + 1)}):
            for mr in range(1, min(kernel.p.n, register_count // 4) + 1):
                if mr * pc <= register_count * 3 // 4 and mr * pc + pc + 2 <= register_count:
                    choices.append((kernel.cost(balance, device, (mr, pc)), -mr, pc))
        for _, mr, pc in sorted(choices)[:4]:
            yield {**config, "mr": -mr, "pc": pc}
