"""implicitgemm.tiled_depthwise_weights: the weights' gradient where each group has one input channel."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convdispatch.api import (
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
    rates,
)

from .choice import SUSTAINED
from .product import element_index

_MOST_SUMS = 64  # sums of an item: beyond, registers run out
_ITEMS = 128
_PLACES = 4096  # of a chunk: enough that adding the items' sums does not count


@dataclass(frozen=True)
class DepthwiseSums:
    """What the kernel's text needs."""

    problem: ConvProblem
    parts: int
    items: int = _ITEMS

    @functools.cached_property
    def geometry(self) -> Geometry:
        """What places of the target read."""
        return geometry_of(self.problem)

    @property
    def lanes(self) -> int:
        """Neighbouring items of neighbouring groups."""
        return 32 if self.problem.layout == "nhwc" and self.geometry.m == 1 else 1

    @property
    def places(self) -> int:
        """Places of all images."""
        return self.geometry.images * self.geometry.target.pixels

    @property
    def chunk(self) -> int:
        """Places of a part."""
        return -(-self.places // self.parts)

    @property
    def index(self) -> str:
        """Type of element offsets in x and dy."""
        return element_index(self.geometry.images * max(self.geometry.source.image, self.geometry.target.image))

    @property
    def out_size(self) -> int:
        """Elements of the weights."""
        return math.prod(self.problem.w_shape)

    @property
    def workspace_size(self) -> int:
        """Bytes of partial sums."""
        return self.parts * self.out_size * (8 if self.problem.dtype == "float64" else 4)


def depthwise_plan(context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
    """The chunks' sums, then their sum."""
    sums = DepthwiseSums(problem, config["parts"])
    text = problem.macros() + f"#define OUT_INDEX {element_index(sums.out_size * sums.parts)}\n"
    text += "#define PARTIAL_AT 0\n"
    body = kernel_text(__package__, "output.cl")
    first = build(context, text + "#define PARTIAL 1\n" + body
                  + kernel_text(__package__, "depthwise_weights.cl.mako", p=sums))  # fmt: skip
    text += f"#define PARTIAL 0\n#define SIZE {sums.out_size}\n#define PARTS {sums.parts}\n#define WEIGHTS 0\n"
    text += "#define INNER 1\n#define CHANNELS 1\n#define TAPS 1\n"
    second = build(context, text + body + kernel_text(__package__, "reduce.cl"))
    wide = -(-problem.g // sums.lanes) * sums.items
    size = (-(-sums.out_size // 128) * 128,)
    steps = [
        Launch(first, "sums", (wide, sums.parts), (sums.items, 1), "y x workspace", names=OPERANDS),
        Launch(second, "reduce", size, (128,), "workspace w", names=OPERANDS),
    ]
    return StepPlan(sums.workspace_size, steps)


class DepthwiseWeights(Solver):
    """The weights' gradient of depthwise layers, with any number of filters a channel that registers hold."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Other directions, groups of several channels, large kernels."""
        if problem.direction != "bwd_weights":
            return "the weights' gradient only, got another direction"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        geo = geometry_of(problem)
        if geo.c != 1:
            return f"1 input channel a group, got {geo.c}"
        if geo.m == 1:
            return "2 filters a channel or more (implicitgemm.tiled_depthwise_sums takes one), got 1"
        if geo.m * geo.volume > _MOST_SUMS:
            return f"{_MOST_SUMS} weights a group or fewer, got {geo.m * geo.volume}"
        if min(device.max_work_group_size, device.max_work_item_sizes[0]) < _ITEMS:
            return f"{_ITEMS} work items a group, the device has {device.max_work_group_size}"
        return device.supports(problem.dtype)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Chunks of the sum: some eight work groups a compute unit, or chunks of a few thousand places."""
        one = DepthwiseSums(problem, 1)
        wide = -(-problem.g // one.lanes)
        most = max(1, one.places // (_ITEMS // one.lanes * 8))
        wanted = [max(1, min(most, 8 * device.compute_units // wide)), max(1, min(most, -(-one.places // _PLACES)))]
        wanted += [max(1, min(most, 2 * wanted[0])), 1]
        return ({"parts": parts} for parts in dict.fromkeys(wanted))

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Partial sums."""
        return DepthwiseSums(problem, config["parts"]).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """By instructions: a multiply-add, a load and its guard for each tap and place, and the place's own."""
        geo = geometry_of(problem)
        places = geo.images * geo.target.pixels * geo.groups
        idle = max(1.0, 4 * device.compute_units / (config["parts"] * -(-geo.groups // 32)))
        operations, known = 2.0 * places * (geo.volume * (3 + geo.m) + 30) / 0.7 * idle, rates(device)
        return operations / (SUSTAINED * known.flops) + 2 * known.launch

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile a configuration."""
        return depthwise_plan(context, problem, config)
