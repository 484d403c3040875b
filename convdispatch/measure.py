"""Turns repeated timings of rival candidates into medians with confidence intervals, and these into a verdict.

Nothing here knows of OpenCL: a candidate is a callable that runs once and answers how long it took, and the clock is
the caller's, so all of it is tested with a clock that lies. Times are milliseconds.

The reducer is a median, never a running sum: a sum that is corrected afterwards can go to zero or below for a slow
kernel, which then wins. A time of zero or less is no time, and its candidate fails.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .api.errors import ConvDispatchError

__all__ = [
    "BadTiming",
    "Candidate",
    "Outcome",
    "Timing",
    "Verdict",
    "order_interval",
    "race",
    "summarise",
    "timed",
    "verdict",
]

CONFIDENCE = 0.95
WILD = 10.0
"""A sample this many times above or below its candidate's own median is set aside: a context switch, not a kernel."""
WILD_SHARE = 0.25
"""With more than this share of wild samples the median itself cannot be trusted."""
HOPELESS = 3.0
"""Below six samples there is no interval: cut a candidate whose best is this many times a rival's worst."""
TOLERANCE = 0.02
"""Medians closer than this, in intervals that overlap, are a tie."""


class BadTiming(ConvDispatchError):
    """A time that no work can take (zero, negative, not a number), or samples too wild to have a median."""


@dataclass(frozen=True)
class Timing:
    """What repeated runs of one candidate took, in milliseconds."""

    median: float
    ci: tuple[float, float]
    """Confidence interval of the median (95 %) from order statistics; the whole range below six samples."""
    p20: float
    p80: float
    count: int
    """Samples that the figures rest on."""
    wild: int = 0
    """Samples set aside because they were ten times off the median."""


@functools.lru_cache(maxsize=4096)
def order_interval(count: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Positions (from 0, both included) of the sorted samples between which the median lies with ``confidence``.

    Holds for any distribution: the number of samples below the true median is binomial with probability one half. None
    when ``count`` samples are too few for the confidence (below six for 95 %).
    """
    tail, chosen = 0.0, None
    for below in range(count // 2):
        tail += math.comb(count, below) * 0.5**count
        if 1 - 2 * tail < confidence:
            break
        chosen = (below, count - 1 - below)
    return chosen


def check_time(value: float) -> float:
    """The value, if work can have taken that long. Raises BadTiming."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadTiming(f"a time must be a finite number of milliseconds, got {value!r}")
    if value < 0:
        raise BadTiming(f"a time of {value:g} ms: the clock ran backwards")
    if value == 0:
        raise BadTiming("a time of 0 ms: the clock is too coarse for this work, or the work was not done")
    return float(value)


def summarise(samples: Iterable[float]) -> Timing:
    """Reduce samples in milliseconds to a Timing.

    Raises BadTiming for a sample that is zero, negative or no number, for none at all, and when more than a quarter of
    them are ten times off their own median.
    """
    times = sorted(check_time(sample) for sample in samples)
    if not times:
        raise BadTiming("no sample was taken")
    middle = statistics.median(times)
    kept = [sample for sample in times if middle / WILD <= sample <= middle * WILD]
    if len(times) - len(kept) > WILD_SHARE * len(times):
        wild = len(times) - len(kept)
        raise BadTiming(f"{wild} of {len(times)} samples are {WILD:g} times off the median {middle:g} ms")
    low, high = order_interval(len(kept)) or (0, len(kept) - 1)
    return Timing(
        median=statistics.median(kept),
        ci=(kept[low], kept[high]),
        p20=_rank(kept, 0.2),
        p80=_rank(kept, 0.8),
        count=len(kept),
        wild=len(times) - len(kept),
    )


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def timed(
    work: Callable[[], object], clock: Callable[[], int] = time.perf_counter_ns, repeat: int = 1
) -> Callable[[], float]:
    """A sample function: runs ``work`` ``repeat`` times and answers milliseconds a run.

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
    """One rival: a name, and a function that runs it once and answers its milliseconds."""

    name: str
    sample: Callable[[], float]
    expected_ms: float | None = None
    """What one run is thought to take: a run that cannot end within the budget is not begun."""


@dataclass(frozen=True)
class Outcome:
    """What a race found of one candidate.

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


def race(
    candidates: Sequence[Candidate],
    *,
    rounds: int = 25,
    min_rounds: int = 7,
    budget_ms: float | None = None,
    cut_factor: float = 1.05,
    precision: float = 0.01,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, Outcome]:
    """Sample the candidates in interleaved rounds and answer an Outcome for each name.

    A round runs each candidate once and begins one place further than the last, so a drift of clock or temperature, or
    the cache that a neighbour leaves, falls on all alike. A candidate is cut when the lower bound of its interval
    exceeds the best upper bound times ``cut_factor``. The race ends after ``rounds``; after ``min_rounds`` once each
    interval left is narrower than ``precision`` of its median; and when ``budget_ms`` (by ``clock``, nanoseconds) has
    no room for another run.
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
        if turn + 1 >= min_rounds and all(_settled(entrant, precision) for entrant in running):
            break
    return {entrant.candidate.name: _outcome(entrant) for entrant in entrants}


def _run_once(entrant: _Entrant) -> None:
    try:
        entrant.samples.append(check_time(entrant.candidate.sample()))
    except Exception as error:  # the candidate's own code: whatever it raises is its failure, not the race's
        entrant.ended = ("failed", f"{type(error).__name__}: {error}")


def _cut(entrants: Sequence[_Entrant], factor: float) -> None:
    running = [entrant for entrant in entrants if entrant.ended is None and entrant.samples]
    intervals = {id(entrant): entrant.interval() for entrant in running}
    upper = min((high for _, high in filter(None, intervals.values())), default=math.inf)
    # The rival's worst sample; two samples at least, so that one lucky run of a broken clock decides nothing.
    worst = min((max(entrant.samples) for entrant in running if len(entrant.samples) > 1), default=math.inf)
    for entrant in running:
        interval = intervals[id(entrant)]
        if interval is not None and interval[0] > upper * factor:
            entrant.ended = ("cut", f"at least {interval[0] / upper:.2f} times the best")
        elif len(entrant.samples) > 1 and min(entrant.samples) > worst * HOPELESS:
            entrant.ended = ("cut", f"its best run took {min(entrant.samples) / worst:.1f} times the best one's worst")


def _settled(entrant: _Entrant, precision: float) -> bool:
    interval = entrant.interval()
    if entrant.ended is not None:
        return True
    return interval is not None and interval[1] - interval[0] <= precision * statistics.median(entrant.samples)


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


@dataclass(frozen=True)
class Verdict:
    """Who won a race, and how surely."""

    winner: str | None
    """None when nobody has a time."""
    tie: tuple[str, ...]
    """Names that cannot be told apart from the fastest, itself included; empty when there is no tie."""
    reason: str


def verdict(
    timings: Mapping[str, Timing],
    *,
    deterministic: Mapping[str, bool] | None = None,
    workspace: Mapping[str, int] | None = None,
    tolerance: float = TOLERANCE,
) -> Verdict:
    """The winner by median, or of a tie: deterministic before not, then less workspace (bytes), then name.

    A tie needs both: intervals that overlap, and medians within ``tolerance``. So a wide interval, which is noise,
    never lets a candidate win that is slower than the tolerance; and a real difference counts however small it is.
    """
    if not timings:
        return Verdict(None, (), "no candidate has a time")
    best = min(timings, key=lambda name: (timings[name].median, name))
    tied = [name for name in timings if _alike(timings[best], timings[name], tolerance)]
    if len(tied) == 1:
        return Verdict(best, (), f"fastest, {timings[best].median:.4g} ms")
    deterministic, workspace = deterministic or {}, workspace or {}

    def preference(name: str) -> tuple[bool, int, str]:
        return not deterministic.get(name, True), workspace.get(name, 0), name

    winner = min(tied, key=preference)
    if len({preference(name)[0] for name in tied}) > 1:
        why = "it is deterministic" if deterministic.get(winner, True) else "none is deterministic"
    else:
        why = "it needs less workspace" if len({preference(name)[1] for name in tied}) > 1 else "its name comes first"
    return Verdict(winner, tuple(sorted(tied)), f"tie of {len(tied)} within {tolerance:.0%}; {why}")


def _alike(best: Timing, other: Timing, tolerance: float) -> bool:
    return other.ci[0] <= best.ci[1] and other.median <= best.median * (1 + tolerance)
