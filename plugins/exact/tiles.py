"""``exact.tiles``: chains in the registers of a GPU's work items, over slices in local memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, DeviceInfo, Launch
from convdispatch.api.cpu import cdiv

from .solving import ExactSolver, Kernel, passes

TILES = {
    (16, 8, 8, 16): 1.0,
    (16, 8, 8, 8): 1.0,
    (16, 8, 4, 16): 0.93,
    (16, 8, 4, 8): 0.87,
    (16, 4, 4, 16): 0.76,
    (8, 8, 4, 8): 0.77,
    (8, 4, 4, 8): 0.62,
    (4, 4, 4, 4): 0.17,
}
"""Tiles (side, tm, tn, bk), and their multiply-adds a second beside the fastest tile's. Measured on an H200."""
WAVES = 2
"""Work groups for each compute unit below which a weights' gradient sums images in work groups of their own."""


class TileKernel(Kernel):
    """A grid of tiles over target channels and columns: places of images, or channels and taps."""

    template = "tiles.cl.mako"

    def __init__(self, problem: ConvProblem, numbers: Mapping[str, int], config: Mapping[str, Any], _: int) -> None:
        tm, tn, side = config["tm"], config["tn"], config["side"]
        super().__init__(problem, numbers, tm * side)
        n = self.n
        n |= {"TM": tm, "TN": tn, "TX": side, "BN": tn * side, "BK": config["bk"], "ITEMS": side * side}
        n["COUNT"] = min(n["C"], n["CB"]) if n["C"] <= n["CB"] or n["C"] % n["CB"] == 0 else 0
        n["SPLIT"] = int(self.weights and config["split"])
        n["SPLITS"] = n["IMAGES"] if n["SPLIT"] else 1
        self.slots = n["IMAGES"] * n["G"] * n["N"] * n["COLUMNS"] * self.size if n["SPLIT"] else 0

    def values(self) -> dict[str, Any]:
        """The tile of a work item, and the elements of a slice that it loads."""
        n = self.n
        loads = {name: cdiv(n[wide] * n["BK"], n["ITEMS"]) for name, wide in (("a_loads", "BM"), ("b_loads", "BN"))}
        # Channels of one tap fill each slice, so that its place in the source is computed once.
        whole = not self.weights and n["COUNT"] and n["COUNT"] % n["BK"] == 0
        fours = n["NHWC"] and not self.weights and loads["b_loads"] % 4 == 0
        # Operands begin at multiples of 16 bytes.
        aligned = whole and fours and self.size == 4 and n["C"] * n["G"] % 4 == 0 and n["C"] % 4 == 0
        form = {"whole": whole, "fours": fours, "aligned": aligned}
        return {"tm": n["TM"], "tn": n["TN"], "vector": f"{self.accumulator}4", **form, **loads}

    def compute(self, program: Any, arguments: Sequence[Any], written: Sequence[str]) -> list[Launch]:
        """Multiply, and add the images' sums where they are apart."""
        n = self.n
        grid, local = (cdiv(n["COLUMNS"], n["BN"]) * n["ITEMS"], n["MB"], n["G"] * n["SPLITS"]), (n["ITEMS"], 1, 1)
        target = ["workspace"] if n["SPLIT"] else written
        steps = [Launch(program, "tiles", grid, local, [*arguments, *target], names=OPERANDS)]
        if n["SPLIT"]:
            size = n["COLUMNS"], n["G"] * n["N"], 1
            steps.append(Launch(program, "reduce", size, None, ["workspace", *written], names=OPERANDS))
        return steps


class Tiles(ExactSolver):
    """Every direction, rank, group, stride, dilation, padding and layout, in float32 and float64, on a GPU."""

    reached = 0.5  # of an H200's peak: 0.6 forward and data gradient channels first, 0.35 to 0.5 weights' gradient
    kernel = staticmethod(TileKernel)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """Tiles that the device can run, the one with the least work in its fullest unit first."""
        largest = max(passes(problem), key=lambda n: n["TAPS"] * n["PLACES"])
        weights, rated = problem.direction == "bwd_weights", []
        for (side, tm, tn, bk), speed in TILES.items():
            if side * side > device.max_work_group_size or (tm * tn > 32 and (weights or problem.dtype == "float64")):
                continue
            config = {"side": side, "tm": tm, "tn": tn, "bk": bk, "split": False}
            n = TileKernel(problem, largest, config, device.compute_units).n
            groups = cdiv(n["COLUMNS"], n["BN"]) * n["MB"] * n["G"]
            config["split"] = weights and n["IMAGES"] > 1 and groups < WAVES * device.compute_units
            groups *= n["IMAGES"] if config["split"] else 1
            work = cdiv(groups, device.compute_units) * n["BM"] * n["BN"] / speed
            rated.append((work / (n["IMAGES"] if config["split"] else 1), len(rated), config))
        return (config for _, _, config in sorted(rated, key=lambda each: each[:2]))
