"""Verifies a plugin and makes the report: the cases of a level, or some of them, on one device."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
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
    """The cases of a level and a vendor's own, if a glob matches their names. Raises InvalidArgument if none does."""
    all_cases = [*cases(level), *named(list(own))]
    chosen = [case for case in all_cases if pattern is None or fnmatch.fnmatchcase(case.name, pattern)]
    if not chosen:
        raise InvalidArgument(f"no case of level {level} is named {pattern!r}; --list shows them")
    return chosen


def verify(
    plugin: str,
    level: str = "full",
    device: Any = None,
    *,
    solver: str | None = None,
    case: str | None = None,
    own: Sequence[shapes.Entry] = (),
    derived: bool = False,
    jobs: int = 0,
    first: bool = False,
    timeout_s: float | None = None,
    until: float | None = None,
    command: str = "",
    report: Callable[[Case, list[Outcome], int], None] = lambda case, outcomes, total: None,
) -> Report:
    """Run a plugin's solvers through the cases of ``level``; ``report`` is called with each case as it ends.

    ``solver`` and ``case`` are globs that select some; ``own`` are further problems. ``jobs`` is the number of child
    processes, which may crash, and which are killed when a solver takes longer than ``timeout_s`` (TIMEOUT_S) for a
    case; with 0 the cases run in this process. With ``first`` the run ends at the first case that fails, and no level
    is passed. Cases that did not run before ``until`` (``time.monotonic``) or an interrupt are listed as ``unasked``.
    Raises InvalidArgument for a plugin, solver or case that does not exist, and NoDevice.
    """
    began = time.perf_counter()
    entry, chosen = find_plugin(plugin), runtime.find_device(device)
    selected = select(level, case, own)
    result = Report(
        plugin={"name": entry.name, "version": entry.version, "solvers": list(entry.solvers)},
        environment=environment(runtime.device_info(chosen)),
        level=level,
        version=VERSION,
        digest=digest(),
        command=command,
        selected=solver is not None or case is not None or first,
    )
    info = runtime.device_info(chosen)
    result.plugin["text"] = next((current(name, info).kernel_hash for name in entry.solvers), "")
    settings = {"plugin": plugin, "solver": solver, "derived": derived}
    Kit(**settings, device=chosen)  # Kit raises an error for an unknown solver before any case runs.

    def heard(done: Case, outcomes: list[Outcome]) -> bool:
        result.outcomes += outcomes
        report(done, outcomes, len(selected))
        return not (first and any(outcome.status == "failed" for outcome in outcomes))

    if jobs:
        limit = TIMEOUT_S if timeout_s is None else timeout_s
        unasked = run(selected, settings | {"device": runtime.address(chosen)}, jobs, limit, heard, until)
    else:
        unasked = _run_here(Kit(**settings, device=chosen), selected, heard, until)
    result.unasked = [] if first else unasked
    position = {item.name: number for number, item in enumerate(selected)}
    result.outcomes.sort(key=lambda outcome: (position[outcome.case], outcome.solver))
    result.seconds = round(time.perf_counter() - began, 2)
    return result


def _run_here(kit: Kit, batch: list[Case], heard: Callable[[Any, Any], bool], until: float | None) -> list[str]:
    """Run the cases in this process; returns the names of those that were not reported."""
    unreported = [case.name for case in batch]
    try:
        for case in batch:
            if until is not None and time.monotonic() > until:
                break
            outcomes = kit.run(case)
            unreported.remove(case.name)
            if not heard(case, outcomes):
                break
    except KeyboardInterrupt:
        pass
    return unreported
