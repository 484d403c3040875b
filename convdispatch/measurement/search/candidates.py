"""Lists what could compute a problem, in the order of promise, and finds a smaller problem to judge a suspect by.

First what is known to be good: the fastest on record, and what the nearest measured problem runs. Then what is not on
record, each solver's default configuration before the others, cheapest predicted first. Last what is on record and was
slower: so a search that its budget ended goes on, when it is repeated, where it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...api.device import DeviceInfo
from ...api.errors import InvalidProblem
from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...api.results import Result
from ...api.solver import Solver
from ...selection import dispatch
from ...selection.neighbours import neighbours
from ...selection.prepared import Prepared
from ...selection.records.perfdb import perfdb, scope_of
from ...selection.records.timing import Timing

__all__ = ["PROBE_FLOPS", "Entry", "candidates", "choice_name", "smaller"]

KNOWN_FIRST = 3
"""So many of the fastest on record are tried before what is not on record."""
PROBE_FLOPS = 2e8
"""Operations of the smaller problem."""


@dataclass
class Entry:
    """A candidate on its way through a search; ``prepared`` is there as long as it may win."""

    solver: Solver
    config: Mapping[str, Any]
    cost: float | None
    result: Result
    prepared: Prepared | None = None
    timing: Timing | None = None
    broken: bool = False

    @property
    def name(self) -> str:
        return choice_name(self.solver.name, self.config)

    def ends(self, status: str, reason: str) -> None:
        """The candidate is out of the search, or through it."""
        self.result.status, self.result.reason = status, reason
        self.prepared = None

    def breaks(self, status: str, reason: str) -> None:
        """The candidate is unsound: no call may run it, and a time it had counts for nothing."""
        self.broken, self.timing = True, None
        self.say()
        self.ends(status, reason)

    def say(self) -> None:
        """Put the timing into the result."""
        result, timing = self.result, self.timing
        result.median_ms = timing.median if timing else None
        result.p20, result.p80 = (timing.p20, timing.p80) if timing else (None, None)
        result.ci, result.count = (timing.ci, timing.count) if timing else (None, 0)


def choice_name(solver: str, config: Mapping[str, Any]) -> str:
    """One text for a solver with a configuration."""
    return f"{solver} {json.dumps(dict(config), sort_keys=True)}"


def candidates(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> tuple[list[Entry], list[Result]]:
    """Every solver that accepts, with each of its configurations, most promising first; and who refuses, and why."""
    policy = replace(policy, max_error=None, workspace_limit=None)  # both are judged by what is measured
    entries: list[tuple[tuple[int, bool, bool, float], Entry]] = []
    refused = []
    best, slower = _on_record(problem, device, policy)
    for name, solver in dispatch.contestants(problem, device).items():
        answer = dispatch.refusal(solver, problem, device, policy)
        if answer:
            refused.append(Result(name, status="refused", reason=answer[1]))
            continue
        seen = dispatch.visible_problem(solver, problem)
        for place, config in enumerate(list(solver.configs(seen, device)) or [{}]):
            entry = Entry(
                solver, config, solver.cost(seen, device, config), Result(name, dict(config), default=place == 0)
            )
            choice = choice_name(name, config)
            group = best.index(choice) - len(best) if choice in best else int(choice in slower)
            entries.append(((group, place > 0, entry.cost is None, entry.cost or 0.0), entry))
    return [entry for _, entry in sorted(entries, key=lambda pair: pair[0])], refused


def _on_record(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> tuple[list[str], set[str]]:
    """The choices to try first, best first, and those to try last."""
    db = perfdb()
    known = [choice_name(r.solver, r.config) for r in db.lookup(problem, device, scope_of(policy))]
    best = known[:KNOWN_FIRST]
    near = neighbours(db, device).nearest(problem)
    if near is not None and choice_name(near.solver, near.config) not in known:
        best.append(choice_name(near.solver, near.config))
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
