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
"""Numbers of output pixels of a work item along h that are tried."""
MAX_SUMS = 96
"""Most sums of a work item: there are too few registers for more."""
MAX_STEPS = 1600
"""Most multiply-adds per channel that the unrolled text of the kernel may contain."""
ITEMS = 128
"""Work items in a work group."""

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted on an H100 and an
# H200.

# Operations of one compute unit at peak rate in the time of a multiply-add that waits for the previous one (nine
# problems with 3 to 62 work items per unit)
ALONE_OPS = 2000.0
# Operations at peak rate per load of which adjacent work items read other sectors, if the cache line is evicted before
# its other channels are read
GAP_LOAD_OPS = 800.0
# Operations at peak rate per load of which adjacent work items read other sectors, if the cache line stays cached, by
# bytes of an element (33 layers)
CACHED_LOAD_OPS = {2: 70.0, 4: 25.0, 8: 25.0}
COPY_SHARE = 0.94  # share of the measured bandwidth of a copy that the kernel reaches
# A cache line stays cached until the next channel is read if the channels of a group have at most so many bytes
CACHED_PIXEL_BYTES = 64
# A cache line stays cached until the next channel is read if a work item has at most so many loads per channel
CACHED_LOADS = 8


class _Use(NamedTuple):
    """One tap in one phase: its weights, and the source rows that the work item's output pixels read."""

    phase: int
    tap: int
    dy: tuple[int, ...]


@dataclass(unsafe_hash=True)
class NarrowProduct:
    """The kernel's sizes: a work item computes all output channels of a group at ``rows`` output pixels."""

    problem: ConvProblem
    rows: int
    apart: bool = False
    """Whether different work items compute phases of different output rows, which leaves registers for more pixels."""
    items: int = ITEMS

    def __post_init__(self) -> None:
        problem = self.problem
        self.geometry = geo = geometry_of(problem)
        self.mp = 4 if geo.m > 2 else geo.m
        """Output channels of a group in the packed weights, padding included."""
        self.count = tuple(max(phase.count[axis] for phase in geo.phases) for axis in range(3))
        """Output pixels of the largest phase along each axis."""
        self.blocks = -(-self.count[1] // self.rows)
        self.work_items = geo.images * geo.groups * self.count[0] * self.blocks * self.count[2]
        """Number of work items that compute something (the launch may be rounded up)."""
        sets: dict[object, list[int]] = {}
        for number, phase in enumerate(geo.phases):
            sets.setdefault(phase.first[:2] if self.apart else None, []).append(number)
        self.sets = list(sets.values())
        """Numbers of the phases that a work item computes together."""
        taps = max(sum(geo.phases[number].volume for number in phase_numbers) for phase_numbers in self.sets)
        self.steps = taps * self.rows * geo.m
        """Most multiply-adds that a work item does per channel."""
        self.sums = max(map(len, self.sets)) * self.rows * geo.m
        self.index = element_index(geo.images * geo.source.image)
        self.weight_strides = weight_strides(problem)
        self.packed_elements = geo.groups * geo.c * geo.volume * self.mp
        self.packed_size = self.packed_elements * problem.accumulator_size
        self.workspace_size = 0 if problem.constant_weights else self.packed_size

    def config(self) -> dict[str, Any]:
        return {"rows": self.rows, "apart": True} if self.apart else {"rows": self.rows}

    def columns(self, phases: list[int]) -> dict[tuple[int, int], list[_Use]]:
        """Return some phases' taps by the (depth, column) that they read, relative to the work item's output pixel."""
        geo, columns = self.geometry, {}
        for number in phases:
            for tap, dz, dy, dx in geo.reads(geo.phases[number]):
                rows = tuple(dy + j * geo.step[1] for j in range(self.rows))
                columns.setdefault((dz, dx), []).append(_Use(number, tap, rows))
        return columns

    @staticmethod
    def reads(columns: dict[tuple[int, int], list[_Use]]) -> tuple[list[int], list[int], list[int]]:
        """Return the depths, rows and columns that are read, relative to the work item's output pixel."""
        rows = {dy for uses in columns.values() for use in uses for dy in use.dy}
        return sorted({dz for dz, _ in columns}), sorted(rows), sorted({dx for _, dx in columns})

    @staticmethod
    def number(at: int) -> str:
        """Return a relative position as part of an OpenCL name."""
        return f"m{-at}" if at < 0 else str(at)

    @functools.cached_property
    def loads(self) -> int:
        """Number of elements that the work items of all sets load for one block of pixels and one channel."""
        return sum(
            len({dy for use in uses for dy in use.dy}) for each in self.sets for uses in self.columns(each).values()
        )

    def plan(self, context: Any) -> StepPlan:
        """Compile the packing of the weights (done once if they are constant) and the one launch of the convolution."""
        problem = self.problem
        constant = problem.constant_weights
        text = problem.macros() + define(OUT_INDEX=element_index(math.prod(problem.out_shape)))
        text += kernel_text(__package__, "output.cl") + kernel_text(__package__, "narrow.cl.mako", p=self)
        size = -(-self.packed_elements // 128) * 128
        pack = launch(context, text, "pack", [size], [128], ["w", "workspace"])
        source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
        operands = ["w" if constant else "workspace", source, written]
        operands += [name for name in ("bias", "residual") if getattr(problem, name)]
        size = -(-self.work_items // self.items) * self.items
        main = launch(context, text, "narrow", [size, len(self.sets)], [self.items, 1], operands)
        if not constant:
            return StepPlan(self.packed_size, [pack, main])
        key = repr(("narrow", problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g))
        return StepPlan(0, [main], self.packed_size, [pack], key)

    def seconds(self, device: DeviceInfo) -> float:
        """Predicted seconds of instructions (4 per load, 8 per vector of weights), sectors written, and traffic."""
        geo, problem = self.geometry, self.problem
        steps = geo.volume * self.rows * geo.m
        sums = len(geo.phases) * self.rows * geo.m
        total = 2.0 * self.work_items * (geo.c * (steps + 4 * self.loads + 8 * geo.volume) + 20 * sums) / 0.7
        size = problem.itemsize
        if geo.source.nhwc:  # In NHWC the element that the next work item reads is all channels of a pixel away.
            stays_cached = geo.c * size <= CACHED_PIXEL_BYTES or self.loads <= CACHED_LOADS
            total += self.work_items * geo.c * self.loads * (CACHED_LOAD_OPS[size] if stays_cached else GAP_LOAD_OPS)
        # A stride leaves gaps between the results of neighbouring work items: of single elements in NCHW, of whole
        # pixels in NHWC. Other phases fill them.
        filled = size * (geo.groups * geo.m if geo.target.nhwc else 1)
        gaps = max(0.0, min(geo.out_step[2], 32 / filled) - 1) / 32 * size * math.prod(problem.out_shape) * SECTOR_OPS
        launches, peaks = 1 if problem.constant_weights else 2, rates(device)
        latency = geo.c * self.steps * ALONE_OPS * max(1, device.compute_units)
        work = max(math.hypot(total, gaps) / SUSTAINED, latency) / peaks.flops
        return math.hypot(work, problem.bytes / (COPY_SHARE * peaks.bandwidth)) + launches * peaks.launch


class Narrow(KernelSolver):
    """Forward and data gradient of groups with few written channels: depthwise layers, gradients of first layers."""

    @staticmethod
    def kernel(problem: ConvProblem, config: Mapping[str, Any]) -> NarrowProduct:
        return NarrowProduct(problem, config["rows"], config.get("apart", False))

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject the weights' gradient, groups of many output channels, and kernels too large to unroll."""
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
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield numbers of output pixels per work item, the fastest by prediction first; idle devices come last."""
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
