"""Ranks unmeasured solvers among measured ones, because records decide only among the solvers that they measured.

Solvers are compared by one time each: the benchmarked time; for a solver that was only screened the screening time, or
its prediction if no solver was benchmarked and the prediction is less, because screening overestimates; for an
unmeasured solver its prediction, times the factor by which benchmarked solvers exceeded theirs. An unmeasured solver
ranks first only if it also precedes the measured ones in the order without records. One that predicts nothing ranks
after measured ones, unless a rule names it and no solver was benchmarked. Another source's record of a solver that the
first source did not measure counts like a prediction.
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
    """A solver's sort key in the order without records, and the time that it predicts, in ms."""

    solver: str
    place: tuple[Any, ...]
    """The key by which unmeasured solvers are sorted; its first element is the place of the rule that names it."""
    predicted_ms: float | None
    by_rule: bool = False


def ahead(known: Sequence[Evidence], predictions: Mapping[str, Prediction]) -> tuple[str, str] | None:
    """The solver that ranks before ``known[0]``, the best measured one, and the reason as text; None if there is none.

    ``known`` are the measured solvers in the order of their records, ``predictions`` those of all that accept.
    """
    benchmarked = [item for item in known if item.record is not None and item.record.sure]
    return _before_benchmarked(known, benchmarked, predictions) if benchmarked else _before_screened(known, predictions)


def _before_benchmarked(
    known: Sequence[Evidence], benchmarked: Sequence[Evidence], predictions: Mapping[str, Prediction]
) -> tuple[str, str] | None:
    best = benchmarked[0]
    assert best.record is not None
    least_ms, choice = best.record.median_ms, None
    for item in known:
        record = item.record
        assert record is not None
        is_faster = record.sure and record.source != best.record.source and record.median_ms < least_ms
        if is_faster or (not record.sure and record.ci_ms[1] * (1 + MARGIN) < min(least_ms, best.record.ci_ms[0])):
            least_ms, choice = record.median_ms, (item.solver, f"{item.source}, below {_time_text(best)}")
    excess = max(1.0, _excess(benchmarked, predictions))
    for rival in _predicted(known, best, predictions):
        if rival.predicted_ms is not None and rival.predicted_ms * excess < least_ms:
            least_ms = rival.predicted_ms * excess
            choice = rival.solver, _prediction_text(rival, best)
    if choice is None and known[0] is not best:
        return best.solver, best.source
    return choice


def _before_screened(known: Sequence[Evidence], predictions: Mapping[str, Prediction]) -> tuple[str, str] | None:
    first_unmeasured = min(predictions.values(), key=lambda one: one.place)
    names = {item.solver for item in known}
    if first_unmeasured.solver not in names and first_unmeasured.predicted_ms is None and first_unmeasured.by_rule:
        return first_unmeasured.solver, f"nobody was benchmarked, and {_time_text(known[0])} was not compared with it"

    def expected_ms(one: Evidence) -> float:
        assert one.record is not None
        predicted = predictions[one.solver].predicted_ms
        return one.record.median_ms if predicted is None else min(one.record.median_ms, predicted)

    best = min(known, key=lambda one: (expected_ms(one), predictions[one.solver].place))
    least_ms, choice = expected_ms(best), None
    for rival in _predicted(known, best, predictions):
        if rival.predicted_ms is not None and rival.predicted_ms < least_ms:
            least_ms, choice = rival.predicted_ms, (rival.solver, _prediction_text(rival, best))
    if choice is None and best is not known[0]:
        rival_text = _time_text(known[0])
        return best.solver, f"nobody was benchmarked, and it is predicted {least_ms:.3g} ms, below {rival_text}"
    return choice


def _predicted(known: Sequence[Evidence], best: Evidence, predictions: Mapping[str, Prediction]) -> list[Prediction]:
    """Unmeasured solvers that no rule ranks behind the best measured one."""
    names = {item.solver for item in known}
    best_rule_place = predictions[best.solver].place[0]
    return [item for item in predictions.values() if item.solver not in names and item.place[0] <= best_rule_place]


def _excess(benchmarked: Sequence[Evidence], predictions: Mapping[str, Prediction]) -> float:
    """Median over benchmarked solvers of measured over predicted time."""
    log_ratios = []
    for item in benchmarked:
        predicted = predictions[item.solver].predicted_ms
        if predicted and item.record is not None:
            log_ratios.append(math.log(item.record.median_ms / predicted))
    return math.exp(np.median(log_ratios)) if log_ratios else 1.0


def _time_text(best: Evidence) -> str:
    assert best.record is not None
    return f"{best.solver}'s {best.record.words}"


def _prediction_text(rival: Prediction, best: Evidence) -> str:
    ms, text = rival.predicted_ms, _time_text(best)
    return f"no record measured it, and it is predicted {ms:.3g} ms, below {text}, the fastest that was measured"
