"""Convolutions with one source channel per group in NCHW on a CPU, lowered in registers.

A matrix product with one or a few rows would spend its time on copying the lowered matrix. This method serves the
forward convolution, the data gradient, of whose stride all phases are computed in one launch, and the weights'
gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from convdispatch.api import (
    DTYPES,
    MOST_PHASES,
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Launch,
    Phase,
    StepPlan,
    build,
    define,
    epilogue_macros,
    geometry_of,
    kernel_text,
    phase_count,
    storage_macros,
)
from convdispatch.api.cpu import Balance, round_up

MAX_TAPS = 128
"""Most taps of a kernel: the loop over taps is unrolled."""
MAX_TARGETS = 8
"""Most output channels per group; a strided data gradient has one."""
MAX_STEP = 8
"""Most phases of a row of a strided data gradient."""
MAX_PLANE_BYTES = 1 << 26
"""Most bytes of one padded plane of the source, which one work item copies."""

# The constants of the cost model are in operations at the device's peak multiply-add rate.
OPERATION_OPS = 3.0  # operations at peak rate per operation of the direct sum
LAUNCH_OPS = 4.8e6  # operations at peak rate in the time of the one kernel launch
# Operations at peak rate per element copied into its padded plane: forward, and in the weights' gradient
FILLED_OPS = (12.0, 31.0)
# Operations at peak rate per element copied into its padded plane, where a stride separates the columns by phase
STRIDED_OPS = 42.0
ADDED_OPS = 700.0  # operations at peak rate per element of dw: the lanes of its vector of sums are added one by one
PAIR_OPS, SINGLE_OPS = 3.0, 35.0
"""Operations at peak rate per element of x that a strided gradient writes: in pairs (stride 2), and one by one."""


class Row(NamedTuple):
    """Target rows congruent modulo the stride s; ``phases[f]`` has (tap, offset) of all terms of column f, f + s ..."""

    first: tuple[int, ...]
    rows: tuple[int, ...]
    """Rows along d and h."""
    phases: list[list[tuple[int, int]]]


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """Yield one configuration per workspace cap; none on GPUs, in NHWC, nor if the problem is not depthwise or exceeds
    a limit above."""
    if device.type != "cpu" or problem.layout == "nhwc" or problem.g == 1:
        return
    if problem.kd * problem.kh * problem.kw > MAX_TAPS or phase_count(problem) > MOST_PHASES:
        return
    geometry = geometry_of(problem)
    strided = max(geometry.out_step) > 1
    if geometry.c > 1 or geometry.m > (1 if strided else MAX_TARGETS) or geometry.out_step[2] > MAX_STEP:
        return
    config: dict[str, Any] = {"method": "phases"}
    if not strided:
        config = {"method": "depthwise", "flipped": problem.direction == "bwd_data"}
    plane = Depthwise(problem, {"items": 1}).workspace_size
    jobs = geometry.target.channels if problem.direction == "bwd_weights" else geometry.images * geometry.groups
    for cap in caps if plane <= MAX_PLANE_BYTES else []:
        yield {**config, "items": max(1, min(jobs, 16 * device.compute_units, cap // plane))}


class Depthwise:
    """The depthwise method under one configuration: sizes, text and launches; nothing is compiled."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.items = problem, config["items"]
        self.geometry = geometry = geometry_of(problem)
        self.lanes = 64 // problem.accumulator_size
        self.gradient = problem.direction == "bwd_weights"
        self.columns = max(phase.count[2] for phase in geometry.phases)
        """Pixels of the longest phase of a row of the target."""
        steps = enumerate(zip(geometry.step, geometry.spread, strict=True))
        reads = [[p.reads(axis, *step) for p in geometry.phases if p.volume] for axis, step in steps]
        self.zero = [min((r.start for r in ranges), default=0) for ranges in reads]
        """Position in the source of the padded plane's first element, along each axis."""
        self.extent = [max((r.stop for r in each), default=1) - zero for each, zero in zip(reads, self.zero)]
        step = geometry.step[2]
        beyond = (self.extent[2] - 1 - (self.columns - 1) * step) // step
        self.pitch = round_up(round_up(self.columns, self.lanes) + beyond, self.lanes)

    @property
    def workspace_size(self) -> int:
        """Bytes of the work items' padded planes."""
        plane = self.extent[0] * self.extent[1] * self.geometry.step[2] * self.pitch
        return plane * self.problem.accumulator_size * self.items

    def cost(self, balance: Balance) -> float:
        """Return operations at peak rate on a CPU: one launch, padded planes, vectors with empty lanes at row ends, and
        stores of the phases of a stride."""
        problem, geometry = self.problem, self.geometry
        read, written = (each.image * geometry.images for each in (geometry.source, geometry.target))
        fill_ops = (STRIDED_OPS if geometry.step[2] > 1 else FILLED_OPS[self.gradient]) * read
        fill_ops += ADDED_OPS * math.prod(problem.w_shape) * self.gradient
        sum_ops = OPERATION_OPS * problem.flops * round_up(self.columns, self.lanes) / self.columns
        if max(geometry.out_step) > 1:
            sum_ops += (PAIR_OPS if geometry.out_step[2] == 2 else SINGLE_OPS) * written
        return LAUNCH_OPS * balance.launch + fill_ops + sum_ops

    def plan(self, context: Any) -> StepPlan:
        name, operands = "gradient", ["x", "y", "w", "workspace"]
        if not self.gradient:
            name, (source, target) = "depthwise", "yx" if self.problem.direction == "bwd_data" else "xy"
            operands = [source, "w", target, *self.problem.epilogue_operands, "workspace"]
        launch = Launch(build(context, self.text()), name, (self.items, 1, 1), (1, 1, 1), operands, names=OPERANDS)
        return StepPlan(self.workspace_size, [launch])

    def text(self) -> str:
        problem, geometry = self.problem, self.geometry
        text = storage_macros(problem.dtype) + epilogue_macros(problem)
        triples = {"X": geometry.source.size, "Y": geometry.target.size, "S": geometry.step, "U": geometry.out_step}
        for prefix, triple in triples.items():
            text += define(**{prefix + axis: value for axis, value in zip("DHW", triple, strict=True)})
        text += define(
            IMAGES=geometry.images, G=geometry.groups, M=geometry.m, TAPS=geometry.volume, ITEMS=self.items,
            LANES=self.lanes, V=f"{DTYPES[problem.dtype].accumulator}{self.lanes}", EZ=self.extent[0],
            EY=self.extent[1], PITCH=self.pitch, ZERO_Z=f"({self.zero[0]})", ZERO_Y=f"({self.zero[1]})",
        )  # fmt: skip
        values = {"gradient": self.gradient, "rows": list(self._rows()), "columns": self.columns, "lanes": self.lanes}
        values |= {"step": geometry.step[2], "out_step": geometry.out_step[2], "pitch": self.pitch}
        values |= {"zero_x": self.zero[2], "width": geometry.source.size[2], "bias": problem.bias}
        return text + kernel_text(__package__, "depthwise.cl.mako", **values)

    def _rows(self) -> Iterator[Row]:
        for first, group in itertools.groupby(self.geometry.phases, key=lambda phase: phase.first[:2]):
            phases = list(group)
            terms = [
                [self._term(phase, taps) for taps in itertools.product(*map(range, phase.taps))] for phase in phases
            ]
            yield Row(first, phases[0].count[:2], terms)

    def _term(self, phase: Phase, taps: tuple[int, ...]) -> tuple[int, int]:
        """Return a phase's tap in the kernel, and the offset in the padded plane that the first result reads for it."""
        geometry, tap, at = self.geometry, 0, []
        for axis, t in enumerate(taps):
            tap = tap * geometry.kernel[axis] + phase.tap0[axis] + t * geometry.tap_step[axis]
            at.append(phase.origin[axis] + t * geometry.spread[axis] - self.zero[axis])
        step = geometry.step[2]
        return tap, ((at[0] * self.extent[1] + at[1]) * step + at[2] % step) * self.pitch + at[2] // step
