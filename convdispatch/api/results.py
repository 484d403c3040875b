"""The results of a search: one for each solver and configuration, and the list of them, the winner first."""

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
    """Whether the solver uses this configuration without measurements."""
    status: str = "not tried"
    """``measured``; ``cut`` because it was certain to lose; ``wrong``; ``failed``; ``refused``; ``not tried``."""
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
    """A search's results: the winner first, then by time, then those without a time; and facts about the search."""

    problem: ConvProblem
    device: DeviceInfo
    verdict: str = ""
    """The reason why the first result won: it is the fastest, or how a tie was broken."""
    tie: tuple[Result, ...] = ()
    """Results that cannot be told apart from the fastest; empty when there is no tie."""
    spent_ms: float = 0.0
    """Milliseconds that the search took, compilation and verification included."""
    peak_bytes: int = 0
    """The most device memory that the search held at once: operands, workspace, packed weights."""
    conditions: str = ""
    """The reason why the search is not complete; empty if it is."""

    inconclusive: str = ""
    """The reason why the times decide nothing: the present choice was not measured, or the device had other work."""
    runs: str = ""
    """The solver that a call under the same policy and limits runs, and why, if it is not the winner; else empty."""
    lost: str = ""
    """The solver after which nothing runs on the device in this process any more; empty if there was none."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        super().__init__(results)

    def __repr__(self) -> str:
        times = sum(result.median_ms is not None for result in self)
        winner = self.winner
        won = f"{winner.solver} is the fastest, {winner.median_ms:.3g} ms" if winner else "nothing could be measured"
        problem = getattr(self, "problem", "no problem")
        return f"<Results of {problem}: {won}; {times} of {len(self)} candidates have times>"

    @property
    def winner(self) -> Result | None:
        """The result that won, or None when nothing could be measured."""
        return self[0] if self and self[0].status == "measured" else None

    def having(self, *statuses: str) -> list[Result]:
        """The results with one of these statuses, in order."""
        return [result for result in self if result.status in statuses]
