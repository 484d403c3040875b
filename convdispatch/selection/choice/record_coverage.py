"""How far records go: they decide among what they measured, and no further.

Each solver stands for a problem by a time. One that was benchmarked has that. One that was only screened has that time,
or its prediction where nobody was benchmarked and that is less: screening errs upward, to three times and more. One
that was not measured has its prediction, lengthened by as much as those who were benchmarked exceeded theirs; and it
must be before them in the order that holds without records. Who predicts nothing and was not measured comes after who
was, unless a rule names it and nobody was benchmarked. Another source's record of a solver that the first source did
not measure counts like a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .evidence import Evidence

MARGIN = 0.1
"""A candidate that was only screened goes before a benchmarked one if its slowest sample is faster by this fraction."""


@dataclass(frozen=True)
class Prediction:
    """A solver's place in the order that holds without records, and the time that it predicts, in ms."""

    solver: str
    place: tuple[Any, ...]
    """The key by which unmeasured solvers are sorted; its first element is the place of the rule that names it."""
    predicted_ms: float | None
    by_rule: bool = False


def ahead(known: Sequence[Evidence], predictions: Mapping[str, Prediction]) -> tuple[str, str] | None:
    """Return the solver that ranks before ``known[0]``, the best measured one, and the reason as text; None if there is
    none.

    ``known`` are the measured in the order of records, ``predictions`` those of all that accept.
    """
    sure = [one for one in known if one.record is not None and one.record.sure]
    return _before_benchmarked(known, sure, predictions) if sure else _before_screened(known, predictions)


def _before_benchmarked(
    known: Sequence[Evidence], sure: Sequence[Evidence], predictions: Mapping[str, Prediction]
) -> tuple[str, str] | None:
    best = sure[0]
    assert best.record is not None
    least, found = best.record.median_ms, None
    for one in known:
        record = one.record
        assert record is not None
        elsewhere = record.sure and record.source != best.record.source and record.median_ms < least
        if elsewhere or (not record.sure and record.ci_ms[1] * (1 + MARGIN) < min(least, best.record.ci_ms[0])):
            least, found = record.median_ms, (one.solver, f"{one.source}, below {_who(best)}")
    longer = max(1.0, _excess(sure, predictions))
    for other in _predicted(known, best, predictions):
        if other.predicted_ms is not None and other.predicted_ms * longer < least:
            least = other.predicted_ms * longer
            found = other.solver, _beyond(other, best)
    if found is None and known[0] is not best:
        return best.solver, best.source
    return found


def _before_screened(known: Sequence[Evidence], predictions: Mapping[str, Prediction]) -> tuple[str, str] | None:
    first = min(predictions.values(), key=lambda one: one.place)
    names = {one.solver for one in known}
    if first.solver not in names and first.predicted_ms is None and first.by_rule:
        return first.solver, f"nobody was benchmarked, and {_who(known[0])} was not compared with it"

    def time(one: Evidence) -> float:
        assert one.record is not None
        predicted = predictions[one.solver].predicted_ms
        return one.record.median_ms if predicted is None else min(one.record.median_ms, predicted)

    best = min(known, key=lambda one: (time(one), predictions[one.solver].place))
    least, found = time(best), None
    for other in _predicted(known, best, predictions):
        if other.predicted_ms is not None and other.predicted_ms < least:
            least, found = other.predicted_ms, (other.solver, _beyond(other, best))
    if found is None and best is not known[0]:
        return best.solver, f"nobody was benchmarked, and it is predicted {least:.3g} ms, below {_who(known[0])}"
    return found


def _predicted(known: Sequence[Evidence], best: Evidence, predictions: Mapping[str, Prediction]) -> list[Prediction]:
    """Unmeasured solvers that predict a time, and that no rule puts behind the best measured one."""
    names = {one.solver for one in known}
    mine = predictions[best.solver].place[0]
    return [one for one in predictions.values() if one.solver not in names and one.place[0] <= mine]


def _excess(sure: Sequence[Evidence], predictions: Mapping[str, Prediction]) -> float:
    """Median over benchmarked solvers of measured over predicted time."""
    logs = []
    for one in sure:
        predicted = predictions[one.solver].predicted_ms
        if predicted and one.record is not None:
            logs.append(math.log(one.record.median_ms / predicted))
    return math.exp(np.median(logs)) if logs else 1.0


def _who(best: Evidence) -> str:
    assert best.record is not None
    return f"{best.solver}'s {best.record.words}"


def _beyond(other: Prediction, best: Evidence) -> str:
    ms = other.predicted_ms
    return f"no record measured it, and it is predicted {ms:.3g} ms, below {_who(best)}, the fastest that was measured"
