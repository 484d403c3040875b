"""Which form of a net is fastest: calls that are waited for are timed, in two series.

Each series is taken in turns over all forms; a choice on which both agree, and that the machine's other work did not
disturb, may be kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

ROUNDS = 5
"""The number of timed samples of each form in a series, the forms interleaved."""
LEAST_ROUNDS = 2
"""The least number of timed samples of each form in a series, if runs are long."""
SERIES_S = 1.0
"""Seconds that a series should take at most, except for its least rounds."""
SAMPLE_S = 0.02
"""Seconds of one timed sample of a form, which repeats the net."""
TIE = 1.03
"""The ratio of two forms' times below which they count as equally fast."""


class Form(Protocol):
    """The methods that a net needs in order to be timed."""

    inputs: Sequence[Any]

    def __call__(self, *given: Any) -> Any:
        """The outputs for NumPy arrays; waits."""


@dataclass(frozen=True)
class Verdict:
    """The place of the fastest form, each form's milliseconds, whether both series agree, and how much the machine's
    other work added: the winner's median above its least, as a fraction."""

    best: int
    ms: tuple[float, ...]
    agreed: bool
    noise: float


def benchmark_forms(forms: Sequence[Form], favourite: int | None = None) -> Verdict:
    """Time ``forms``, nets that are ready to run; ``favourite`` wins ties."""
    single_times = []
    for form in forms:
        _alone(form, 1)
        single_times.append(max(_alone(form, 1)[0], 1e-5))
    rounds = max(LEAST_ROUNDS, min(ROUNDS, round(SERIES_S / sum(max(each, SAMPLE_S) for each in single_times))))
    calls = [max(1, round(SAMPLE_S / each)) for each in single_times]
    return verdict_of([_series(forms, calls, rounds) for _ in range(2)], favourite)


def verdict_of(series: Sequence[Sequence[Sequence[float]]], favourite: int | None) -> Verdict:
    """Return the verdict of two series, each with the seconds of the forms' interleaved calls; ``favourite`` wins
    ties."""
    leasts = [[min(samples) for samples in each] for each in series]
    # The least time of each form counts, because other work only adds time, and adds more to some forms than to others.
    ms = [min(times) for times in zip(*leasts, strict=True)]
    best = min(range(len(ms)), key=lambda i: ms[i])
    if favourite is not None and ms[favourite] <= TIE * ms[best]:
        best = favourite
    agreed = all(each[best] <= TIE * min(each) for each in leasts)
    best_samples = [sample for each in series for sample in each[best]]
    noise = statistics.median(best_samples) / min(best_samples) - 1
    return Verdict(best, tuple(1e3 * each for each in ms), agreed, noise)


def _series(forms: Sequence[Form], calls: Sequence[int], rounds: int) -> list[list[float]]:
    samples: list[list[float]] = [[] for _ in forms]
    for turn in range(rounds):
        order = range(len(forms)) if turn % 2 == 0 else reversed(range(len(forms)))
        for i in order:
            samples[i] += _alone(forms[i], calls[i])
    return samples


def _alone(form: Form, calls: int) -> list[float]:
    """Seconds of each of ``calls`` calls with NumPy arrays: how the result is waited for is part of it."""
    inputs = [np.zeros(x.shape, x.dtype) for x in form.inputs]
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        form(*inputs)
        times.append(time.perf_counter() - start)
    return times
