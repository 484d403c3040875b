"""``exact.registers``: chains in tiles of a CPU's vector registers, over a copy of the source's rows in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convdispatch.api import DTYPES, ConvProblem, DeviceInfo, Launch, rates
from convdispatch.api.cpu import PAGE, cdiv, lanes, registers, transposed

from .passes import Numbers, passes, taps
from .solving import ExactSolver, Kernel

SLOT_BYTES = 400 << 10
"""Bytes of the source's rows that a work item copies: they share the second-level cache with a block's weights."""
ITEMS_PER_UNIT = 8
"""Work items for each compute unit, so that the units finish at about the same time."""
REACHED = 0.75
"""Share of the multiply-add peak at which whole tiles run, measured on two cores with AVX-512."""


class RegisterKernel(Kernel):
    """Bands of rows (forward, data gradient) or jobs of channels (weights' gradient), shared by work items."""

    template = "registers.cl.mako"

    def __init__(self, problem: ConvProblem, numbers: Numbers, config: Mapping[str, Any], units: int) -> None:
        super().__init__(problem, numbers, config)
        n = self.n
        n |= {"LANES": config["lanes"], "NV": config["nv"], "PR": config["pr"], "PC": config["pc"]}
        n["NVL"] = nvl = n["NV"] * n["LANES"]
        n["NB"] = cdiv(n["N"], nvl)
        spread_h, spread_w = (abs(n["D" + axis]) for axis in "HW")
        if self.weights:
            n["R"], n["YHP"], n["YWP"], n["IB"] = n["CB"], n["CB"], cdiv(n["TW"], n["PC"]) * n["PC"], 1
            n["ROWS"] = (min(n["CB"], n["YH"]) - 1) * n["SH"] + (n["TH"] - 1) * spread_h + 1
            n["WIDTH"] = (n["YW"] - 1) * n["SW"] + (n["YWP"] - 1) * spread_w + 1
            self._shares(n, units)
            n["PLANE_Y"] = n["YD"] * n["YH"] * n["YW"]
            self.items = n["ITEMS"], 1
            self.packed = n["G"] * n["NB"] * n["IMAGES"] * n["PLANE_Y"] * nvl
            waiting = 2 * n["BLOCKS"] * n["SUMS"]
        else:
            n["CP"], n["YWP"] = n["C"], cdiv(n["YW"], n["PC"]) * n["PC"]
            n["WIDTH"] = (n["YWP"] - 1) * n["SW"] + (n["TW"] - 1) * spread_w + 1
            self._bands(n, units, spread_h)
            sums = n["YHP"] * n["YWP"] * nvl
            self.items = n["ITEMS"], n["PARTS"]
            self.packed = n["G"] * n["NB"] * n["C"] * taps(n) * nvl
            waiting = n["IB"] * sums
        self._strides(n)
        n["SLOT_IMAGE"] = cdiv(n["TD"] * n["ROWS"] * n["WIDTH"] * n["CP"], n["LANES"]) * n["LANES"]
        n["SLOT"] = cdiv((n["IB"] * n["SLOT_IMAGE"] + waiting) * self.size, PAGE) * PAGE // self.size
        self.slots = self.items[0] * self.items[1] * n["SLOT"] * self.size
        self.packed *= self.size

    def _shares(self, n: Numbers, units: int) -> None:
        """Channels and blocks of target channels of a job: their rows and their sums stay in the cache."""
        column = n["TD"] * n["ROWS"] * n["WIDTH"] * self.size
        sums = 2 * n["TD"] * n["TH"] * n["YWP"] * n["NVL"] * self.size
        fit = max(1, min(SLOT_BYTES // (max(column, sums) * n["PR"]), cdiv(n["C"], n["PR"])))
        while fit > 1 and n["G"] * cdiv(n["C"], fit * n["PR"]) * n["NB"] < ITEMS_PER_UNIT * units:
            fit = cdiv(fit, 2)
        n["CP"] = fit * n["PR"]
        n["NC"] = cdiv(n["C"], n["CP"])
        wanted = max(1, n["G"] * n["NC"] * n["NB"] // (ITEMS_PER_UNIT * units))
        n["BLOCKS"] = max(1, min(n["NB"], SLOT_BYTES // (sums * n["CP"]), wanted))
        n["PARTS"] = cdiv(n["NB"], n["BLOCKS"])
        n["SUMS"] = sums // 2 // self.size * n["CP"]
        n["NT"] = min(n["TD"] * n["TH"], cdiv(units, n["G"] * n["NC"] * n["PARTS"]))
        n["JOBS"] = n["G"] * n["NC"] * n["PARTS"] * n["NT"]
        n["ITEMS"] = min(n["JOBS"], 2 * ITEMS_PER_UNIT * units)

    def _bands(self, n: Numbers, units: int, spread: int) -> None:
        """Rows and images of a band: as many as the slot holds, and as few as leave every unit work."""
        row = n["C"] * n["TD"] * n["WIDTH"] * self.size * n["SH"]
        outer, wanted = n["IMAGES"] * n["G"] * n["YD"], ITEMS_PER_UNIT * units
        rows = min(n["YH"], max(n["PR"], SLOT_BYTES // row - (n["TH"] - 1) * spread // n["SH"]))
        rows = max(min(rows, cdiv(n["YH"] * outer, wanted)), min(n["YH"], cdiv(4 * n["PC"], n["YW"])), 1)
        n["R"] = cdiv(cdiv(n["YH"], cdiv(n["YH"], rows)), n["PR"]) * n["PR"]
        n["BANDS"] = cdiv(n["YH"], n["R"])
        n["YHP"] = n["R"]
        n["ROWS"] = (n["R"] - 1) * n["SH"] + (n["TH"] - 1) * spread + 1
        image = n["TD"] * n["ROWS"] * n["WIDTH"] * n["C"] * self.size
        n["IB"] = 1
        if n["BANDS"] == 1:
            n["IB"] = max(1, min(n["IMAGES"], SLOT_BYTES // image, outer // wanted))
        n["NI"] = cdiv(n["IMAGES"], n["IB"])
        bands = n["NI"] * n["G"] * n["YD"] * n["BANDS"]
        n["ITEMS"] = min(bands, 2 * wanted)
        n["PARTS"] = max(1, min(n["NB"], wanted // n["ITEMS"]))

    def _strides(self, n: Numbers) -> None:
        """Elements of the slot from step to step of each loop, and from chain to chain of a tile."""
        if n["NHWC"]:
            n["CX"], n["PX"], n["RX"] = 1, n["CP"], n["WIDTH"] * n["CP"]
            n["ZX"] = n["ROWS"] * n["RX"]
        else:
            n["PX"], n["RX"], n["ZX"] = 1, n["WIDTH"], n["ROWS"] * n["WIDTH"]
            n["CX"] = n["TD"] * n["ZX"]
        if self.weights:
            n["N0"], n["N1"], n["L0"], n["L1"], n["L2"], n["L3"] = 1, 1, 0, 0, n["SH"] * n["RX"], n["SW"] * n["PX"]
            n["PI"], n["PJ"], n["SI"] = n["CX"], n["DW"] * n["PX"], n["TD"] * n["TH"] * n["YWP"] * n["NVL"]
        else:
            n["N0"], n["N1"], n["L0"], n["L1"] = n["TD"], n["TH"], n["ZX"], n["DH"] * n["RX"]
            n["L2"], n["L3"] = n["DW"] * n["PX"], n["CX"]
            n["PI"], n["PJ"], n["SI"] = n["SH"] * n["RX"], n["SW"] * n["PX"], n["YWP"] * n["NVL"]

    def launches(self, context: Any, operand: str, offset: np.int64) -> list[Launch]:
        """Pack, then convolve."""
        n, one = self.n, (1, 1, 1)
        program = self.program(
            context, f"V {DTYPES[self.problem.dtype].accumulator}{n['LANES']}", lanes=n["LANES"], nv=n["NV"],
            pr=n["PR"], pc=n["PC"], nhwc=bool(n["NHWC"]), bias=self.problem.bias, transposed=transposed,
            stages=n["LANES"].bit_length() - 1,
        )  # fmt: skip
        blocks, pieces = n["G"] * n["NB"], n["IMAGES"] if self.weights else cdiv(n["C"], n["CB"])
        grid = (pieces, blocks, 1) if self.weights else (blocks, pieces, 1)
        arguments = [self.source, operand, offset, "workspace", self.written, *self.extras]
        return [
            self.launch(program, "pack", grid, one, [self.operand, "workspace", offset]),
            self.launch(program, "conv", (*self.items, 1), one, arguments),
        ]


class Registers(ExactSolver):
    """Every direction, rank, group, stride, dilation, padding and layout, in float32 and float64, on a CPU."""

    def kernels(self, problem: ConvProblem, config: Mapping[str, Any], units: int) -> list[Kernel]:
        """A kernel a pass."""
        return [RegisterKernel(problem, numbers, config, units) for numbers in passes(problem)]

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The tile with the least work in the largest pass, then the best of each other width."""
        wide = lanes(device, problem.dtype)
        largest = max(passes(problem), key=lambda n: taps(n) * n["YD"] * n["YH"] * n["YW"])
        best: dict[int, tuple[float, dict[str, int]]] = {}
        for work, tile in _tiles(largest, problem.direction == "bwd_weights", wide, registers(device)):
            if tile["nv"] not in best or work < best[tile["nv"]][0]:
                best[tile["nv"]] = work, tile
        for _, tile in sorted(best.values(), key=lambda each: each[0]):
            yield {"lanes": wide, **tile}

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float:
        """Predicted seconds: multiply-adds of whole vectors, and launches."""
        known, n = rates(device), len(passes(problem))
        channels = (problem.ic if problem.direction == "bwd_data" else problem.oc) // problem.g
        filled = channels / (cdiv(channels, config["lanes"] * config["nv"]) * config["lanes"] * config["nv"])
        return problem.flops / (REACHED * filled * known.flops) + 2 * n * known.launch


def _tiles(n: Numbers, weights: bool, lanes: int, room: int) -> Iterator[tuple[float, dict[str, int]]]:
    """Tiles that the registers hold, each with the cycles of a pass that it takes in relation to the others."""
    rows, columns = (n["C"], n["TW"]) if weights else (n["YH"], n["YW"])
    for nv in range(1, min(4, cdiv(n["N"], lanes)) + 1):
        for pr in range(1, min(16 if weights else 2, rows) + 1):
            for pc in range(1, min(14, columns) + 1):
                chains = pr * pc * nv
                if chains + nv + 1 > room:
                    continue
                # Eight chains hide the latency of a multiply-add; loads of both operands share two ports with it.
                cycles = max(chains, 8) / 2 + 0.1 * (pr * pc + nv)
                tiles = cdiv(rows, pr) * cdiv(columns, pc) * cdiv(n["N"], nv * lanes)
                yield tiles * cycles, {"nv": nv, "pr": pr, "pc": pc}
