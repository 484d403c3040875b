"""``exact.tiles``: chains in the registers of a GPU's work items, over slices in local memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import DTYPES, ConvProblem, DeviceInfo, Launch, rates
from convdispatch.api.cpu import cdiv

from .passes import Numbers, passes, taps
from .solving import ExactSolver, Kernel

REACHED = 0.6
"""Assumed share of a GPU's multiply-add peak; no measurement yet."""
WAVES = 2
"""Work groups for each compute unit below which a weights' gradient sums images in work groups of their own."""


class TileKernel(Kernel):
    """A grid of tiles over target channels and columns: places of images, or channels and taps."""

    template = "tiles.cl.mako"

    def __init__(self, problem: ConvProblem, numbers: Numbers, config: Mapping[str, Any]) -> None:
        super().__init__(problem, numbers, config)
        tm, tn, side, bk = (config[name] for name in ("tm", "tn", "side", "bk"))
        n = self.n
        n |= {"TM": tm, "TN": tn, "TX": side, "BM": tm * side, "BN": tn * side, "BK": bk, "ITEMS": side * side}
        places = n["YD"] * n["YH"] * n["YW"]
        n["COLUMNS"] = n["C"] * taps(n) if self.weights else n["IMAGES"] * places
        n["KA"] = n["IMAGES"] * places if self.weights else n["C"] * taps(n)
        n["MB"] = cdiv(n["N"], n["BM"])
        n["COUNT"] = min(n["C"], n["CB"]) if n["C"] <= n["CB"] or n["C"] % n["CB"] == 0 else 0
        n["SPLIT"] = int(self.weights and config["split"])
        n["SPLITS"] = n["IMAGES"] if n["SPLIT"] else 1
        self.packed = n["G"] * n["MB"] * n["KA"] * n["BM"] * self.size
        self.slots = n["IMAGES"] * n["G"] * n["N"] * n["COLUMNS"] * self.size if n["SPLIT"] else 0

    def launches(self, context: Any, operand: str, offset: np.int64) -> list[Launch]:
        """Pack, multiply, and add the images' sums where they are apart."""
        n, written = self.n, [self.written, *self.extras]
        program = self.program(
            context, f"ACC4 {DTYPES[self.problem.dtype].accumulator}4", tm=n["TM"], tn=n["TN"],
            a_loads=cdiv(n["BM"] * n["BK"], n["ITEMS"]), b_loads=cdiv(n["BN"] * n["BK"], n["ITEMS"]),
        )  # fmt: skip
        grid = cdiv(n["COLUMNS"], n["BN"]) * n["ITEMS"], n["MB"], n["G"] * n["SPLITS"]
        packing = n["BM"], n["KA"], n["G"] * n["MB"]
        target = ["workspace"] if n["SPLIT"] else written
        steps = [
            self.launch(program, "pack", packing, None, [self.operand, "workspace", offset]),
            self.launch(program, "tiles", grid, (n["ITEMS"], 1, 1), [self.source, operand, offset, *target]),
        ]
        if n["SPLIT"]:
            size = n["COLUMNS"], n["G"] * n["N"], 1
            steps.append(self.launch(program, "reduce", size, None, ["workspace", *written]))
        return steps


class Tiles(ExactSolver):
    """Every direction, rank, group, stride, dilation, padding and layout, in float32 and float64, on a GPU."""

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], units: int) -> list[Kernel]:
        """A kernel a pass."""
        return [TileKernel(problem, numbers, config) for numbers in passes(problem)]

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles that the device can run, the one with the least work in its fullest unit first."""
        largest = max(passes(problem), key=lambda n: taps(n) * n["YD"] * n["YH"] * n["YW"])
        weights, rated = problem.direction == "bwd_weights", []
        for side, tm, tn, bk in ((16, 8, 8, 8), (16, 8, 4, 8), (16, 4, 4, 16), (8, 4, 4, 8), (4, 4, 4, 4)):
            if side * side > device.max_work_group_size or (tm * tn > 32 and (weights or problem.dtype == "float64")):
                continue
            config = {"side": side, "tm": tm, "tn": tn, "bk": bk, "split": False}
            n = TileKernel(problem, largest, config).n
            groups = cdiv(n["COLUMNS"], n["BN"]) * n["MB"] * n["G"]
            config["split"] = weights and n["IMAGES"] > 1 and groups < WAVES * device.compute_units
            groups *= n["IMAGES"] if config["split"] else 1
            # Loads of a slice's elements are shared by fewer chains in a smaller tile.
            work = cdiv(groups, device.compute_units) * n["BM"] * n["BN"] * (1 + 2 / tm + 2 / tn)
            rated.append((work / (n["IMAGES"] if config["split"] else 1), len(rated), config))
        return (config for _, _, config in sorted(rated, key=lambda each: each[:2]))

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted seconds: multiply-adds at an assumed share of the peak, and launches."""
        known = rates(device)
        return problem.flops / (REACHED * known.flops) + 3 * len(passes(problem)) * known.launch
