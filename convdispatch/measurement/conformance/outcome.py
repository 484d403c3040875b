"""The results of the conformance kit: an outcome per solver and case, and the report of all, written as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from .levels import held

SCHEMA = 2
THIN_SHARE = 0.1
"""A pass in which less than this fraction of the cases was computed is reported as thin."""


@dataclass
class Outcome:
    """The outcome of one case with one solver."""

    solver: str
    case: str
    problem: str
    level: str
    status: str
    """The outcome of the case: ``passed``, ``refused`` or ``failed``."""
    reason: str = ""
    check: str = ""
    """The name of the check that failed; empty if none did."""
    checks: list[str] = field(default_factory=list)
    """The names of the checks that the solver passed."""
    config: dict[str, Any] = field(default_factory=dict)
    workspace: int | None = None
    errors: dict[str, float] = field(default_factory=dict)
    """The relative error, by the kind of data that it was measured on."""
    seconds: float = 0.0

    def rerun(self, plugin: str) -> str:
        """The command that repeats this case with this solver."""
        level = " --level accuracy" if self.level == "accuracy" else ""
        return f"convdispatch verify {plugin}{level} --solver '{self.solver}' --case '{self.case}'"


@dataclass
class Report:
    """One run of the kit over one plugin on one device."""

    plugin: dict[str, Any]
    """The plugin under test: its ``name``, ``version``, ``source`` and ``solvers``."""
    environment: dict[str, Any]
    level: str
    version: int
    """The version of the case lists (``levels.VERSION``)."""
    digest: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    command: str = ""
    selected: bool = False
    """Whether only some cases or solvers were selected, so that no level can be passed."""
    unasked: list[str] = field(default_factory=list)
    """The names of the cases that did not run, because of the time limit or an interrupt."""
    schema: int = SCHEMA

    def of(self, *, level: str | None = None, solver: str | None = None, status: str | None = None) -> list[Outcome]:
        """The outcomes of a level, solver and status; None matches all."""
        return [
            o
            for o in self.outcomes
            if level in (None, o.level) and solver in (None, o.solver) and status in (None, o.status)
        ]

    @property
    def solvers(self) -> list[str]:
        """Return the names of the solvers that were tested, sorted."""
        return sorted({outcome.solver for outcome in self.outcomes})

    def verdict(self) -> str:
        """``failed``, ``incomplete``, ``nothing computed``, ``passed``, or ``passed, thin: 3 of 900 computed``.

        Passed if every case ran, no solver failed one and at least one was computed; thin if less than THIN_SHARE of
        the cases were computed.
        """
        counts = Counter(outcome.status for outcome in self.outcomes)
        if counts["failed"]:
            return "failed"
        if self.unasked:
            return "incomplete"
        if not counts["passed"]:
            return "nothing computed"
        cases = {outcome.case for outcome in self.outcomes}
        computed = {outcome.case for outcome in self.outcomes if outcome.status == "passed"}
        thin = len(computed) < THIN_SHARE * len(cases)
        return f"passed, thin: {len(computed)} of {len(cases)} computed" if thin else "passed"

    @property
    def passed(self) -> bool:
        """Whether the verdict is a pass, thin or not."""
        return self.verdict().startswith("passed")

    def levels(self) -> dict[str, dict[str, int]]:
        """The number of outcomes by level and status: passed, refused and failed."""
        names = [level for level in (*held(self.level), "own") if self.of(level=level)]
        statuses = ("passed", "refused", "failed")
        return {name: {status: len(self.of(level=name, status=status)) for status in statuses} for name in names}

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, with the verdict and counts by level."""
        return {**asdict(self), "verdict": self.verdict(), "levels": self.levels()}

    def write(self, path: Path) -> None:
        """Write the report as a JSON file."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")


def reasons(outcomes: Iterable[Outcome]) -> list[tuple[str, int]]:
    """The reasons of the refusals with their counts, the most frequent first; without the numbers in them."""
    words = Counter(outcome.reason.partition(", got")[0] for outcome in outcomes if outcome.status == "refused")
    return words.most_common()


def groups(report: Report) -> dict[tuple[str, str], list[Outcome]]:
    """The failures by solver and check, in the order in which they occurred."""
    outcomes_of: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.of(status="failed"):
        outcomes_of.setdefault((outcome.solver, outcome.check), []).append(outcome)
    return outcomes_of


def _problems(outcomes: Iterable[Outcome]) -> Iterable[ConvProblem]:
    for outcome in outcomes:
        try:
            yield ConvProblem.parse(outcome.problem)
        except InvalidProblem:
            # A report of another version of this package may name a kind of problem that this version does not know.
            continue


def errors_by_dtype(outcomes: Iterable[Outcome]) -> str:
    """The worst relative error on real data of each dtype: ``float32 2e-07, float16 4e-04``."""
    worst: dict[str, float] = {}
    for outcome in outcomes:
        error = outcome.errors.get("real")
        if error is not None:
            for problem in _problems([outcome]):
                worst[problem.dtype] = max(error, worst.get(problem.dtype, 0.0))
    return ", ".join(f"{dtype} {error:.0e}" for dtype, error in worst.items())
