"""Computes the summary of a report: a line per layer, sums per net, gaps, regret."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...api.problem import ConvProblem
from .report import Layer, Measured, Report

GAP = 0.5
"""A layer below this share of its roofline is listed as a gap."""


@dataclass(frozen=True)
class Line:
    """One layer's figures; times in milliseconds, None where unknown."""

    layer: Layer
    measured: Measured
    problem: ConvProblem
    roof_ms: float | None
    bound: str

    @property
    def ms(self) -> float | None:
        """The fastest solver's milliseconds."""
        return self.measured.best_ms

    @property
    def gflops(self) -> float | None:
        """Operations of the direct sum, in thousand millions a second."""
        return self.measured.flops / self.ms / 1e6 if self.ms else None

    @property
    def fraction(self) -> float | None:
        """The share of the roofline; above 1 where an algorithm does fewer operations than the direct sum."""
        return self.roof_ms / self.ms if self.ms and self.roof_ms else None

    @property
    def winner(self) -> str:
        """The fastest solver; empty where too few candidates were measured to know."""
        return self.fastest if self.measured.sure else ""

    @property
    def fastest(self) -> str:
        """The solver whose time is the layer's, however many rivals it had."""
        return self.measured.best.solver if self.measured.best and self.ms else ""

    @property
    def verdict(self) -> str:
        """Return the winner as text, or the solver that ran if the winner is unknown."""
        if not self.fastest:
            return "none"
        return self.winner or f"unknown ({self.fastest} ran)"

    @property
    def coverage(self) -> str:
        """The text of how many of the accepting candidates were measured."""
        measured, offered = self.measured.coverage
        return f"{measured} of {offered}"

    def ratio(self, peer: str) -> float | None:
        """The peer's time over ours: above 1 we are faster. None where too few candidates were measured; where nothing
        was searched it is what the immediate choice takes."""
        peer_ms = self.measured.peer_ms(peer) if self.measured.sure or not self.measured.rows else None
        return peer_ms / self.ms if peer_ms and self.ms else None


def known(every: Sequence[Line]) -> tuple[int, int]:
    """The number of distinct problems whose winner is known, and of those that have a time."""
    distinct = {line.measured.problem: line for line in every if line.ms}.values()
    return sum(line.measured.sure for line in distinct), len(distinct)


def geomean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the values that are not None; None if there are none."""
    numbers = [value for value in values if value]
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers)) if numbers else None


def lines(report: Report) -> list[Line]:
    """A line for each measured layer, in the run's order."""
    return [Line(layer, measured, measured.parsed, *_roof(report, measured)) for layer, measured in report.rows()]


def _roof(report: Report, measured: Measured) -> tuple[float | None, str]:
    """Least milliseconds for a problem's direct sum and compulsory traffic, and which of the two bounds it.

    Matrix units count where ``math`` or ``dtype`` lets a solver use them at their own precision.
    """
    problem = measured.parsed
    roof = report.roofs.get(problem.dtype)
    if not roof:
        return None, ""
    free = problem.dtype in ("float16", "bfloat16") or problem.math in ("tf32", "fast")
    rate = (roof["matrix"] if free and roof.get("matrix") else roof["flops"])["rate"]
    compute, memory = measured.flops / rate, measured.traffic / roof["bandwidth"]["rate"]
    return max(compute, memory) * 1e3, "compute" if compute >= memory else "memory"


@dataclass
class Net:
    """A net's sums in one direction: each layer's time, times how often it runs, in milliseconds."""

    name: str
    direction: str
    layers: int = 0
    gflop: float = 0.0
    best_ms: float = 0.0
    chosen_ms: float | None = 0.0
    roof_ms: float | None = 0.0
    peers: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    """For each peer, the sum of its times, the sum of our times over the same layers, and how many layers these are."""
    ratios: dict[str, float | None] = field(default_factory=dict)
    """For each peer, the geometric mean of its time over ours."""

    @property
    def gflops(self) -> float | None:
        """The net's thousand millions of operations a second."""
        return self.gflop / self.best_ms * 1e3 if self.best_ms else None


def nets(every: Sequence[Line], peers: Sequence[str]) -> list[Net]:
    """One Net for each net and direction, in order; layers without a time are left out of every sum."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in every:
        if line.ms:
            groups.setdefault((line.layer.net, line.problem.direction), []).append(line)
    return [_net(name, direction, group, peers) for (name, direction), group in groups.items()]


def _net(name: str, direction: str, group: list[Line], peers: Sequence[str]) -> Net:
    net = Net(name, direction, sum(line.layer.count for line in group))
    for line in group:
        count = line.layer.count
        net.gflop += count * line.measured.flops / 1e9
        net.best_ms += count * line.ms
        chosen = line.measured.chosen.median_ms if line.measured.chosen else None
        net.chosen_ms = None if chosen is None or net.chosen_ms is None else net.chosen_ms + count * chosen
        net.roof_ms = None if line.roof_ms is None or net.roof_ms is None else net.roof_ms + count * line.roof_ms
        for peer in peers:
            their_ms = line.measured.peer_ms(peer)
            if their_ms and line.ratio(peer):
                their_sum, our_ms, layers = net.peers.get(peer, (0.0, 0.0, 0))
                net.peers[peer] = their_sum + count * their_ms, our_ms + count * line.ms, layers + count
    net.ratios = {peer: geomean(line.ratio(peer) for line in group) for peer in peers}
    return net


def gaps(every: Sequence[Line], below: float = GAP) -> list[Line]:
    """Layers below that share of their roofline, distinct, the most lost time first."""
    distinct = {line.measured.problem: line for line in every if line.fraction is not None and line.fraction < below}
    return sorted(distinct.values(), key=lambda line: line.roof_ms - line.ms)
