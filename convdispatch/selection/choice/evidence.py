"""What is known of a problem before anything runs: measured records, and the nearest measured neighbour's decision."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchWarning
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ..records.perfdb import perfdb, scope_of
from ..records.record import Record, stale
from ..solver_query import canonical
from .neighbours import MARGIN, Cost, Neighbour, Offer, neighbours
from .provenance import current

Configs = Callable[[str], list[Mapping[str, Any]]]
"""The configurations that a solver offers for the problem in question."""


@dataclass(frozen=True)
class Evidence:
    """The reason why a configuration is preferred: its source as text, and the record that supports it."""

    solver: str
    config: Mapping[str, Any]
    source: str
    record: Record | None = None


def admitted_records(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> list[Record]:
    """The records of a problem that a policy may follow. Under ``batch_invariant`` the user's own records are left out,
    because they may have been measured for one batch only."""
    records = perfdb().lookup(problem, device, scope_of(policy))
    return [record for record in records if record.source != "user"] if policy.is_invariant else records


def measured(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, accepted: Mapping[str, Solver], configs: Configs
) -> list[Evidence]:
    """The best record of each accepted solver that the policy admits, fastest first.

    A record whose provenance changed still counts, because nothing better is known; its source says what is in doubt,
    and ``find`` measures it again. A record's configuration is used only if the solver still offers it.
    """
    evidence: dict[str, Evidence] = {}
    for record in admitted_records(problem, device, policy):
        if record.inconclusive or record.solver not in accepted or record.solver in evidence:
            continue
        if not _admitted(record, policy):
            continue
        doubt = stale(record, current(record.solver, device))
        config = dict(record.config)
        if canonical(config) not in map(canonical, configs(record.solver)):
            _warn_of_unknown_config(record, doubt)
            continue
        source = f"measured {record.words}" + (f", {record.source} record" if record.source else "")
        source += f"; in doubt: {doubt}" if doubt else ""
        evidence[record.solver] = Evidence(record.solver, config, source, record)
    return list(evidence.values())


def from_neighbours(
    problem: ConvProblem, device: DeviceInfo, offers: Mapping[str, Offer], first: str, configs: Configs, cost: Cost
) -> Evidence | None:
    """The solver that runs best by the nearest measured problems; ``first`` is what would run without them."""
    near = neighbours(perfdb(), device).choose(problem, offers, first)
    if near is None:
        return None
    config = near.config if offers[near.solver].cost is None else _neighbour_config(problem, near, configs, cost)
    # A record's configuration may not exist for this problem: the most similar one that the solver offers runs.
    config = _most_similar(config, configs(near.solver))
    return Evidence(near.solver, config, f"neighbour: {near}")


def _neighbour_config(problem: ConvProblem, near: Neighbour, configs: Configs, cost: Cost) -> Mapping[str, Any]:
    """The configuration to run: the solver's own choice, unless another one took MARGIN less time at the neighbour and
    is expected to take MARGIN less for ``problem``.

    The expected time is that at the neighbour, times the ratio of the predictions for the two problems.
    """
    if not near.tried or near.tried[-1].median_ms <= near.tried[0].median_ms * (1 + MARGIN):
        return near.config  # The measured times of the configurations differ too little to matter.
    measured, fastest = ConvProblem.parse(near.problem), near.tried[0]
    similar = _most_similar(near.config, [record.config for record in near.tried])
    default = next(record for record in near.tried if record.config == similar)
    if default.median_ms <= fastest.median_ms * (1 + MARGIN):
        return near.config
    config = _most_similar(fastest.config, configs(near.solver))

    def expected_ms(record: Record, config: Mapping[str, Any]) -> float:
        there_s, here_s = cost(near.solver, measured, record.config), cost(near.solver, problem, config)
        return record.median_ms * (here_s / there_s if here_s and there_s else 1.0)

    return config if expected_ms(fastest, config) * (1 + MARGIN) < expected_ms(default, near.config) else near.config


def error_reason(solver: Solver, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> str | None:
    """Why ``policy(max_error=...)`` keeps a solver out, or None.

    The measured error decides. Unmeasured, an exact solver is taken for a plain sum, whose error on random data grows
    with the root of its length; any other has to be measured first.
    """
    limit = policy.max_error
    if limit is None:
        return None
    errors = [r.error for r in perfdb().lookup(problem, device, scope_of(policy)) if r.solver == solver.name]
    measured_errors = [error for error in errors if error is not None]
    if measured_errors:
        least_error = min(measured_errors)
        return None if least_error <= limit else f"measured error {least_error:.2g}, policy(max_error={limit:.2g})"
    if not solver.exact:
        return f"its error is not measured, and policy(max_error={limit:.2g}) wants it: run find"
    expected = _plain_sum_error(problem)
    return None if expected <= limit else f"a plain sum errs by about {expected:.2g}, policy(max_error={limit:.2g})"


def _plain_sum_error(problem: ConvProblem) -> float:
    from ...api.dtypes import ALL_DTYPES, INTEGERS

    if problem.dtype in INTEGERS:
        return 0.0
    epsilon = ALL_DTYPES[problem.written_dtype].epsilon
    return epsilon * (2.0 + 0.1 * math.sqrt(problem.flops / max(1, 2 * math.prod(problem.out_shape))))


_warned_solvers: set[str] = set()


def _warn_of_unknown_config(record: Record, doubt: str | None) -> None:
    """Warn, once for each solver, that a record's configuration is not among those that the solver offers."""
    if record.solver in _warned_solvers:
        return
    _warned_solvers.add(record.solver)
    why = f" ({doubt})" if doubt else ""
    warnings.warn(
        f"a record for {record.problem} is passed over, and others like it: {record.solver} does not offer its "
        f"configuration {canonical(record.config)}{why}; convdispatch find measures anew",
        ConvDispatchWarning,
        stacklevel=2,
    )


def _admitted(record: Record, policy: Policy) -> bool:
    if policy.repeats and record.deterministic is False:
        return False
    if policy.max_error is not None and (record.error is None or record.error > policy.max_error):
        return False
    return policy.workspace_limit is None or record.workspace <= policy.workspace_limit


def _most_similar(config: Mapping[str, Any], offered: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the offered configuration that is most similar to ``config``: texts are equal or not, numbers compare by
    their logarithms, because loop depths and splits follow from a problem's sizes."""
    if not offered or canonical(config) in map(canonical, offered):
        return dict(config) if offered else {}
    target = _flat_values(config)

    def config_distance(choice: Mapping[str, Any]) -> float:
        values = _flat_values(choice)
        return sum(_value_distance(target.get(key), values.get(key)) for key in target.keys() | values.keys())

    # Of equally similar configurations ``min`` returns the first, which the solver offers as the more promising one.
    return min(offered, key=config_distance)


def _flat_values(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= _flat_values(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return leaves


def _value_distance(left: Any, right: Any) -> float:
    """The distance of two values: 0 if equal, 1 for texts that differ, less for numbers within a factor of 16."""
    if all(type(value) in (int, float) and value > 0 for value in (left, right)):
        return min(1.0, abs(math.log2(left / right)) / 4)
    # The type is compared too, because True == 1 in Python.
    return float(type(left) is not type(right) or left != right)


def measured_s(problem: ConvProblem, device: DeviceInfo, solver: str) -> float | None:
    """Seconds of a solver's fastest record for a problem under no policy; None where there is none."""
    times_ms = [r.median_ms for r in perfdb().lookup(problem, device, scope_of(Policy())) if r.solver == solver]
    return min(times_ms) / 1e3 if times_ms else None


SCREENED_MARGIN = 0.1
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

    ``known`` are the measured solvers in the order of their records, ``predictions`` those of all that accept. Solvers
    are compared by one time each: the benchmarked time; for a solver that was only screened the screening time, or its
    prediction if no solver was benchmarked and the prediction is less, because screening overestimates; for an
    unmeasured solver its prediction, times the factor by which benchmarked solvers exceeded theirs. An unmeasured
    solver ranks first only if it also precedes the measured ones in the order without records. One that predicts
    nothing ranks after measured ones, unless a rule names it and no solver was benchmarked. Another source's record of
    a solver that the first source did not measure counts like a prediction.
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
        if is_faster or (
            not record.sure and record.ci_ms[1] * (1 + SCREENED_MARGIN) < min(least_ms, best.record.ci_ms[0])
        ):
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
