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
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Geometry,
    Launch,
    Solver,
    StepPlan,
    build,
    geometry_of,
    kernel_text,
    phase_count,
    rates,
)

from .choice import SECTOR, SUSTAINED
from .product import element_index, weight_strides

_ROWS = (8, 4, 2, 1)
_MOST_SUMS = 96  # sums of an item: beyond, registers run out
_MOST_STEPS = 1600  # multiply-adds a channel that are written out
_ITEMS = 128
_ALONE = 2000.0
"""Operations of a multiprocessor's peak in the time of an item's multiply-add, which waits for the one before it where
few items run beside it: nine problems of 3 to 62 items a multiprocessor, 1.3 apart, on an H100."""
_APART = 800.0  # operations in the time of a load whose neighbours' values lie in other sectors, of lines that are lost
_LOADED = {2: 70.0, 4: 25.0, 8: 25.0}
"""The same of one whose line stays in the first cache for the next channels, by bytes of a number: 33 layers' times."""
_MEMORY = 0.94  # of a copy's bandwidth
_CACHED, _FEW = 64, 8  # bytes of a pixel's channels of a group, and loads of an item, up to which lines stay


class _Use(NamedTuple):
    """One tap in one phase: which weights, and which rows the item's places read."""

    phase: int
    tap: int
    dy: tuple[int, ...]


@dataclass(frozen=True)
class NarrowProduct:
    """What the kernel's text needs."""

    problem: ConvProblem
    rows: int
    apart: bool = False
    """Phases of different rows of the output go to different work items, which leaves registers for more places."""
    items: int = _ITEMS

    @functools.cached_property
    def geometry(self) -> Geometry:
        """What places of the target read."""
        return geometry_of(self.problem)

    @property
    def mp(self) -> int:
        """Output channels of a group in packed weights."""
        return 4 if self.geometry.m > 2 else self.geometry.m

    @functools.cached_property
    def count(self) -> tuple[int, ...]:
        """Places along each axis, those of the largest phase."""
        return tuple(max(phase.count[axis] for phase in self.geometry.phases) for axis in range(3))

    @property
    def blocks(self) -> int:
        """Blocks of rows."""
        return -(-self.count[1] // self.rows)

    @property
    def work_items(self) -> int:
        """Work items that have something to do."""
        return self.geometry.images * self.geometry.groups * self.count[0] * self.blocks * self.count[2]

    @functools.cached_property
    def sets(self) -> list[list[int]]:
        """Numbers of the phases that an item computes together."""
        sets: dict[object, list[int]] = {}
        for number, phase in enumerate(self.geometry.phases):
            sets.setdefault(phase.first[:2] if self.apart else None, []).append(number)
        return list(sets.values())

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

    @functools.cached_property
    def steps(self) -> int:
        """Most multiply-adds of an item a channel."""
        taps = max(sum(self.geometry.phases[number].volume for number in each) for each in self.sets)
        return taps * self.rows * self.geometry.m

    @property
    def sums(self) -> int:
        """Most sums of an item."""
        return max(map(len, self.sets)) * self.rows * self.geometry.m

    @property
    def index(self) -> str:
        """Type of element offsets in the source."""
        return element_index(self.geometry.images * self.geometry.source.image)

    @property
    def weight_strides(self) -> tuple[int, int, int]:
        """Element strides of the weights along m, channel and tap."""
        return weight_strides(self.problem)

    @property
    def packed_elements(self) -> int:
        """Elements of packed weights."""
        geo = self.geometry
        return geo.groups * geo.c * geo.volume * self.mp

    @property
    def packed_size(self) -> int:
        """Bytes of packed weights."""
        return self.packed_elements * (8 if self.problem.dtype == "float64" else 4)


def narrow_plan(context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
    """Packing, unless the weights are constant, and one launch."""
    product = NarrowProduct(problem, config["rows"], config.get("apart", False))
    constant = problem.constant_weights
    out = element_index(math.prod(problem.out_shape))
    text = problem.macros() + f"#define OUT_INDEX {out}\n"
    text += kernel_text(__package__, "output.cl") + kernel_text(__package__, "narrow.cl.mako", p=product)
    program = build(context, text)
    size = -(-product.packed_elements // 128) * 128
    pack = Launch(program, "pack", (size,), (128,), "w workspace", names=OPERANDS)
    source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
    given = ["w" if constant else "workspace", source, written]
    given += [name for name in ("bias", "residual") if getattr(problem, name)]
    size = -(-product.work_items // product.items) * product.items
    main = Launch(program, "narrow", (size, len(product.sets)), (product.items, 1), given, names=OPERANDS)
    if not constant:
        return StepPlan(product.packed_size, [pack, main])
    key = repr(("narrow", problem.direction, problem.layout, problem.dtype, problem.w_shape, problem.g))
    return StepPlan(0, [main], product.packed_size, [pack], key)


class Narrow(Solver):
    """Forward and data gradient of groups with few output channels: depthwise layers, gradients of pictures."""

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
        if min(device.max_work_group_size, device.max_work_item_sizes[0]) < _ITEMS:
            return f"{_ITEMS} work items a group, the device has {device.max_work_group_size}"
        smallest = NarrowProduct(problem, 1)
        if smallest.steps > _MOST_STEPS or smallest.sums > _MOST_SUMS:
            return f"kernels of up to {_MOST_STEPS} multiply-adds an item and channel, got {smallest.steps}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Places of an item, most reuse first as long as registers and places suffice."""
        ranked = []
        for rows, apart in itertools.product(_ROWS, (False, True)):
            product = NarrowProduct(problem, rows, apart)
            if apart and len(product.sets) in (1, len(product.geometry.phases)) and product.geometry.out_step[2] > 1:
                continue
            if apart and len(product.sets) == 1:
                continue
            if (product.steps > _MOST_STEPS or product.sums > _MOST_SUMS) and (rows > 1 or apart):
                continue
            config = {"rows": rows, "apart": True} if apart else {"rows": rows}
            idle = product.work_items * len(product.sets) < 1024 * device.compute_units
            waste = product.blocks * rows / product.count[1]
            ranked.append((idle, self.cost(problem, device, config) * waste, len(ranked), config))
        return (config for *_, config in sorted(ranked, key=lambda entry: entry[:3]))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Packed weights, unless they are constant."""
        return (
            0
            if problem.constant_weights
            else NarrowProduct(problem, config["rows"], config.get("apart", False)).packed_size
        )

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Issue slots: multiply-adds, four for each load, eight for each vector of weights; sectors; memory."""
        product = NarrowProduct(problem, config["rows"], config.get("apart", False))
        geo = product.geometry
        steps = geo.volume * product.rows * geo.m
        sums = len(geo.phases) * product.rows * geo.m
        total = 2.0 * product.work_items * (geo.c * (steps + 4 * product.loads + 8 * geo.volume) + 20 * sums) / 0.7
        size = problem.itemsize
        if geo.source.nhwc:  # the next item's value lies a pixel's channels away
            stay = geo.c * size <= _CACHED or product.loads <= _FEW
            total += product.work_items * geo.c * product.loads * (_LOADED[size] if stay else _APART)
        # A stride leaves gaps between neighbouring items' results, or pixels of all channels, which other phases fill.
        filled = size * (geo.groups * geo.m if geo.target.nhwc else 1)
        gaps = max(0.0, min(geo.out_step[2], 32 / filled) - 1) / 32 * size * math.prod(problem.out_shape) * SECTOR
        launches, known = 1 if problem.constant_weights else 2, rates(device)
        alone = geo.c * product.steps * _ALONE * max(1, device.compute_units)
        work = max(math.hypot(total, gaps) / SUSTAINED, alone) / known.flops
        return math.hypot(work, problem.bytes / (_MEMORY * known.bandwidth)) + launches * known.launch

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile a configuration."""
        return narrow_plan(context, problem, config)
