"""implicitgemm.narrow: groups of at most four output channels, depthwise ones among them, without local memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from convdispatch.api import (
    MOST_PHASES,
    ConvProblem,
    DeviceInfo,
    StepPlan,
    define,
    geometry_of,
    kernel_text,
    phase_count,
    rates,
)

from ..solving import KernelSolver, launch
from .choice import SECTOR_OPS, SUSTAINED
from .product import element_index, weight_strides

ITEM_ROWS = (8, 4, 2, 1)
"""Places of a work item along h that are tried."""
MAX_SUMS = 96
"""Sums of a work item: for more there are too few registers."""
MAX_STEPS = 1600
"""Multiply-adds a channel that the kernel's text contains."""
ITEMS = 128
"""Work items of a group."""

# The cost model counts operations of the peak, fitted on an H100 and an H200.
ALONE_OPS = 2000.0  # a unit's, for a multiply-add that waits for the one before: nine problems, 3 to 62 items a unit
GAP_LOAD_OPS = 800.0  # a load whose neighbours' values are in other sectors, of cache lines that are lost
CACHED_LOAD_OPS = {2: 70.0, 4: 25.0, 8: 25.0}  # the same of lines that stay cached, by bytes of a number: 33 layers
COPY_SHARE = 0.94  # share of a copy's bandwidth
CACHED_PIXEL_BYTES = 64  # bytes of a pixel's channels of a group up to which cache lines stay for the next channels
CACHED_LOADS = 8  # loads of a work item up to which they stay


class _Use(NamedTuple):
    """One tap in one phase: which weights, and which rows the work item's places read."""

    phase: int
    tap: int
    dy: tuple[int, ...]


@dataclass(unsafe_hash=True)
class NarrowProduct:
    """The sums of a work item: all output channels of a group at ``rows`` places."""

    problem: ConvProblem
    rows: int
    apart: bool = False
    """Phases of different rows of the output go to different work items, which leaves registers for more places."""
    items: int = ITEMS

    def __post_init__(self) -> None:
        problem = self.problem
        self.geometry = geo = geometry_of(problem)
        self.mp = 4 if geo.m > 2 else geo.m
        """Output channels of a group in packed weights."""
        self.count = tuple(max(phase.count[axis] for phase in geo.phases) for axis in range(3))
        """Places along each axis, those of the largest phase."""
        self.blocks = -(-self.count[1] // self.rows)
        """Blocks of rows."""
        self.work_items = geo.images * geo.groups * self.count[0] * self.blocks * self.count[2]
        """Work items that have something to do."""
        sets: dict[object, list[int]] = {}
        for number, phase in enumerate(geo.phases):
            sets.setdefault(phase.first[:2] if self.apart else None, []).append(number)
        self.sets = list(sets.values())
        """Numbers of the phases that a work item computes together."""
        taps = max(sum(geo.phases[number].volume for number in each) for each in self.sets)
        self.steps = taps * self.rows * geo.m
        """Most multiply-adds of a work item a channel."""
        self.sums = max(map(len, self.sets)) * self.rows * geo.m
        """Most sums of a work item."""
        self.index = element_index(geo.images * geo.source.image)
        """OpenCL type of element offsets in the source."""
        self.weight_strides = weight_strides(problem)
        self.packed_elements = geo.groups * geo.c * geo.volume * self.mp
        self.packed_size = self.packed_elements * (8 if problem.dtype == "float64" else 4)
        self.workspace_size = 0 if problem.constant_weights else self.packed_size

    def config(self) -> dict[str, Any]:
        """The configuration."""
        return {"rows": self.rows, "apart": True} if self.apart else {"rows": self.rows}

    def columns(self, phases: list[int]) -> dict[tuple[int, int], list[_Use]]:
        """What some phases read at each (depth, column) relative to the item's place, and what it is used for."""
        geo, columns = self.geometry, {}
        for number in phases:
            phase = geo.phases[number]
            for tap in itertools.product(*map(range, phase.taps)):
                dz, dy, dx = (o + t * d for o, t, d in zip(phase.origin, tap, geo.spread, strict=True))
                kernel = [first + t * s for first, t, s in zip(phase.tap0, tap, geo.tap_step, strict=True)]
                flat = (kernel[0] * geo.kernel[1] + kernel[1]) * geo.kernel[2] + kernel[2]
                rows = tuple(dy + j * geo.step[1] for j in range(self.rows))
                columns.setdefault((dz, dx), []).append(_Use(number, flat, rows))
        return columns

    @staticmethod
    def reads(columns: dict[tuple[int, int], list[_Use]]) -> tuple[list[int], list[int], list[int]]:
        """Depths, rows and columns that are read, relative to the item's place."""
        rows = {dy for uses in columns.values() for use in uses for dy in use.dy}
        return sorted({dz for dz, _ in columns}), sorted(rows), sorted({dx for _, dx in columns})

    @staticmethod
    def number(at: int) -> str:
        """A relative position as part of a name."""
        return f"m{-at}" if at < 0 else str(at)

    @functools.cached_property
    def loads(self) -> int:
        """Elements that the items of all sets load for a place block and a channel."""
        return sum(
            len({dy for use in uses for dy in use.dy}) for each in self.sets for uses in self.columns(each).values()
        )

    def plan(self, context: Any) -> StepPlan:
        """Packing, unless the weights are constant, and one launch."""
        problem = self.problem
        constant = problem.constant_weights
        text = problem.macros() + define(OUT_INDEX=element_index(math.prod(problem.out_shape)))
        text += kernel_text(__package__, "output.cl") + kernel_text(__package__, "narrow.cl.mako", p=self)
        size = -(-self.packed_elements // 128) * 128
        pack = launch(context, text, "pack", [size], [128], ["w", "workspace"])
        source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
        given = ["w" if constant else "workspace", source, written]
        given += [name for name in ("bias", "residual") if getattr(problem, name)]
        size = -(-self.work_items // self.items) * self.items
        main = launch(context, text, "narrow", [size, len(self.sets)], [self.items, 1], given)
        if not constant:
            return StepPlan(self.packed_size, [pack, main])
        key = repr(("narrow", problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g))
        return StepPlan(0, [main], self.packed_size, [pack], key)

    def seconds(self, device: DeviceInfo) -> float:
        """Issue slots: multiply-adds, four for each load, eight for each vector of weights; sectors; memory."""
        geo, problem = self.geometry, self.problem
        steps = geo.volume * self.rows * geo.m
        sums = len(geo.phases) * self.rows * geo.m
        total = 2.0 * self.work_items * (geo.c * (steps + 4 * self.loads + 8 * geo.volume) + 20 * sums) / 0.7
        size = problem.itemsize
        if geo.source.nhwc:  # the next work item's value is a pixel's channels away
            stay = geo.c * size <= CACHED_PIXEL_BYTES or self.loads <= CACHED_LOADS
            total += self.work_items * geo.c * self.loads * (CACHED_LOAD_OPS[size] if stay else GAP_LOAD_OPS)
        # A stride leaves gaps between neighbouring items' results, or pixels of all channels, which other phases fill.
        filled = size * (geo.groups * geo.m if geo.target.nhwc else 1)
        gaps = max(0.0, min(geo.out_step[2], 32 / filled) - 1) / 32 * size * math.prod(problem.out_shape) * SECTOR_OPS
        launches, known = 1 if problem.constant_weights else 2, rates(device)
        alone = geo.c * self.steps * ALONE_OPS * max(1, device.compute_units)
        work = max(math.hypot(total, gaps) / SUSTAINED, alone) / known.flops
        return math.hypot(work, problem.bytes / (COPY_SHARE * known.bandwidth)) + launches * known.launch


class Narrow(KernelSolver):
    """Forward and data gradient of groups with few output channels: depthwise layers, gradients of pictures."""

    @staticmethod
    def kernel(problem: ConvProblem, config: Mapping[str, Any]) -> NarrowProduct:
        return NarrowProduct(problem, config["rows"], config.get("apart", False))

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """The weights' gradient, wide groups, and kernels too large to write out."""
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got the weights' gradient"
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        geo = geometry_of(problem)
        if geo.m > 4:
            return f"4 output channels a group or fewer, got {geo.m}"
        if min(device.max_work_group_size, device.max_work_item_sizes[0]) < ITEMS:
            return f"{ITEMS} work items a group, the device has {device.max_work_group_size}"
        smallest = NarrowProduct(problem, 1)
        if smallest.steps > MAX_STEPS or smallest.sums > MAX_SUMS:
            return f"kernels of up to {MAX_STEPS} multiply-adds an item and channel, got {smallest.steps}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Places of an item, most reuse first as long as registers and places suffice."""
        ranked = []
        for rows, apart in itertools.product(ITEM_ROWS, (False, True)):
            product = NarrowProduct(problem, rows, apart)
            sets = len(product.sets)
            if apart and (sets == 1 or (sets == len(product.geometry.phases) and product.geometry.out_step[2] > 1)):
                continue
            if (product.steps > MAX_STEPS or product.sums > MAX_SUMS) and (rows > 1 or apart):
                continue
            idle = product.work_items * sets < 1024 * device.compute_units
            waste = product.blocks * rows / product.count[1]
            ranked.append((idle, product.seconds(device) * waste, len(ranked), product.config()))
        return (config for *_, config in sorted(ranked, key=lambda entry: entry[:3]))
