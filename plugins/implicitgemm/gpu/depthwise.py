"""implicitgemm.tiled_depthwise: forward and data gradient of depthwise layers, several channels a work item."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from convdispatch.api import (
    OPERANDS,
    ConvProblem,
    DeviceInfo,
    Launch,
    Solver,
    StepPlan,
    build,
    kernel_text,
    rates,
)

from .choice import SECTOR, SUSTAINED
from .depthwise_tile import DepthwiseTile, busy, limits, shapes
from .product import element_index

_TURNED = 64  # work groups of a compute unit beyond which items take several tiles
_MOST = 24  # configurations offered
# Fitted to 669 timings on an H200, 0.17 root mean square of the logarithm.
_REACHED = 0.83  # of a busy device's instructions
_LOAD, _PLACE, _TILE, _FILL = (
    5.0,
    7.7,
    28,
    88,
)  # instructions: of a read, a result, a tile, a weight put into local memory
_ENOUGH = 437  # work items of a compute unit that hide what each waits for
_MEMORY = 0.91  # of a copy's bandwidth
_SECTOR = 32  # bytes that the second-level cache takes at a time
_WAIT = 0.75  # of a launch: what a call takes beside its work


def depthwise_plan(context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
    """One launch."""
    tile = DepthwiseTile(problem, **config)
    text = problem.macros() + f"#define OUT_INDEX {element_index(math.prod(problem.out_shape))}\n#define PARTIAL 0\n"
    text += kernel_text(__package__, "output.cl")
    text += kernel_text(__package__, "depthwise.cl.mako", p=tile)
    source, written = ("x", "y") if problem.direction == "fwd" else ("y", "x")
    given = ["w", source, written, *(name for name in ("bias", "residual") if getattr(problem, name))]
    size = tile.size(tile.blocks * tile.deep, tile.slabs * tile.lanes)
    step = Launch(build(context, text), "depthwise", size, tile.size(tile.deep, tile.lanes), given, names=OPERANDS)
    return StepPlan(0, [step])


def _more_sectors(tile: DepthwiseTile) -> float:
    """Sectors that are written beside those that results fill: neighbours' results lie a tile and a stride apart."""
    if tile.nhwc:
        return 0.0
    size = tile.problem.itemsize
    apart = min(tile.columns * tile.geometry.out_step[2], _SECTOR // size)
    return math.prod(tile.problem.out_shape) * (apart - 1) * size / _SECTOR


class Depthwise(Solver):
    """Forward and data gradient of layers whose channels each have one kernel."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """The weights' gradient, and layers that are not depthwise."""
        if problem.direction == "bwd_weights":
            return "forward and data gradient only, got the weights' gradient"
        return limits(problem, device)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles, the one that is expected to be fastest first."""
        tiles = list(shapes(problem))
        tiles += [replace(tile, turns=4) for tile in tiles if tile.blocks * tile.slabs > _TURNED * device.compute_units]
        ranked = [(self.cost(problem, device, tile.config()), i, tile) for i, tile in enumerate(tiles)]
        return (tile.config() for *_, tile in sorted(ranked, key=lambda entry: entry[:2])[:_MOST])

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """None."""
        return 0

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Instructions, memory's traffic, and what too few items wait."""
        tile = DepthwiseTile(problem, **config)
        known = rates(device)
        widened = tile.vector if problem.itemsize == 2 else 0
        item = tile.steps * tile.vector + tile.loads * _LOAD + tile.weight_reads * len(tile.parts)
        item += len(tile.places) * (_PLACE + (widened or 1)) + _TILE
        item += _FILL * tile.geometry.volume * tile.vector / tile.deep / tile.turns
        items = tile.tiles * tile.slabs * tile.lanes
        work = items * item * 2 / (_REACHED * known.flops * busy(tile, items, device, _ENOUGH))
        gaps = SECTOR * _more_sectors(tile) / (SUSTAINED * known.flops)
        return math.hypot(work, problem.bytes / (_MEMORY * known.bandwidth), gaps) + _WAIT * known.launch

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile a configuration."""
        return depthwise_plan(context, problem, config)
