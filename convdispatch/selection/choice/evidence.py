"""What is known of a problem before anything runs: measured records, and the nearest measured neighbour's decision."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchWarning
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...api.solver import Solver
from ..records.perfdb import perfdb, scope_of
from ..records.record import Record, stale
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
    """What is on record of a problem. A choice for every batch follows neither from what the user measured under
    another policy, perhaps for one batch and while the program ran, nor from neighbours."""
    records = perfdb().lookup(problem, device, scope_of(policy))
    return [record for record in records if record.source != "user"] if policy.is_invariant else records


def measured(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, accepted: Mapping[str, Solver], configs: Configs
) -> list[Evidence]:
    """The records of accepted solvers that the policy admits, fastest first, each solver's best only; how they stand
    among the unmeasured says ``record_coverage``.

    A record whose provenance changed still counts, for it is the best there is to go by; its source says the doubt,
    and ``find`` will measure it again. Its configuration is used only if the solver still offers it.
    """
    found: dict[str, Evidence] = {}
    for record in admitted_records(problem, device, policy):
        if record.inconclusive or record.solver not in accepted or record.solver in found:
            continue
        if not _admitted(record, policy):
            continue
        doubt = stale(record, current(record.solver, device))
        config = dict(record.config)
        if not _offered(config, configs(record.solver)):
            _pass_over(record, doubt)
            continue
        source = f"measured {record.words}" + (f", {record.source} record" if record.source else "")
        source += f"; in doubt: {doubt}" if doubt else ""
        found[record.solver] = Evidence(record.solver, config, source, record)
    return list(found.values())


def from_neighbours(
    problem: ConvProblem, device: DeviceInfo, offers: Mapping[str, Offer], first: str, configs: Configs, cost: Cost
) -> Evidence | None:
    """The solver that runs best by the nearest measured problems; ``first`` is what would run without them."""
    near = neighbours(perfdb(), device).choose(problem, offers, first)
    if near is None:
        return None
    config = near.config if offers[near.solver].cost is None else _tuned(problem, near, configs, cost)
    # A record's configuration may not exist for this problem: the most similar one that the solver offers runs.
    config = _closest(config, configs(near.solver))
    return Evidence(near.solver, config, f"neighbour: {near}")


def _tuned(problem: ConvProblem, near: Neighbour, configs: Configs, cost: Cost) -> Mapping[str, Any]:
    """The solver's own choice, unless its fastest there took MARGIN less and promises as much here.

    A configuration's time there, over what is predicted for it there, multiplies what is predicted for its like here.
    """
    if not near.tried or near.tried[-1].median_ms <= near.tried[0].median_ms * (1 + MARGIN):
        return near.config  # The measured times of the configurations differ too little to matter.
    measured, fastest = ConvProblem.parse(near.problem), near.tried[0]
    alike = _closest(near.config, [record.config for record in near.tried])
    own = next(record for record in near.tried if record.config == alike)
    if own.median_ms <= fastest.median_ms * (1 + MARGIN):
        return near.config
    config = _closest(fastest.config, configs(near.solver))

    def promised(record: Record, config: Mapping[str, Any]) -> float:
        there, here = cost(near.solver, measured, record.config), cost(near.solver, problem, config)
        return record.median_ms * (here / there if here and there else 1.0)

    return config if promised(fastest, config) * (1 + MARGIN) < promised(own, near.config) else near.config


def error_reason(solver: Solver, problem: ConvProblem, device: DeviceInfo, policy: Policy) -> str | None:
    """Why ``policy(max_error=...)`` keeps a solver out, or None.

    The measured error decides. Unmeasured, an exact solver is taken for a plain sum, whose error on random data grows
    with the root of its length; any other has to be measured first.
    """
    limit = policy.max_error
    if limit is None:
        return None
    errors = [r.error for r in perfdb().lookup(problem, device, scope_of(policy)) if r.solver == solver.name]
    known = [error for error in errors if error is not None]
    if known:
        least = min(known)
        return None if least <= limit else f"measured error {least:.2g}, policy(max_error={limit:.2g})"
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


_passed_over: set[str] = set()


def _pass_over(record: Record, doubt: str | None) -> None:
    """Warn, once for each solver, that a record's configuration is not among those that the solver offers."""
    if record.solver in _passed_over:
        return
    _passed_over.add(record.solver)
    why = f" ({doubt})" if doubt else ""
    warnings.warn(
        f"a record for {record.problem} is passed over, and others like it: {record.solver} does not offer its "
        f"configuration {json.dumps(dict(record.config), sort_keys=True)}{why}; convdispatch find measures anew",
        ConvDispatchWarning,
        stacklevel=2,
    )


def _admitted(record: Record, policy: Policy) -> bool:
    if policy.repeats and record.deterministic is False:
        return False
    if policy.max_error is not None and (record.error is None or record.error > policy.max_error):
        return False
    return policy.workspace_limit is None or record.workspace <= policy.workspace_limit


def _closest(config: Mapping[str, Any], offered: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the offered configuration that is most similar to ``config``: words compare equal or not, numbers by their
    logarithms.

    Depths and splits follow from a problem's sizes and are seldom the same for two, but forms are.
    """
    if not offered or _offered(config, offered):
        return dict(config) if offered else {}
    wanted = _leaves(config)

    def apart(choice: Mapping[str, Any]) -> float:
        found = _leaves(choice)
        return sum(_apart(wanted.get(key), found.get(key)) for key in wanted.keys() | found.keys())

    # Of equally similar configurations ``min`` returns the first, which the solver offers as the more promising one.
    return min(offered, key=apart)


def _leaves(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= _leaves(value, f"{before}{key}.") if isinstance(value, Mapping) else {before + key: value}
    return leaves


def _apart(one: Any, other: Any) -> float:
    """Return the distance of two values: 0 if equal, 1 for words that differ, less for numbers within a factor of
    16."""
    if all(type(value) in (int, float) and value > 0 for value in (one, other)):
        return min(1.0, abs(math.log2(one / other)) / 4)
    return float(type(one) is not type(other) or one != other)  # The type is compared too, because True == 1 in Python.


def _offered(config: Mapping[str, Any], offered: list[Mapping[str, Any]]) -> bool:
    wanted = json.dumps(dict(config), sort_keys=True)
    return any(json.dumps(dict(choice), sort_keys=True) == wanted for choice in offered)


def measured_s(problem: ConvProblem, device: DeviceInfo, solver: str) -> float | None:
    """Seconds of a solver's fastest record for a problem under no policy; None where there is none."""
    found = [r.median_ms for r in perfdb().lookup(problem, device, scope_of(Policy())) if r.solver == solver]
    return min(found) / 1e3 if found else None
