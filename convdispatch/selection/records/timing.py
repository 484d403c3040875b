"""Turns samples of one candidate into a median with a confidence interval, and those of several into a verdict.

Times are in milliseconds. Samples are reduced by their median, not by a corrected running sum, which can become zero or
negative for a slow kernel. A time of zero or less is an error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...api.errors import ConvDispatchError

CONFIDENCE = 0.95
OUTLIER_FACTOR = 10.0
"""A sample this many times above or below its candidate's median is discarded as a context switch."""
MAX_OUTLIER_SHARE = 0.25
"""The fraction of discarded samples beyond which the median cannot be trusted."""
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
    """Indices (from 0, both included) of the sorted samples between which the median is with ``confidence``.

    Holds for any distribution: the number of samples below the true median is binomial with probability one half. None
    when ``count`` samples are too few for the confidence (below six for 95 %).
    """
    tail, positions = 0.0, None
    for samples_below in range(count // 2):
        tail += math.comb(count, samples_below) * 0.5**count
        if 1 - 2 * tail < confidence:
            break
        positions = (samples_below, count - 1 - samples_below)
    return positions


def check_time(value: float) -> float:
    """The value, if it is a possible duration. Raises BadTiming."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadTiming(f"a time must be a finite number of milliseconds, got {value!r}")
    if value < 0:
        raise BadTiming(f"a time of {value:g} ms: the clock ran backwards")
    if value == 0:
        raise BadTiming("a time of 0 ms: the clock is too coarse for this work, or the work was not done")
    return float(value)


def summarise(samples: Iterable[float]) -> Timing:
    """Reduce samples in milliseconds to a Timing.

    Raises BadTiming for a sample that is zero, negative or no number, if there is no sample, and if more than a quarter
    of the samples are ten times off their median.
    """
    times = sorted(check_time(sample) for sample in samples)
    if not times:
        raise BadTiming("no sample was taken")
    median_ms = float(np.median(times))
    inliers = [sample for sample in times if median_ms / OUTLIER_FACTOR <= sample <= median_ms * OUTLIER_FACTOR]
    count, outliers = len(times), len(times) - len(inliers)
    if outliers > MAX_OUTLIER_SHARE * count:
        raise BadTiming(f"{outliers} of {count} samples are {OUTLIER_FACTOR:g} times off the median {median_ms:g} ms")
    low, high = order_interval(len(inliers)) or (0, len(inliers) - 1)
    return Timing(
        median=float(np.median(inliers)),
        ci=(inliers[low], inliers[high]),
        p20=_rank(inliers, 0.2),
        p80=_rank(inliers, 0.8),
        count=len(inliers),
        wild=outliers,
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
    """The winner by median; in a tie a deterministic candidate, then the one with less workspace (bytes), then by name.

    Candidates tie if their intervals overlap and their medians are within ``tolerance``. So noise, which widens an
    interval, never lets a candidate win that is slower by more, and a certain difference counts however small it is.
    """
    if not timings:
        return Verdict(None, (), "no candidate has a time")
    best = min(timings, key=lambda name: (timings[name].median, name))
    highest, longest = timings[best].ci[1], timings[best].median * (1 + tolerance)
    tied = [name for name, timing in timings.items() if timing.ci[0] <= highest and timing.median <= longest]
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
