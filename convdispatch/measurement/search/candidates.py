"""Lists the candidates for a problem, most promising first.

The order is: the incumbent, which would run without the search, because nothing is decided unless it is measured; the
fastest on record, which must prove its time again; every solver's default configuration, of which the cheapest
predicted comes first, then those without a prediction, then the others; further good ones: the next on record, and the
choice of the nearest measured problem; configurations without a record, alternating between predicted and unpredicted
ones; last the slower ones on record. So a repeated search continues where its budget ended it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...api.results import Result
from ...api.solver import Solver
from ...selection.choice import ranking
from ...selection.choice.neighbours import neighbours
from ...selection.prepared import Prepared
from ...selection.records.perfdb import perfdb, scope_of
from ...selection.records.record import choice_text
from ...selection.records.timing import Timing
from ...selection.solver_query import Fault, query

RECORDED_FIRST = 3
"""The number of fastest choices on record that are tried before unmeasured ones."""


@dataclass
class Entry:
    """A candidate and its state in a search; ``prepared`` is its plan, as long as it may win."""

    solver: Solver
    config: Mapping[str, Any]
    cost: float | None
    result: Result
    prepared: Prepared | None = None
    timing: Timing | None = None
    screening: Timing | None = None
    benchmarked: bool = False
    broken: bool = False
    incumbent: bool = False
    """Whether the candidate would run without the search."""

    @property
    def name(self) -> str:
        return choice_text(self.solver.name, self.config)

    def ends(self, status: str, reason: str) -> None:
        """Set the candidate's status and reason, and release its plan."""
        self.result.status, self.result.reason = status, reason
        self.prepared = None

    def breaks(self, status: str, reason: str) -> None:
        """Mark the candidate as broken: no call may run it, and its time is discarded."""
        self.broken, self.timing = True, None
        self.say()
        self.ends(status, reason)

    def say(self) -> None:
        """Copy the timing into the result."""
        result, timing = self.result, self.timing
        result.median_ms = timing.median if timing else None
        result.p20, result.p80 = (timing.p20, timing.p80) if timing else (None, None)
        result.ci, result.count = (timing.ci, timing.count) if timing else (None, 0)
        result.screening_ms, result.benchmarked = (
            self.screening.median if timing and self.screening else None,
            bool(timing) and self.benchmarked,
        )


def candidates(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, incumbent: str | None = None
) -> tuple[list[Entry], list[Result]]:
    """The configurations of every solver that accepts, most promising first, and the solvers that refuse, with reasons.

    ``incumbent`` is the choice that runs without a search; None for the choice under the policy.
    """
    incumbent = _incumbent(problem, device, policy) if incumbent is None else incumbent
    # The search itself judges the error and the workspace by what it measures.
    policy = replace(policy, max_error=None, workspace_limit=None)
    entries, refused = [], []
    for name, solver in ranking.contestants(problem, device).items():
        answer = ranking.refusal(solver, problem, device, policy)
        if answer:
            refused.append(Result(name, status="refused", reason=answer[1]))
            continue
        answers = query(solver, problem, device)
        try:
            configs = ranking.offered(answers, policy)
            costs = [answers.cost(config) for config in configs]
        except Fault as fault:
            refused.append(Result(name, status="refused", reason=str(fault)))
            continue
        for index, config in enumerate(configs):
            result = Result(name, dict(config), default=index == 0)
            entries.append(Entry(solver, config, costs[index], result))
            entries[-1].incumbent = entries[-1].name == incumbent
    return _in_order(entries, *_on_record(problem, device, policy)), refused


def _in_order(entries: list[Entry], best: list[str], slower: set[str]) -> list[Entry]:
    """Sort candidates as the module describes; ``best`` and ``slower`` are what ``_on_record`` returns."""
    entries = sorted(entries, key=lambda entry: entry.cost or 0.0)
    defaults = [entry for entry in entries if entry.result.default]
    others = [entry for entry in entries if not entry.result.default]
    predicted = [entry for entry in defaults if entry.cost is not None]
    defaults = [*predicted[:1], *(entry for entry in defaults if entry.cost is None), *predicted[1:]]
    recorded = [entry for choice in best for entry in others if entry.name == choice]
    unrecorded = [entry for entry in others if entry.name not in slower]
    pairs = itertools.zip_longest(*([e for e in unrecorded if (e.cost is None) is silent] for silent in (False, True)))
    unrecorded = [entry for pair in pairs for entry in pair if entry is not None]
    fastest = [entry for entry in entries if entry.incumbent]
    fastest += [entry for entry in entries if entry.name == best[0]]
    return list({entry.name: entry for entry in (*fastest, *defaults, *recorded, *unrecorded, *others)}.values())


def _incumbent(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> str:
    """Return the choice that a call under the policy runs now; empty if the call would fail."""
    try:
        candidate = ranking.rank(problem, device, policy)[0]
    except ConvDispatchError:
        return ""
    return choice_text(candidate.solver.name, candidate.config)


def _on_record(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> tuple[list[str], set[str]]:
    """The best choices on record, best first (an empty text if there is none), and those to try last."""
    db = perfdb()
    records = db.lookup(problem, device, scope_of(policy))
    recorded = [choice_text(r.solver, r.config) for r in records if not r.inconclusive]
    best = recorded[:RECORDED_FIRST] or [""]
    neighbour = neighbours(db, device).nearest(problem)
    if neighbour is not None and choice_text(neighbour.solver, neighbour.config) not in recorded:
        best.append(choice_text(neighbour.solver, neighbour.config))
    return best, set(recorded[RECORDED_FIRST:])
