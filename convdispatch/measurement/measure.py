"""Times rival candidates in interleaved rounds.

This module does not use OpenCL: a candidate is a callable that runs once and returns its duration, and the clock is an
argument, so that tests can use a false clock. Times are in milliseconds.
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
"""A candidate with too few samples for an interval is cut if its best time is this many times a rival's worst."""


def timed(
    work: Callable[[], object], clock: Callable[[], int] = time.perf_counter_ns, repeat: int = 1
) -> Callable[[], float]:
    """A function that runs ``work`` ``repeat`` times and returns the milliseconds per run.

    ``clock`` returns integer nanoseconds, so that differences are exact. ``work`` must return only when it is done.
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
    ``unsteady`` (too many outliers, as on a busy machine) or ``not tried`` (the budget ended first). ``timing`` is None
    without valid samples.
    """

    status: str
    reason: str
    timing: Timing | None


@dataclass
class _Rival:
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

    A round runs each candidate once, and each round starts with the next one, so that a drift of clock or temperature,
    or the cache content that a rival leaves, affects all alike. A candidate is cut when the lower bound of its interval
    exceeds the best upper bound times ``cut_factor``. Benchmarking ends after ``rounds``; after ``min_rounds`` once the
    interval of each remaining candidate is narrower than PRECISION times its median; and when another run would exceed
    ``budget_ms`` (by ``clock``, in nanoseconds).
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) != len(names):
        raise ValueError(f"candidates need names of their own, got {names}")
    start = clock()
    rivals = [_Rival(candidate) for candidate in candidates]
    is_out_of_time = False
    for turn in range(rounds):
        running = [rival for rival in rivals if rival.ended is None]
        if not running or is_out_of_time:
            break
        offset = turn % len(running)
        for rival in running[offset:] + running[:offset]:
            if budget_ms is not None and (clock() - start) / 1e6 + rival.expected() > budget_ms:
                is_out_of_time = True
                continue
            _run_once(rival)
        _cut(rivals, cut_factor)
        if turn + 1 >= min_rounds and all(map(_converged, running)):
            break
    return {rival.candidate.name: _outcome(rival) for rival in rivals}


def _run_once(rival: _Rival) -> None:
    try:
        rival.samples.append(check_time(rival.candidate.sample()))
    except Exception as error:
        # An error in the candidate's own code is a failure of the candidate, not of the benchmark.
        rival.ended = ("failed", f"{type(error).__name__}: {error}")


def _cut(rivals: Sequence[_Rival], factor: float) -> None:
    running = [rival for rival in rivals if rival.ended is None and rival.samples]
    intervals = {id(rival): rival.interval() for rival in running}
    upper = min((high for _, high in filter(None, intervals.values())), default=math.inf)
    # The rival's worst time counts, of two samples at least: one too short time of a broken clock decides nothing.
    worst = min((max(rival.samples) for rival in running if len(rival.samples) > 1), default=math.inf)
    for rival in running:
        interval = intervals[id(rival)]
        if interval is not None and interval[0] > upper * factor:
            rival.ended = ("cut", f"at least {interval[0] / upper:.2f} times the best")
        elif len(rival.samples) > 1 and min(rival.samples) > worst * CUT_FACTOR:
            rival.ended = ("cut", f"its best run took {min(rival.samples) / worst:.1f} times the best one's worst")


def _converged(rival: _Rival) -> bool:
    interval = rival.interval()
    if rival.ended is not None:
        return True
    return interval is not None and interval[1] - interval[0] <= PRECISION * statistics.median(rival.samples)


def _outcome(rival: _Rival) -> Outcome:
    status, reason = rival.ended or ("measured", "")
    if status == "failed":
        return Outcome(status, reason, None)
    if not rival.samples:
        return Outcome("not tried", "the budget ended first", None)
    try:
        return Outcome(status, reason, summarise(rival.samples))
    except BadTiming as error:
        return Outcome("unsteady", str(error), None)
