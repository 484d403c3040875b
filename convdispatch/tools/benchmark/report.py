"""The results of a benchmark, which are written as JSON.

Times are milliseconds, memory bytes, rates a second.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...api.problem import ConvProblem
from ...device import plainfile

SCHEMA = 2
EVIDENCE = 3
"""The least number of measured candidates from which a winner, a regret or a ratio is reported."""


@dataclass(kw_only=True)
class Timed:
    """Times in milliseconds and errors of what was measured; None where nothing was."""

    median_ms: float | None = None
    p20_ms: float | None = None
    p80_ms: float | None = None
    count: int = 0
    ci_ms: tuple[float, float] | None = None
    """The 95 % confidence interval of the median."""
    error: float | None = None
    """The relative error (norm) of sampled outputs against float64, on normal data."""
    error_scaled: float | None = None
    """The error of the worst sampled plane, on data whose images, channels and summed axis differ in scale."""


@dataclass
class Row(Timed):
    """The result of a search for one solver with one configuration."""

    solver: str
    config: dict[str, Any]
    status: str
    reason: str = ""
    workspace: int | None = None
    compile_ms: float | None = None
    deterministic: bool | None = None
    benchmarked: bool | None = None
    """Whether the time comes from interleaved rounds; False for screening."""
    screening_ms: float | None = None


@dataclass
class PeerTime(Timed):
    """One peer in one variant (its layout); ``reason`` says why it has no time."""

    peer: str
    variant: str
    reason: str = ""


@dataclass
class Choice(Timed):
    """A configuration that dispatch chose, or the fastest, with its time in rounds against the others named here."""

    solver: str
    config: dict[str, Any]
    source: str
    workspace: int | None = None


@dataclass
class Measured:
    """The measurements of one problem."""

    problem: str
    flops: int
    traffic: int
    """The bytes of x, w and y, if each is moved once."""
    chosen: Choice | None = None
    """The choice that a call would have run before this search."""
    best: Choice | None = None
    rows: list[Row] = field(default_factory=list)
    peers: list[PeerTime] = field(default_factory=list)
    failure: str = ""
    conditions: str = ""
    spent_ms: float = 0.0
    load: float | None = None
    """The number of processors that other processes kept busy during the measurement."""
    peak_bytes: int = 0

    @property
    def parsed(self) -> ConvProblem:
        """The problem, parsed from its text."""
        return ConvProblem.parse(self.problem)

    @property
    def best_ms(self) -> float | None:
        """The median milliseconds of the fastest solver."""
        return self.best.median_ms if self.best else None

    @property
    def regret(self) -> float | None:
        """Time of what was chosen over the best time, 1 at least; None when unknown or resting on too little."""
        if not self.sure or self.chosen is None or not self.chosen.median_ms or not self.best_ms:
            return None
        return max(1.0, self.chosen.median_ms / self.best_ms)

    @property
    def coverage(self) -> tuple[int, int]:
        """Candidates that have a time, and all that accepted the problem."""
        timed = [row for row in self.rows if row.median_ms is not None and row.status in ("measured", "cut")]
        return len(timed), len([row for row in self.rows if row.status != "refused"])

    @property
    def sure(self) -> bool:
        """Whether enough candidates were measured to speak of a winner."""
        return self.coverage[0] >= EVIDENCE

    def peer(self, name: str) -> PeerTime | None:
        """A peer's fastest variant."""
        timed = [time for time in self.peers if time.peer == name and time.median_ms]
        return min(timed, key=lambda time: time.median_ms or 0.0, default=None)

    def peer_ms(self, name: str) -> float | None:
        """The time of a peer's fastest variant."""
        fastest = self.peer(name)
        return fastest.median_ms if fastest else None


@dataclass(frozen=True)
class Layer:
    """One layer of the run: its net, its name, its problem, and how often the net runs it."""

    net: str
    name: str
    problem: str
    count: int = 1


@dataclass
class Report:
    """A whole run: its layers, where it ran, the device's ceilings, and what was measured, by problem."""

    layers: list[Layer]
    environment: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    roofs: dict[str, Any] = field(default_factory=dict)
    """The device's ceilings by dtype: ``flops``, ``bandwidth``, ``matrix`` (or None), each with ``rate`` and
    ``how``."""
    measured: dict[str, Measured] = field(default_factory=dict)
    interrupted: bool = False
    """Whether the run ended before everything was measured."""
    time_limit: bool = False
    """Whether the run was ended by its time limit, not by a person."""
    schema: int = SCHEMA

    def rows(self) -> list[tuple[Layer, Measured]]:
        """The layers that are measured, in the run's order."""
        return [(layer, self.measured[layer.problem]) for layer in self.layers if layer.problem in self.measured]


def without_folders(words: str) -> str:
    """A text without the folders of this machine, because reports are published."""
    return re.sub(r"(?:/[^/\s]+)+/(?=[^/\s])", "", words)


def write_json(report: Report, path: Path) -> None:
    """Write the report as JSON. The file is replaced when the new one is complete."""
    plainfile.publish(path, json.dumps(asdict(report), indent=1) + "\n")
