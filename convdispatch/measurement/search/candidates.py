"""Lists what could compute a problem, in the order of promise, and finds a smaller problem to judge a suspect by.

First the incumbent, which would run without the search: nothing is decided unless it was measured too. Then the fastest
on record, for what it claims must stand in the same rounds. Then every solver's default configuration, before anyone's
second: the cheapest predicted, those of solvers that predict nothing, the other predictions. Then what is known to be
good: the next on record, and what the nearest measured problem runs. Then what is not on record, by turns the cheapest
predicted and of those who predict nothing. Last what is on record and was slower: so a search that its budget ended
goes on, when it is repeated, where it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError, InvalidProblem
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

KNOWN_FIRST = 3
"""The number of fastest choices on record that are tried before unmeasured ones."""
PROBE_FLOPS = 2e8
"""The most operations of the smaller problem on which a suspiciously slow candidate is tried."""


@dataclass
class Entry:
    """A candidate on its way through a search; ``prepared`` is there as long as it may win."""

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
        """Note what became of the candidate, and release its plan."""
        self.result.status, self.result.reason = status, reason
        self.prepared = None

    def breaks(self, status: str, reason: str) -> None:
        """Note that the candidate is unsound: no call may run it, and its time is discarded."""
        self.broken, self.timing = True, None
        self.say()
        self.ends(status, reason)

    def say(self) -> None:
        """Put the timing into the result."""
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
    """Return the configurations of every solver that accepts, most promising first; and the solvers that refuse, with
    reasons.

    ``incumbent`` is the choice that runs without a search; None for what runs under the policy.
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
            configs = answers.invariant() if policy.is_invariant else answers.configs
            costs = [answers.cost(config) for config in configs]
        except Fault as fault:
            refused.append(Result(name, status="refused", reason=str(fault)))
            continue
        for place, config in enumerate(configs):
            result = Result(name, dict(config), default=place == 0)
            entries.append(Entry(solver, config, costs[place], result))
            entries[-1].incumbent = entries[-1].name == incumbent
    return _in_order(entries, *_on_record(problem, device, policy)), refused


def _in_order(entries: list[Entry], best: list[str], slower: set[str]) -> list[Entry]:
    """The order that the module describes; ``best`` and ``slower`` as ``_on_record`` returns them."""
    entries = sorted(entries, key=lambda entry: entry.cost or 0.0)
    firsts = [entry for entry in entries if entry.result.default]
    others = [entry for entry in entries if not entry.result.default]
    predicted = [entry for entry in firsts if entry.cost is not None]
    firsts = [*predicted[:1], *(entry for entry in firsts if entry.cost is None), *predicted[1:]]
    known = [entry for choice in best for entry in others if entry.name == choice]
    new = [entry for entry in others if entry.name not in slower]
    turns = itertools.zip_longest(*([e for e in new if (e.cost is None) is silent] for silent in (False, True)))
    new = [entry for pair in turns for entry in pair if entry is not None]
    fastest = [entry for entry in entries if entry.incumbent]
    fastest += [entry for entry in entries if entry.name == best[0]]
    return list({entry.name: entry for entry in (*fastest, *firsts, *known, *new, *others)}.values())


def _incumbent(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> str:
    """Return the choice that a call under the policy runs now; empty if the call would fail."""
    try:
        first = ranking.rank(problem, device, policy)[0]
    except ConvDispatchError:
        return ""
    return choice_text(first.solver.name, first.config)


def _on_record(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> tuple[list[str], set[str]]:
    """The choices that are known to be good, best first, empty first where none is on record; and those to try last."""
    db = perfdb()
    records = db.lookup(problem, device, scope_of(policy))
    known = [choice_text(r.solver, r.config) for r in records if not r.inconclusive]
    best = known[:KNOWN_FIRST] or [""]
    near = neighbours(db, device).nearest(problem)
    if near is not None and choice_text(near.solver, near.config) not in known:
        best.append(choice_text(near.solver, near.config))
    return best, set(known[KNOWN_FIRST:])


def smaller(problem: ConvProblem) -> ConvProblem | None:
    """A problem of the same kind with at most PROBE_FLOPS operations: fewer images, then smaller images; or None."""
    for change in _shrinking(problem):
        try:
            problem = problem.replace(**change(problem))
        except InvalidProblem:
            continue
        if problem.flops <= PROBE_FLOPS:
            return problem
    return None


def _shrinking(problem: ConvProblem) -> Iterator[Any]:
    yield lambda now: {"mb": 1}
    for _ in range(8):
        for axis in problem.axes:
            yield lambda now, axis=axis: {"i" + axis: max(1, getattr(now, "i" + axis) // 2)}
