"""The strided data gradient of one channel per group in NCHW on a CPU: all phases of the stride in one launch."""

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

from .depthwise import MAX_PLANE_BYTES, MAX_TAPS

PAIR_OPS, SINGLE_OPS = 3.0, 35.0
"""Operations at peak rate per element of x that is written: in pairs (stride 2), and one by one."""


class Row(NamedTuple):
    """Rows of x congruent modulo the stride s; ``phases[f]`` has (tap, offset) of all terms of columns f, f + s, ..."""

    first: tuple[int, ...]
    count: tuple[int, ...]
    """Rows along d and h, and the most columns of a phase."""
    phases: list[list[tuple[int, int]]]


def configs(problem: ConvProblem, device: DeviceInfo, caps: list[int]) -> Iterator[dict[str, Any]]:
    """Yield one configuration per workspace cap; none if the problem is not a strided depthwise data gradient."""
    if device.type != "cpu" or problem.layout != "nchw" or not problem.depthwise or problem.direction != "bwd_data":
        return
    taps = problem.kd * problem.kh * problem.kw
    if problem.ic != problem.oc or taps > MAX_TAPS or problem.sw > 8 or phase_count(problem) > MOST_PHASES:
        return
    plane = DepthwisePhases(problem, {"items": 1}).workspace_size
    for cap in caps if plane <= MAX_PLANE_BYTES else []:
        items = max(1, min(problem.mb * problem.g, 16 * device.compute_units, cap // plane))
        yield {"method": "phases", "items": items}


class DepthwisePhases:
    """The strided depthwise data gradient under one configuration: sizes, text and launch; nothing is compiled."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.lanes = 64 // problem.accumulator_size
        self.geometry = geometry = geometry_of(problem)
        columns = max(phase.count[2] for phase in geometry.phases)
        reads = [[p.reads(axis, 1, geometry.spread[axis]) for p in geometry.phases if p.volume] for axis in range(3)]
        self.zero = [min((r.start for r in ranges), default=0) for ranges in reads]
        depth, height, width = (
            max((r.stop for r in ranges), default=1) - zero for ranges, zero in zip(reads, self.zero, strict=True)
        )
        self.extent = depth, height
        self.pitch = round_up(width + round_up(columns, self.lanes) - columns, self.lanes)
        self.columns = columns

    @property
    def workspace_size(self) -> int:
        """Bytes of the work items' padded planes."""
        size = self.problem.accumulator_size
        return math.prod(self.extent) * self.pitch * size * self.config["items"]

    def cost(self, balance: Balance) -> float:
        """Return operations at peak rate: one launch, the sums, and the elements that are read and written."""
        read, written = (math.prod(shape) for shape in (self.problem.y_shape, self.problem.x_shape))
        work = self.problem.flops * round_up(self.columns, self.lanes) / self.columns
        ops_per_element = PAIR_OPS if self.problem.sw == 2 else SINGLE_OPS
        return 4.8e6 * balance.launch + 12.0 * read + 3.0 * work + ops_per_element * written

    def plan(self, context: Any) -> StepPlan:
        epilogue_operands = [part for part in ("bias", "residual") if getattr(self.problem, part)]
        operands = ["y", "w", "x", *epilogue_operands, "workspace"]
        size = (self.config["items"], 1, 1)
        launch = Launch(build(context, self.text()), "phases", size, (1, 1, 1), operands, names=OPERANDS)
        return StepPlan(self.workspace_size, [launch])

    def text(self) -> str:
        problem, geometry = self.problem, self.geometry
        text = storage_macros(problem.dtype) + epilogue_macros(problem)
        kind = DTYPES[problem.dtype].accumulator
        text += define(LANES=self.lanes, V=f"{kind}{self.lanes}", ITEMS=self.config["items"])
        for prefix, triple in (("X", geometry.target.size), ("Y", geometry.source.size), ("S", geometry.out_step)):
            text += define(**{prefix + axis: value for axis, value in zip("DHW", triple, strict=True)})
        text += define(IMAGES=geometry.images, G=geometry.groups, TAPS=geometry.volume, PITCH=self.pitch)
        text += define(EZ=self.extent[0], EY=self.extent[1])
        text += define(**{f"ZERO_{axis}": f"({zero})" for axis, zero in zip("ZYX", self.zero, strict=True)})
        low = min(self.pitch, max(0, -self.zero[2]))
        high = max(low, min(self.pitch, geometry.source.size[2] - self.zero[2]))
        step = geometry.out_step[2]
        values = {"rows": list(self._rows()), "step": step, "low": low, "high": high, "bias": problem.bias}
        return text + kernel_text(__package__, "phases.cl.mako", **values)

    def _rows(self) -> Iterator[Row]:
        geometry = self.geometry
        for first_row, group in itertools.groupby(geometry.phases, key=lambda phase: phase.first[:2]):
            phases = list(group)
            count = (*phases[0].count[:2], self.columns)
            yield Row(first_row, count, [[self._tap_and_offset(p, taps) for taps in _taps(p)] for p in phases])

    def _tap_and_offset(self, phase: Any, taps: tuple[int, ...]) -> tuple[int, int]:
        """Return a phase's tap in the kernel, and the offset in the padded plane that the first result reads for it."""
        geometry, tap, offset = self.geometry, 0, 0
        pitches = (*self.extent, self.pitch)
        for axis, t in enumerate(taps):
            tap = tap * geometry.kernel[axis] + phase.tap0[axis] + t * geometry.tap_step[axis]
            position = phase.origin[axis] + t * geometry.spread[axis] - self.zero[axis]
            offset = offset * pitches[axis] + position
        return tap, offset


def _taps(phase: Any) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, phase.taps))
