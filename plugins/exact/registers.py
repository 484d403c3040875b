"""``exact.registers``: chains in tiles of a CPU's vector registers, over panels of the source in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convdispatch.api import OPERANDS, ConvProblem, DeviceInfo, Launch
from convdispatch.api.cpu import PAGE, cdiv, lanes, registers, transposed

from .solving import ExactSolver, Kernel, passes

SLOT_BYTES = 400 << 10
"""Bytes of a panel and its sums: they share the second-level cache with a block's tile of packed channels."""
ITEMS_PER_UNIT = 8
"""The most work items for each compute unit: each has a slot, and they finish at about the same time."""
LOAD_CYCLES = 3.0
"""Cycles in which a vector of packed channels comes from the second-level cache."""
GATHER_CYCLES = 0.5
"""Cycles in which an element of the source is copied to a panel."""


class RegisterKernel(Kernel):
    """Jobs of a panel of columns and a part of the tiles of channels, shared by work items."""

    template = "registers.cl.mako"

    def __init__(self, problem: ConvProblem, numbers: Mapping[str, int], config: Mapping[str, Any], units: int) -> None:
        super().__init__(problem, numbers, config["lanes"] * config["nv"])
        self.config, n = config, self.n
        depth = min(n["CB"], n["YH"]) * n["YW"] if self.weights else min(n["C"], n["CB"]) * n["TAPS"]
        self.k_runs = bool(n["NHWC"]) != self.weights
        """Whether neighbours of the panel follow one another along k, not along the columns."""
        n["PC"], n["PARTS"], n["PN"] = config["pc"], *self._shares(depth, units)
        n["PANELS"] = cdiv(n["COLUMNS"], n["PN"])
        n["JOBS"] = n["G"] * n["PARTS"] * n["PANELS"]
        n["ITEMS"] = min(n["JOBS"], ITEMS_PER_UNIT * units)
        # An odd number of cache lines, so that columns do not share the cache's sets.
        n["PITCH"] = cdiv(depth, 32) * 32 + 16 if self.k_runs else n["PN"]
        n["PANEL"] = cdiv(n["PITCH"] * (n["PN"] if self.k_runs else depth), 16) * 16
        n["SUMS"] = cdiv(n["MB"], n["PARTS"]) * n["PN"] * n["BM"]
        n["SLOT"] = cdiv((n["PANEL"] + 2 * n["SUMS"]) * self.size, PAGE) * PAGE // self.size
        dense = n["PLACES"] == n["ZD"] * n["ZH"] * n["ZW"]
        n["RUN"] = n["COLUMNS"] if self.weights else 1 if n["UW"] > 1 else n["PLACES"] if dense else n["YW"]
        self.slots = n["ITEMS"] * n["SLOT"] * self.size

    def _shares(self, depth: int, units: int) -> tuple[int, int]:
        """Parts of the tiles along m, and columns of a panel: those of the least predicted time."""
        n, pc = self.n, self.config["pc"]
        tiles, rated = cdiv(n["COLUMNS"], pc), []
        for parts in range(1, n["MB"] + 1):
            sums = 2 * cdiv(n["MB"], parts) * n["BM"]
            fit = max(1, SLOT_BYTES // ((depth + sums) * pc * self.size))
            for panels in {cdiv(tiles, fit), cdiv(tiles, cdiv(fit, 2)), cdiv(tiles, cdiv(fit, 4)), tiles}:
                jobs, vectors = n["G"] * parts * panels, n["MB"] * n["BM"] // self.config["lanes"]
                cycles = vectors * (n["COLUMNS"] / 2 + LOAD_CYCLES * panels) + GATHER_CYCLES * parts * n["COLUMNS"]
                rated.append((cycles * cdiv(jobs, units) * units / jobs, parts, cdiv(tiles, panels) * pc))
        return min(rated)[1:]

    def values(self) -> dict[str, Any]:
        """The tile, the layout, and how squares of the sums are transposed."""
        lanes, acc = self.config["lanes"], self.accumulator
        more = {"vector": f"{acc}{lanes}", "stages": lanes.bit_length() - 1}
        more |= {"nhwc": bool(self.n["NHWC"]), "k_runs": self.k_runs, "bias": self.problem.bias}
        return {**self.config, **more, "transposed": transposed}

    def compute(self, program: Any, arguments: Sequence[Any], written: Sequence[str]) -> list[Launch]:
        """One launch."""
        size, arguments = (self.n["ITEMS"], 1, 1), [*arguments, "workspace", *written]
        return [Launch(program, "conv", size, (1, 1, 1), arguments, names=OPERANDS)]


class Registers(ExactSolver):
    """Every direction, rank, group, stride, dilation, padding and layout, in float32 and float64, on a CPU."""

    reached = 0.75  # measured on two cores with AVX-512
    kernel = staticmethod(RegisterKernel)

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        """The tile with the least work in the largest pass, then the best of each other width."""
        wide, room = lanes(device, problem.dtype), registers(device)
        largest = max(passes(problem), key=lambda n: n["TAPS"] * n["PLACES"])
        n = Kernel(problem, largest, wide).n
        best: list[tuple[float, dict[str, int]]] = []
        for nv in range(1, min(4, n["MB"]) + 1):
            rated = []
            for pc in range(1, min((room - 1) // nv - 1, n["COLUMNS"]) + 1):
                # Eight chains hide the latency of a multiply-add; loads of both operands share two ports with it.
                cycles = max(pc * nv, 8) / 2 + 0.1 * (pc + nv)
                rated.append((cycles * cdiv(n["COLUMNS"], pc) * cdiv(n["MB"], nv), pc))
            work, pc = min(rated)
            best.append((work, {"lanes": wide, "nv": nv, "pc": pc}))
        return (config for _, config in sorted(best, key=lambda each: each[0]))

    def filled(self, problem: ConvProblem, config: Mapping[str, Any]) -> float:
        """The share of the vectors' lanes that are channels of the target."""
        channels = (problem.ic if problem.direction == "bwd_data" else problem.oc) // problem.g
        return channels / (cdiv(channels, config["lanes"] * config["nv"]) * config["lanes"] * config["nv"])
