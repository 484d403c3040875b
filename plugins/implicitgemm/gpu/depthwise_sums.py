"""implicitgemm.tiled_depthwise_sums: the weights' gradient of depthwise layers, several channels a work item."""

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
    Launch,
    Solver,
    StepPlan,
    build,
    kernel_text,
    rates,
)

from .depthwise_tile import DepthwiseTile, busy, limits, shapes

_MOST = 24  # configurations offered
_LOCAL = 16384  # bytes of local memory in which items' sums meet
_ACROSS, _DEEP = 16, 16  # work items of a group of ``fold``
# Fitted to 344 timings on an H200, 0.19 root mean square of the logarithm.
_REACHED = 0.77  # of a busy device's instructions
_LOAD, _APART, _TILE, _SUM = 4.3, 1.2, 231, 19  # instructions: of a read, one beside a gap, a tile, a sum that leaves
_ENOUGH = 329  # work items of a compute unit that hide what each waits for
_MEMORY = 0.65  # of a copy's bandwidth
_ONE, _BOTH = 0.72, 1.46  # of a launch: what one and two take beside their work
_GROUPS = (1, 2, 3, 4, 6)  # work groups of a compute unit


@dataclass(frozen=True)
class Sums:
    """A tile, and how the tiles are cut into parts."""

    tile: DepthwiseTile
    parts: int

    @classmethod
    def of(cls, problem: ConvProblem, config: Mapping[str, Any]) -> Sums:
        """From a configuration."""
        numbers = dict(config)
        parts = numbers.pop("parts")
        return cls(DepthwiseTile(problem, **numbers), parts)

    def config(self) -> dict[str, Any]:
        """The configuration."""
        return {**self.tile.config(), "parts": self.parts}

    @property
    def per(self) -> int:
        """Tiles of a part."""
        return -(-self.tile.tiles // self.parts)

    @functools.cached_property
    def chunk(self) -> int:
        """Sums that meet in local memory at a time."""
        values = self.tile.geometry.volume * len(self.tile.parts)
        size = self.tile.lanes * self.tile.deep * self.tile.part * self.tile.accsize
        return max(1, min(values, _LOCAL // size))

    @property
    def segments(self) -> int:
        """Work items that share an element's sum."""
        return max(1, min(self.tile.deep // 2, self.tile.deep // self.chunk))

    @property
    def size(self) -> int:
        """Elements of a part."""
        return math.prod(self.tile.problem.w_shape)

    @property
    def workspace_size(self) -> int:
        """Bytes of all parts."""
        return self.parts * self.size * self.tile.accsize if self.parts > 1 else 0


def sums_plan(context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
    """The parts' sums, then their sum."""
    sums = Sums.of(problem, config)
    tile, text = sums.tile, problem.macros()
    first = build(context, text + kernel_text(__package__, "depthwise_sums.cl.mako", p=tile, s=sums, math=math))
    text += f"#define CHANNELS {problem.oc}\n#define TAPS {tile.geometry.volume}\n#define COUNT {sums.parts}\n"
    text += f"#define ACROSS {_ACROSS}\n#define DEEP {_DEEP}\n"
    given = ["y", "x", "workspace" if sums.parts > 1 else "w"]
    size, local = tile.size(sums.parts * tile.deep, tile.slabs * tile.lanes), tile.size(tile.deep, tile.lanes)
    steps = [Launch(first, "sums", size, local, given, names=OPERANDS)]
    if sums.parts == 1:
        return StepPlan(0, steps)
    second = build(context, text + kernel_text(__package__, "depthwise_fold.cl"))
    items = _ACROSS * _DEEP
    size = (-(-sums.size // _ACROSS) * items,)
    steps.append(Launch(second, "fold", size, (items,), "workspace w", names=OPERANDS))
    return StepPlan(sums.workspace_size, steps)


class DepthwiseSums(Solver):
    """The weights' gradient of layers whose channels each have one kernel."""

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Other directions, and layers that are not depthwise."""
        if problem.direction != "bwd_weights":
            return "the weights' gradient only, got another direction"
        return limits(problem, device)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles and parts, the ones that are expected to be fastest first."""
        ranked = []
        for tile in shapes(problem):
            most = max(1, -(-tile.tiles // tile.deep))
            wanted = {1} | {max(1, min(most, device.compute_units * groups // tile.slabs)) for groups in _GROUPS}
            for parts in sorted(wanted):
                sums = Sums(tile, parts)
                ranked.append((self.cost(problem, device, sums.config()), len(ranked), sums))
        return (sums.config() for *_, sums in sorted(ranked, key=lambda entry: entry[:2])[:_MOST])

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Partial sums."""
        return Sums.of(problem, config).workspace_size

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Instructions, memory's traffic, the parts' sums, and what too few items wait."""
        sums = Sums.of(problem, config)
        tile, known = sums.tile, rates(device)
        widened = tile.vector if problem.itemsize == 2 else 0
        turn = tile.steps * tile.vector + (tile.loads + len(tile.places)) * (_LOAD + widened) + _TILE
        turn += 0 if tile.nhwc else (tile.columns - 1) * tile.loads * _APART
        items = sums.parts * tile.slabs * tile.lanes * tile.deep
        item = -(-sums.per // tile.deep) * turn + _SUM * tile.geometry.volume * tile.vector
        work = items * item * 2 / (_REACHED * known.flops * busy(tile, items, device, _ENOUGH))
        moved = math.hypot(work, problem.bytes / (_MEMORY * known.bandwidth))
        launches = (_ONE if sums.parts == 1 else _BOTH) * known.launch
        return moved + 2 * sums.workspace_size / known.bandwidth + launches

    def plan(self, context: Any, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """Compile a configuration."""
        return sums_plan(context, problem, config)
