"""Depthwise layers in NCHW computed from registers, in all directions (see ``places``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, StepPlan
from convdispatch.api.cpu import Balance, uneven

from .kernel import Kernel
from .passes import forward_pass, passes
from .places import Tile, cover, gather_lanes, lanes_in, name, runs_of, tiles_of

# The constants of the cost model are in operations at the device's peak multiply-add rate, fitted on timings of layers
# drawn at random.
LAUNCH_OPS = 4.8e6  # operations at peak rate in the time of the one kernel launch
LANE_OPS = 1.3  # operations at peak rate per operation of a vector lane, including lanes without an output pixel
# Operations at peak rate per operation of a vector lane in the weights' gradient, including empty lanes
GRADIENT_LANE_OPS = 1.8
ELEMENT_OPS = 12.0  # operations at peak rate per element of x, y or dy that is read or written
STRIDED_OPS = 27.0  # operations at peak rate per element of x that is read with a stride
RESULT_OPS = 450.0  # operations at peak rate per element of dw


class VectorKernel(Kernel):
    """The kernel of the forward convolution and the data gradient; it needs no workspace."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, passes(problem)[0])
        self.planes = self.p.images * self.p.groups
        self.items = min(self.planes, config["items"])

    def text(self) -> str:
        p, problem = self.p, self.problem
        stores_once = problem.accumulate or problem.residual
        tiles: dict[Tile, str] = {}
        tile_calls = []
        for row, column, tile in tiles_of(p, self.lanes, self.config["rows"], stores_once):
            tile_calls.append((row, column, tiles.setdefault(tile, f"tile_{len(tiles)}")))
        position = [
            (p.w_first[1] + ty * p.w_step[1]) * p.kernel[2] + p.w_first[2] + tx * p.w_step[2]
            for ty in range(p.taps[1])
            for tx in range(p.taps[2])
        ]
        text = self.macros(G=p.groups, PLANES=self.planes, ITEMS=self.items, WG=p.kernel[1] * p.kernel[2], **p.planes())
        values = {"tiles": tiles, "runs": runs_of(tile_calls), "position": position, "bias": problem.bias}
        values |= {"down": p.step[1] * p.source[2], "across": p.step[2], "width": p.places[2]}
        files = ("masks.cl", "depthwise_vectors.cl.mako")
        return text + self.rendered(files, gather_lanes=gather_lanes, name=name, **values)

    def plan(self, context: Any) -> StepPlan:
        arguments = [self.source, "w", self.target, *self.problem.epilogue_operands]
        return StepPlan(0, [self.launch(context, "depthwise", [self.items], arguments)])

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        problem = self.problem
        x, y = math.prod(problem.x_shape), math.prod(problem.y_shape)
        element = ELEMENT_OPS if problem.sw == 1 else STRIDED_OPS
        lane_ops = LANE_OPS * 2 * lanes_in(self.p, self.lanes) * problem.kh * problem.kw
        lane_ops *= uneven(problem.mb * problem.g, device)
        return LAUNCH_OPS * balance.launch + lane_ops + element * x + ELEMENT_OPS * y


class VectorSums(Kernel):
    """The kernel of the weights' gradient; it needs no workspace."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        super().__init__(problem, config, forward_pass(problem))
        self.items = min(self.p.groups, config["items"])

    def _tiles(self) -> tuple[dict[Any, str], list[Any]]:
        """({tile: function}, [(taps, loops of calls)]); each entry has as many rows of taps as fit the registers."""
        p, lanes, tiles = self.p, self.lanes, {}
        height, width = p.places[1:]
        tap_rows = max(1, self.config["sums"] // p.taps[2])
        tap_rows = -(-p.taps[1] // -(-p.taps[1] // tap_rows))
        parts = []
        for first_row in range(0, p.taps[1], tap_rows):
            taps, calls = range(first_row, min(first_row + tap_rows, p.taps[1])), []
            for row, column, tile in tiles_of(p, lanes, self.config["rows"], True, taps):
                base, windows, gradients = row * width + column, [], []
                for store in tile.stores:
                    stored_lanes = range(store.first, store.used)
                    offsets = tuple(store.at + lane if lane in stored_lanes else None for lane in range(lanes))
                    gradients.append(cover(offsets, windows, -base, height * width - lanes - base))
                key = tile, tuple(windows), tuple(gradients)
                calls.append((row, column, tiles.setdefault(key, f"tile_{len(tiles)}")))
            parts.append(([ty * p.taps[2] + tx for ty in taps for tx in range(p.taps[2])], runs_of(calls)))
        return tiles, parts

    def text(self) -> str:
        p = self.p
        tiles, parts = self._tiles()
        accumulate = int(self.problem.accumulate)
        text = self.macros(G=p.groups, ITEMS=self.items, TAPS=p.volume, ADD=accumulate, **p.planes())
        values = {"tiles": tiles, "parts": parts, "taps_all": p.volume, "lanes": self.lanes}
        values |= {"down": p.step[1] * p.source[2], "across": p.step[2], "width": p.places[2]}
        files = ("masks.cl", "depthwise_vectors_weights.cl.mako")
        return text + self.rendered(files, gather_lanes=gather_lanes, name=name, **values)

    def plan(self, context: Any) -> StepPlan:
        return StepPlan(0, [self.launch(context, "gradient", [self.items], ["x", "y", "w"])])

    def cost(self, balance: Balance, device: DeviceInfo) -> float:
        problem = self.problem
        x, y, w = (math.prod(getattr(problem, f"{name}_shape")) for name in "xyw")
        lane_ops = GRADIENT_LANE_OPS * 2 * lanes_in(self.p, self.lanes) * problem.kh * problem.kw
        lane_ops *= uneven(problem.g, device)
        element_ops = (ELEMENT_OPS if problem.sw == 1 else STRIDED_OPS) * x + ELEMENT_OPS * y
        return LAUNCH_OPS * balance.launch + lane_ops + element_ops + RESULT_OPS * w
