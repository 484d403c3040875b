"""implicitgemm.tiled_depthwise_weights: the weights' gradient of one input channel and several filters per group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch.api import (
    ConvProblem,
    DeviceInfo,
    StepPlan,
    define,
    geometry_of,
    kernel_text,
    numbers_as_literals,
    rates,
)

from ..solving import KernelSolver, launch
from .choice import SUSTAINED
from .product import element_index

MAX_SUMS = 64
"""Most sums of a work item: there are too few registers for more."""
ITEMS = 128
"""Work items in a work group."""
CHUNK_PLACES = 4096
"""Pixels of dy in one chunk of the sum: enough to make the time of adding the work items' sums negligible."""


@dataclass(unsafe_hash=True)
class FilterSums:
    """The weights' gradient as a sum over the pixels of dy, in ``parts`` chunks."""

    problem: ConvProblem
    parts: int
    items: int = ITEMS

    def __post_init__(self) -> None:
        problem = self.problem
        self.geometry = geo = geometry_of(problem)
        self.lanes = 32 if problem.layout == "nhwc" and geo.m == 1 else 1
        """Number of consecutive work items that compute consecutive channel groups."""
        self.places = geo.images * geo.target.pixels
        """Pixels of dy in all images."""
        self.chunk = -(-self.places // self.parts)
        """Pixels of dy in one chunk."""
        self.index = element_index(geo.images * max(geo.source.image, geo.target.image))
        """OpenCL type of element offsets in x and dy."""
        self.out_size = math.prod(problem.w_shape)
        """Number of elements of the weights."""
        self.workspace_size = self.parts * self.out_size * problem.accumulator_size

    def plan(self, context: Any) -> StepPlan:
        """Compile the launch that sums each chunk, and the launch that adds the chunks."""
        body = kernel_text(__package__, "output.cl")
        macros = self.problem.macros() + define(OUT_INDEX=element_index(self.out_size * self.parts), PARTIAL_AT=0)
        sums_text = define(PARTIAL=1) + body + kernel_text(__package__, "depthwise_weights.cl.mako", p=self)
        sizes = {"OUT_SIZE": self.out_size, "PARTS": self.parts, "PARTS_AT": 0, "INNER": 1, "CHANNELS": 1}
        numbers = {name: np.int32(size) for name, size in sizes.items()}
        total_text = define(PARTIAL=0, WEIGHTS=0) + body
        total_text += numbers_as_literals(kernel_text(__package__, "reduce.cl"), numbers)
        items, size = -(-self.problem.g // self.lanes) * self.items, -(-self.out_size // 128) * 128
        operands = ["y", "x", "workspace"]
        sums = launch(context, macros + sums_text, "sums", [items, self.parts], [self.items, 1], operands)
        total = launch(context, macros + total_text, "reduce", [size], [128], ["workspace", "w"])
        return StepPlan(self.workspace_size, [sums, total])

    def seconds(self, device: DeviceInfo) -> float:
        """Predicted seconds of the instructions: a multiply-add, a load and its guard per tap and pixel."""
        geo, peaks = self.geometry, rates(device)
        idle = max(1.0, 4 * device.compute_units / (self.parts * -(-geo.groups // 32)))
        operations = 2.0 * (self.places * geo.groups) * (geo.volume * (3 + geo.m) + 30) / 0.7 * idle
        return operations / (SUSTAINED * peaks.flops) + 2 * peaks.launch


class DepthwiseWeights(KernelSolver):
    """Solves the weights' gradient of depthwise layers, with as many filters per channel as registers can sum."""

    @staticmethod
    def kernel(problem: ConvProblem, config: Mapping[str, Any]) -> FilterSums:
        return FilterSums(problem, config["parts"])

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject other directions, groups of several input channels, and large kernels."""
        if problem.direction != "bwd_weights":
            return "the weights' gradient only, got another direction"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        geo = geometry_of(problem)
        if geo.c != 1:
            return f"1 input channel a group, got {geo.c}"
        if geo.m == 1:
            return "2 filters a channel or more (implicitgemm.tiled_depthwise_sums takes one), got 1"
        if geo.m * geo.volume > MAX_SUMS:
            return f"{MAX_SUMS} weights a group or fewer, got {geo.m * geo.volume}"
        if min(device.max_work_group_size, device.max_work_item_sizes[0]) < ITEMS:
            return f"{ITEMS} work items a group, the device has {device.max_work_group_size}"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Yield numbers of chunks: for eight work groups per compute unit, or chunks of a few thousand pixels."""
        unsplit = FilterSums(problem, 1)
        item_groups = -(-problem.g // unsplit.lanes)
        max_parts = max(1, unsplit.places // (ITEMS // unsplit.lanes * 8))
        counts = [
            max(1, min(max_parts, 8 * device.compute_units // item_groups)),
            max(1, min(max_parts, -(-unsplit.places // CHUNK_PLACES))),
        ]
        counts += [max(1, min(max_parts, 2 * counts[0])), 1]
        return ({"parts": parts} for parts in dict.fromkeys(counts))
