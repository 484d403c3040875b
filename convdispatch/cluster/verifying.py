"""The conformance kit on every kind of device that a cluster's workers offer, with a report for each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..measurement.conformance.levels import Case
from ..measurement.conformance.outcome import Outcome, Report
from ..measurement.conformance.verify import select, verify
from ..measurement.shapes import Entry
from ..measurement.shapes import parse as parse_entries
from .running import Run, Task
from .worker import call

CASES_PER_TASK = 40
"""The number of test cases per task: some seconds' work, which is all that is lost with a worker."""


def examine(address: str, own: list[list[Any]], **options: Any) -> dict[str, Any]:
    """Verify some cases in child processes of the worker."""
    entries = [parse_entries(f"{problem} {name} *{count}")[0] for name, problem, count in own]
    return verify(device=address, own=entries, **options).to_json()


def verify_many(
    run: Run,
    plugin: str,
    level: str = "full",
    *,
    own: Sequence[Entry] = (),
    report: Callable[[Case, list[Outcome], int], None] = lambda case, outcomes, total: None,
    **options: Any,
) -> list[Report]:
    """``verify`` on every kind of device: a report for each, sorted by kind; ``options`` are further arguments of it.

    ``report`` is called for each case on each kind. Cases that did not run, because of lost workers, a missing plugin
    or an interrupt, are ``unasked`` in the kind's report; a kind on which no case ran has no report.
    """
    cases = {one.name: one for one in select(level, options.get("case"), own)}
    settings = {"plugin": plugin, "level": level, **options, "jobs": max(1, options.get("jobs") or 1)}
    settings["own"] = [[entry.name, str(entry.problem), entry.count] for entry in own]
    names, kinds = list(cases), sorted(run.kinds)
    unasked = {key: dict.fromkeys(names) for key in kinds}
    reports: dict[str, Report] = {}
    tasks = []
    for part in (names[at : at + CASES_PER_TASK] for at in range(0, len(names), CASES_PER_TASK)):
        request = (examine, {**settings, "only": part})
        tasks += [Task(f"{plugin}, {len(part)} cases", key, call, request, about=part) for key in kinds]

    def hear(task: Task, answer: Any) -> None:
        part = Report.from_json(answer)
        for name in set(task.about) - set(part.unasked):
            del unasked[task.kind][name]
            report(cases[name], [o for o in part.outcomes if o.case == name], len(cases) * len(kinds))
        report_of_kind = reports.setdefault(task.kind, part)
        if report_of_kind is not part:
            report_of_kind.outcomes += part.outcomes
            report_of_kind.seconds = round(report_of_kind.seconds + part.seconds, 2)

    run.called(tasks, hear)
    position = {name: number for number, name in enumerate(names)}
    for key, full_report in reports.items():
        full_report.unasked = list(unasked[key])
        full_report.outcomes.sort(key=lambda outcome: (position[outcome.case], outcome.solver))
    return [reports[key] for key in sorted(reports)]
