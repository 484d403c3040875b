"""Verifies a plugin and makes the report: the cases of a level, or some of them, on one device."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...api.errors import InvalidArgument
from ...device import runtime
from ...selection.choice.provenance import current
from .. import shapes
from ..run_reports import environment
from .levels import VERSION, Case, cases, digest, named
from .outcome import Outcome, Report
from .session import Kit, find_plugin
from .workers import run

TIMEOUT_S = 120.0
"""The most seconds that one solver may take for one case; most of that is compilation."""


def select(level: str, pattern: str | None = None, own: Sequence[shapes.Entry] = ()) -> list[Case]:
    """The cases of a level and a vendor's own, of which a glob names some. Raises InvalidArgument for none."""
    every = [*cases(level), *named(list(own))]
    found = [case for case in every if pattern is None or fnmatch.fnmatchcase(case.name, pattern)]
    if not found:
        raise InvalidArgument(f"no case of level {level} is named {pattern!r}; --list shows them")
    return found


def verify(
    plugin: str,
    level: str = "full",
    device: Any = None,
    *,
    solver: str | None = None,
    case: str | None = None,
    own: Sequence[shapes.Entry] = (),
    only: Collection[str] | None = None,
    derived: bool = False,
    jobs: int = 0,
    first: bool = False,
    timeout_s: float | None = None,
    until: float | None = None,
    command: str = "",
    report: Callable[[Case, list[Outcome], int], None] = lambda case, outcomes, total: None,
) -> Report:
    """Run a plugin's solvers through the cases of ``level``; ``report`` is told of each case as it ends.

    ``solver`` and ``case`` are globs that choose some; ``own`` are further problems; ``only`` names cases of these
    that are a part of a whole. With ``jobs`` the cases run in so
    many child processes, each of which may die without harm, and is killed when a solver takes longer than
    ``timeout_s`` (TIMEOUT_S) for a case; with 0 in this process. With ``first`` the run ends at the first case that
    fails, and no level is judged. What ``until`` (``time.monotonic``) or an interrupt leaves over is ``unasked``.
    Raises InvalidArgument for a plugin, solver or case that does not exist, and NoDevice.
    """
    began = time.perf_counter()
    entry, chosen = find_plugin(plugin), runtime.find_device(device)
    selected = [one for one in select(level, case, own) if only is None or one.name in only]
    made = Report(
        plugin={"name": entry.name, "version": entry.version, "solvers": list(entry.solvers)},
        environment=environment(runtime.device_info(chosen)),
        level=level,
        version=VERSION,
        digest=digest(),
        command=command,
        selected=solver is not None or case is not None or first,
    )
    info = runtime.device_info(chosen)
    made.plugin["text"] = next((current(name, info).kernel_hash for name in entry.solvers), "")
    settings = {"plugin": plugin, "solver": solver, "derived": derived}
    Kit(**settings, device=chosen)  # Kit raises an error for an unknown solver before any case runs.

    def heard(done: Case, outcomes: list[Outcome]) -> bool:
        made.outcomes += outcomes
        report(done, outcomes, len(selected))
        return not (first and any(outcome.status == "failed" for outcome in outcomes))

    if jobs:
        limit = TIMEOUT_S if timeout_s is None else timeout_s
        left = run(selected, settings | {"device": runtime.address(chosen)}, jobs, limit, heard, until)
    else:
        left = _here(Kit(**settings, device=chosen), selected, heard, until)
    made.unasked = [] if first else left
    place = {one.name: number for number, one in enumerate(selected)}
    made.outcomes.sort(key=lambda outcome: (place[outcome.case], outcome.solver))
    made.seconds = round(time.perf_counter() - began, 2)
    return made


def _here(kit: Kit, batch: list[Case], heard: Callable[[Case, list[Outcome]], bool], until: float | None) -> list[str]:
    """Run the cases in this process; returns the names of those that were not reported."""
    left = [one.name for one in batch]
    try:
        for one in batch:
            if until is not None and time.monotonic() > until:
                break
            found = kit.run(one)
            left.remove(one.name)
            if not heard(one, found):
                break
    except KeyboardInterrupt:
        pass
    return left
