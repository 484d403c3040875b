"""What a search found: one result a solver and configuration, and the list of them, the winner first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .device import DeviceInfo
from .problem import ConvProblem


@dataclass
class Result:
    """The result of a search for one solver with one configuration. Times in milliseconds, memory in bytes."""

    solver: str
    config: Mapping[str, Any] = field(default_factory=dict)
    default: bool = False
    """Whether the solver runs this configuration where nothing is measured."""
    status: str = "not tried"
    """``measured``; ``cut``, being certain to lose; ``wrong``; ``failed``; ``refused``; ``not tried``."""
    reason: str = ""
    """The reason why the candidate was not measured."""
    median_ms: float | None = None
    """Median time of benchmarking, or of screening where the candidate was not benchmarked."""
    benchmarked: bool = False
    """Whether the candidate ran in turns with its rivals, often enough for a confidence interval."""
    screening_ms: float | None = None
    """Median of screening, some three samples before benchmarking."""
    p20: float | None = None
    p80: float | None = None
    ci: tuple[float, float] | None = None
    """Confidence interval of the median, 95 %."""
    count: int = 0
    """The number of timing samples of the candidate."""
    error: float | None = None
    """Measured relative error on sampled outputs, against float64: the worse of ``errors``; ``max_error`` obeys it."""
    errors: dict[str, float] = field(default_factory=dict)
    """Relative error by kind of test data: ``normal`` (norm), and ``scaled``, the worst plane where images, channels
    and summed axis differ in scale."""
    workspace: int | None = None
    compile_ms: float | None = None
    deterministic: bool | None = None
    """Whether two runs gave the same bits."""


class Results(list[Result]):
    """The winner first, then by time, then those without a time; and what is true of the search as a whole."""

    problem: ConvProblem
    device: DeviceInfo
    verdict: str = ""
    """Why the first is first: the fastest, or how a tie was broken."""
    tie: tuple[Result, ...] = ()
    """Results that cannot be told apart from the fastest; empty when there is no tie."""
    spent_ms: float = 0.0
    """Milliseconds that the search took, compilation and verification included."""
    peak_bytes: int = 0
    """The most device memory that the search held at once: operands, workspace, packed weights."""
    conditions: str = ""
    """Why the search is not complete, in words; empty when it is."""

    inconclusive: str = ""
    """Why the times decide nothing, in words: what ran until then was not measured, or the device had other work."""
    runs: str = ""
    """What a call under the same policy and limits runs now, and why, where that is not the winner; else empty."""
    lost: str = ""
    """The solver that left a device on which nothing runs in this process any more; empty when none did."""

    worker: str = ""
    """The device that measured, where a cluster's worker did: its machine and its address there."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        super().__init__(results)

    def __repr__(self) -> str:
        times = sum(result.median_ms is not None for result in self)
        first = self.winner
        won = f"{first.solver} is the fastest, {first.median_ms:.3g} ms" if first else "nothing could be measured"
        what = getattr(self, "problem", "no problem")
        return f"<Results of {what}: {won}; {times} of {len(self)} candidates have times>"

    @property
    def winner(self) -> Result | None:
        """The result that won, or None when nothing could be measured."""
        return self[0] if self and self[0].status == "measured" else None

    def having(self, *statuses: str) -> list[Result]:
        """The results with one of these statuses, in order."""
        return [result for result in self if result.status in statuses]
