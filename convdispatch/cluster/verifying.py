"""The conformance kit on every kind of device that a cluster's workers offer: its cases in parts, one report a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..measurement.conformance.levels import Case
from ..measurement.conformance.outcome import Outcome, Report
from ..measurement.conformance.verify import TIMEOUT_S, select, verify
from ..measurement.shapes import Entry
from ..measurement.shapes import parse as parse_entries
from .connecting import Workers, connected
from .placing import Task
from .running import Run
from .tasks import call

PART = 40
"""Cases a task: some seconds' work, which is all that a dead worker costs."""
START_S = 180.0


def examine(address: str, say: Callable[[str], None], own: list[list[Any]], **given: Any) -> dict[str, Any]:
    """In the worker's child: the report of some cases."""
    entries = [parse_entries(f"{problem} {name} *{count}")[0] for name, problem, count in own]
    report = verify(device=address, own=entries, report=lambda case, found, total: say(case.name), **given)
    return report.to_json()


def verify_many(
    plugin: str,
    level: str = "full",
    client: Any = None,
    devices: Sequence[str] | str | None = None,
    *,
    solver: str | None = None,
    case: str | None = None,
    own: Sequence[Entry] = (),
    derived: bool = False,
    jobs: int = 1,
    timeout_s: float | None = None,
    command: str = "",
    security: Any = None,
    report: Callable[[Case, list[Outcome], int], None] = lambda case, outcomes, total: None,
    tell: Callable[[str], None] = lambda words: None,
) -> list[Report]:
    """``verify`` on every kind of device: a report for each, by the kinds' names.

    ``client``, ``devices`` and ``tell`` are as ``find_many``'s, ``report`` is told of each case on each kind. What was
    not asked, because workers went away, the plugin is not there, or of an interrupt, is ``unasked`` in its kind's
    report; a kind of which nothing was asked has none.
    """
    cases = {one.name: one for one in select(level, case, own)}
    limit = TIMEOUT_S if timeout_s is None else timeout_s
    given = {"plugin": plugin, "level": level, "solver": solver, "case": case, "derived": derived, "jobs": max(1, jobs)}
    given |= {"timeout_s": limit, "command": command}
    given["own"] = [[entry.name, str(entry.problem), entry.count] for entry in own]
    names = list(cases)
    parts = [names[at : at + PART] for at in range(0, len(names), PART)]
    reports: dict[str, Report] = {}
    with connected(client, security) as found:
        run = Run(found, Workers(found, devices), tell=tell)
        kinds = sorted(run.kinds)
        unasked = {key: dict.fromkeys(names) for key in kinds}

        def hear(task: Task, answer: Any) -> None:
            made = Report.from_json(answer)
            for name in set(task.about) - set(made.unasked):
                del unasked[task.kind][name]
                report(cases[name], [o for o in made.outcomes if o.case == name], len(cases) * len(kinds))
            whole = reports.setdefault(task.kind, made)
            if whole is not made:
                whole.outcomes += made.outcomes
                whole.seconds = round(whole.seconds + made.seconds, 2)

        # A case is given to every solver in turn, each within the limit.
        target, silent_s = f"{__name__}:examine", START_S + 20 * limit
        requests = [(part, (target, {**given, "only": part}, silent_s)) for part in parts]
        run.called(
            (Task(f"{plugin}, {len(part)} cases", key, call, request, about=part) for part, request in requests
             for key in kinds), hear,
        )  # fmt: skip
    place = {name: number for number, name in enumerate(names)}
    for key, whole in reports.items():
        whole.unasked = list(unasked[key])
        whole.outcomes.sort(key=lambda outcome: (place[outcome.case], outcome.solver))
    return [reports[key] for key in sorted(reports)]
