"""Turns samples of one candidate into a median with a confidence interval, and those of several into a verdict.

Times are milliseconds. The reducer is a median, never a running sum: a sum that is corrected afterwards can go to zero
or below for a slow kernel, which then wins. A time of zero or less is no time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...api.errors import ConvDispatchError

CONFIDENCE = 0.95
WILD = 10.0
"""A sample this many times above or below its candidate's own median is set aside: a context switch, not a kernel."""
WILD_SHARE = 0.25
"""The fraction of wild samples beyond which the median cannot be trusted."""
TOLERANCE = 0.02
"""Two medians that differ by less than this fraction, and whose intervals overlap, are a tie."""


class BadTiming(ConvDispatchError):
    """A time that no work can take (zero, negative, not a number), or samples too wild to have a median."""


@dataclass(frozen=True)
class Timing:
    """The times of repeated runs of one candidate, in milliseconds."""

    median: float
    ci: tuple[float, float]
    """Confidence interval of the median (95 %) from order statistics; the whole range below six samples."""
    p20: float
    p80: float
    count: int
    """The number of samples from which the median was computed."""
    wild: int = 0
    """The number of samples that were discarded because they were ten times off the median."""


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
    middle = float(np.median(times))
    inliers = [sample for sample in times if middle / WILD <= sample <= middle * WILD]
    if len(times) - len(inliers) > WILD_SHARE * len(times):
        wild = len(times) - len(inliers)
        raise BadTiming(f"{wild} of {len(times)} samples are {WILD:g} times off the median {middle:g} ms")
    low, high = order_interval(len(inliers)) or (0, len(inliers) - 1)
    return Timing(
        median=float(np.median(inliers)),
        ci=(inliers[low], inliers[high]),
        p20=_rank(inliers, 0.2),
        p80=_rank(inliers, 0.8),
        count=len(inliers),
        wild=len(times) - len(inliers),
    )


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Verdict:
    """The winner of a comparison, and how certain that is."""

    winner: str | None
    """The name of the fastest candidate; None if no candidate has a time."""
    tie: tuple[str, ...]
    """The names of the candidates that tie with the fastest, itself included; empty if there is no tie."""
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
