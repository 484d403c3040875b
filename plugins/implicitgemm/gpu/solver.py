"""The solver ``implicitgemm.tiled``: products of tiles in local memory, for every geometry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, Solver, phase_count

from .choice import choices, fits, seconds
from .plan import TiledPlan, packed_bytes
from .product import MAX_INT_OFFSET, Product, most_columns
from .tile import Tile


class Tiled(Solver):
    """Every direction, rank, group, stride, dilation, padding, layout and dtype, on devices with local memory."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Reject strides of too many phases, empty problems, and devices with too little local memory."""
        if phase_count(problem) > MOST_PHASES:
            return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        if most_columns(problem) >= MAX_INT_OFFSET:
            return f"fewer than {MAX_INT_OFFSET} columns of the matrix product, got {most_columns(problem)}"
        if not fits(problem, device):
            return f"the smallest tile needs more than {device.local_mem_size} bytes of local memory"
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles that fit the device, the fastest by prediction first; the first one again with the geometry as
        arguments, for a search to compare."""
        for number, tile in enumerate(choices(problem, device)):
            yield tile.config()
            if not number:
                yield dataclasses.replace(tile, general=True).config()

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Return the bytes of packed weights (unless they are constant) and of partial sums."""
        product = Product(problem, Tile.of(config))
        return packed_bytes(product) + product.partial_size + product.sums_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Return the predicted seconds: tiles in whole waves of work groups, at the share of the peak they reach."""
        return seconds(Product(problem, Tile.of(config)), device)

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> TiledPlan:
        return TiledPlan(context, problem, config)
