"""The conformance kit on every kind of device that a cluster's workers offer: its cases in parts, one report a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..measurement.conformance.levels import Case
from ..measurement.conformance.outcome import Outcome, Report
from ..measurement.conformance.verify import TIMEOUT_S, select, verify
from ..measurement.shapes import Entry
from ..measurement.shapes import parse as parse_entries
from .placing import Task
from .running import Run
from .tasks import call

PART = 40
"""The number of test cases per task: some seconds' work, which is all that is lost with a worker."""
START_S = 180.0


def examine(address: str, say: Callable[[str], None], own: list[list[Any]], **given: Any) -> dict[str, Any]:
    """Verify some cases; runs in the worker's child process."""
    entries = [parse_entries(f"{problem} {name} *{count}")[0] for name, problem, count in own]
    report = verify(device=address, own=entries, report=lambda case, found, total: say(case.name), **given)
    return report.to_json()


def verify_many(
    run: Run,
    plugin: str,
    level: str = "full",
    *,
    own: Sequence[Entry] = (),
    report: Callable[[Case, list[Outcome], int], None] = lambda case, outcomes, total: None,
    **options: Any,
) -> list[Report]:
    """``verify`` on every kind of device: a report for each, by the kinds' names; ``options`` are further ones of it.

    ``report`` is told of each case on each kind. Cases that did not run, because workers went away, the plugin is not
    there, or of an interrupt, are ``unasked`` in the kind's report; a kind on which no case ran has none.
    """
    cases = {one.name: one for one in select(level, options.get("case"), own)}
    limit = TIMEOUT_S if options.get("timeout_s") is None else options["timeout_s"]
    given = {"plugin": plugin, "level": level, **options, "timeout_s": limit, "jobs": max(1, options.get("jobs") or 1)}
    given["own"] = [[entry.name, str(entry.problem), entry.count] for entry in own]
    names, kinds = list(cases), sorted(run.kinds)
    unasked = {key: dict.fromkeys(names) for key in kinds}
    reports: dict[str, Report] = {}
    # A case takes the time of all solvers in turn, each within the limit, so the child may be silent for 20 limits.
    target, silent_s = f"{__name__}:examine", START_S + 20 * limit
    tasks = []
    for part in (names[at : at + PART] for at in range(0, len(names), PART)):
        request = (target, {**given, "only": part}, silent_s)
        tasks += [Task(f"{plugin}, {len(part)} cases", key, call, request, about=part) for key in kinds]

    def hear(task: Task, answer: Any) -> None:
        part = Report.from_json(answer)
        for name in set(task.about) - set(part.unasked):
            del unasked[task.kind][name]
            report(cases[name], [o for o in part.outcomes if o.case == name], len(cases) * len(kinds))
        whole = reports.setdefault(task.kind, part)
        if whole is not part:
            whole.outcomes += part.outcomes
            whole.seconds = round(whole.seconds + part.seconds, 2)

    run.called(tasks, hear)
    place = {name: number for number, name in enumerate(names)}
    for key, whole in reports.items():
        whole.unasked = list(unasked[key])
        whole.outcomes.sort(key=lambda outcome: (place[outcome.case], outcome.solver))
    return [reports[key] for key in sorted(reports)]
