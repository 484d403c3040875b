"""Times rival candidates in interleaved rounds.

Nothing here knows of OpenCL: a candidate is a callable that runs once and returns how long it took, and the clock is
the caller's, so all of it is tested with a clock that lies. Times are milliseconds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..selection.records.timing import BadTiming, Timing, check_time, order_interval, summarise

PRECISION = 0.01
"""The ratio of a confidence interval's width to the median, below which a candidate needs no further samples."""
CUT_FACTOR = 3.0
"""Below six samples there is no interval: cut a candidate whose best is this many times a rival's worst."""


def timed(
    work: Callable[[], object], clock: Callable[[], int] = time.perf_counter_ns, repeat: int = 1
) -> Callable[[], float]:
    """A sample function: runs ``work`` ``repeat`` times and returns milliseconds a run.

    ``clock`` counts nanoseconds in whole numbers, so that a difference loses nothing. ``work`` returns when it is done.
    """

    def sample() -> float:
        start = clock()
        for _ in range(repeat):
            work()
        return (clock() - start) / (1e6 * repeat)

    return sample


@dataclass(frozen=True)
class Candidate:
    """One rival: a name, and a function that runs it once and returns its milliseconds."""

    name: str
    sample: Callable[[], float]
    expected_ms: float | None = None
    """The expected milliseconds of one run; a run that cannot end within the budget is not started."""


@dataclass(frozen=True)
class Outcome:
    """The result of benchmarking one candidate.

    ``status`` is ``measured``, ``cut`` (certain to lose), ``failed`` (it raised, or its times are impossible),
    ``unsteady`` (too many wild samples, as on a busy machine) or ``not tried`` (the budget ended first). ``timing`` is
    None where no sample counts.
    """

    status: str
    reason: str
    timing: Timing | None


@dataclass
class _Entrant:
    candidate: Candidate
    samples: list[float] = field(default_factory=list)
    ended: tuple[str, str] | None = None

    def expected(self) -> float:
        if self.samples:
            return self.samples[-1]
        return self.candidate.expected_ms or 0.0

    def interval(self) -> tuple[float, float] | None:
        positions = order_interval(len(self.samples))
        if positions is None:
            return None
        ordered = sorted(self.samples)
        return ordered[positions[0]], ordered[positions[1]]


def interleaved(
    candidates: Sequence[Candidate],
    *,
    rounds: int = 25,
    min_rounds: int = 7,
    budget_ms: float | None = None,
    cut_factor: float = 1.05,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, Outcome]:
    """Sample the candidates in interleaved rounds and return an Outcome for each name.

    A round runs each candidate once and begins one place further than the last, so a drift of clock or temperature, or
    the cache that a neighbour leaves, falls on all alike. A candidate is cut when the lower bound of its interval
    exceeds the best upper bound times ``cut_factor``. Benchmarking ends after ``rounds``; after ``min_rounds`` once
    each interval left is narrower than PRECISION of its median; and when ``budget_ms`` (by ``clock``, nanoseconds)
    has no room for another run.
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) != len(names):
        raise ValueError(f"candidates need names of their own, got {names}")
    start = clock()
    entrants = [_Entrant(candidate) for candidate in candidates]
    spent = False
    for turn in range(rounds):
        running = [entrant for entrant in entrants if entrant.ended is None]
        if not running or spent:
            break
        first = turn % len(running)
        for entrant in running[first:] + running[:first]:
            if budget_ms is not None and (clock() - start) / 1e6 + entrant.expected() > budget_ms:
                spent = True
                continue
            _run_once(entrant)
        _cut(entrants, cut_factor)
        if turn + 1 >= min_rounds and all(map(_converged, running)):
            break
    return {entrant.candidate.name: _outcome(entrant) for entrant in entrants}


def _run_once(entrant: _Entrant) -> None:
    try:
        entrant.samples.append(check_time(entrant.candidate.sample()))
    except Exception as error:
        # An error in the candidate's own code is a failure of the candidate, not of the benchmark.
        entrant.ended = ("failed", f"{type(error).__name__}: {error}")


def _cut(entrants: Sequence[_Entrant], factor: float) -> None:
    running = [entrant for entrant in entrants if entrant.ended is None and entrant.samples]
    intervals = {id(entrant): entrant.interval() for entrant in running}
    upper = min((high for _, high in filter(None, intervals.values())), default=math.inf)
    # The rival's worst time counts, of two samples at least: one too short time of a broken clock decides nothing.
    worst = min((max(entrant.samples) for entrant in running if len(entrant.samples) > 1), default=math.inf)
    for entrant in running:
        interval = intervals[id(entrant)]
        if interval is not None and interval[0] > upper * factor:
            entrant.ended = ("cut", f"at least {interval[0] / upper:.2f} times the best")
        elif len(entrant.samples) > 1 and min(entrant.samples) > worst * CUT_FACTOR:
            entrant.ended = ("cut", f"its best run took {min(entrant.samples) / worst:.1f} times the best one's worst")


def _converged(entrant: _Entrant) -> bool:
    interval = entrant.interval()
    if entrant.ended is not None:
        return True
    return interval is not None and interval[1] - interval[0] <= PRECISION * statistics.median(entrant.samples)


def _outcome(entrant: _Entrant) -> Outcome:
    status, reason = entrant.ended or ("measured", "")
    if status == "failed":
        return Outcome(status, reason, None)
    if not entrant.samples:
        return Outcome("not tried", "the budget ended first", None)
    try:
        return Outcome(status, reason, summarise(entrant.samples))
    except BadTiming as error:
        return Outcome("unsteady", str(error), None)
