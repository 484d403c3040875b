"""Runs a benchmark: the device's ceilings, then problem by problem, journalled, resumed, ended without loss."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ....api.errors import ConvDispatchError, InvalidArgument
from ....device import runtime
from ....measurement.peaks import measure_roof
from ....measurement.search.precompile import precompile, precompile_s
from ....measurement.shapes import Entry
from ...progress import progress
from ..quiet import wait_quiet
from ..report import Journal, Layer, Measured, Report, load
from . import peers as others
from .environment import environment
from .session import Session
from .worker import OutOfTime, Worker

SILENT_S = 60.0
"""Seconds beside thrice a problem's budget after which a candidate that says nothing hangs."""
RACE_S = 2.0
"""Seconds that a problem takes beside its budget: compilers, benchmarking, the reference; only until one has ended."""


def run(
    nets: Mapping[str, Sequence[Entry]],
    device: Any = None,
    *,
    against: Sequence[str] = (),
    solver: str | None = None,
    search: bool = True,
    budget_ms: float = 3000.0,
    every_solver: bool = False,
    record: bool = False,
    resume: Path | None = None,
    command: str = "",
    console: Console | None = None,
    isolate: bool = False,
    timeout_s: float | None = None,
    within_s: float | None = None,
    jobs: int = 0,
    wait_quiet_s: float = 0.0,
    keep: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Measure the layers of ``nets`` (name to named problems) and answer the report.

    ``against`` names peers; ``resume`` is a journal that is read first and appended to. With ``isolate`` all is
    measured in a child process, of which a candidate that crashes or says nothing for ``timeout_s`` takes one with it.
    With ``jobs`` so many processes compile what will be tried first. An interrupt, and the end of ``within_s`` where
    ``isolate`` is on, end the measuring, not the report, which says so. Before the first problem and between problems
    ``wait_quiet_s`` seconds in all are waited until other work has ended. ``keep`` is called with the report after each
    problem. Raises NoDevice and InvalidArgument.
    """
    until = None if within_s is None else time.monotonic() + within_s
    chosen = runtime.find_device(device)
    info = runtime.device_info(chosen)
    layers = [
        Layer(net, entry.name, str(entry.problem), entry.count)
        for net, entries in nets.items()
        for entry in entries
        if entry.problem.mb
    ]
    if not layers:
        raise InvalidArgument("nothing to measure: no problem has images")
    others.check(against)
    setup = {"solver": solver, "search": search, "record": record}
    setup |= {"budget_ms": budget_ms, "every_solver": every_solver}
    problems = {str(e.problem): e.problem for entries in nets.values() for e in entries if e.problem.mb}
    names = {layer.problem: f"{layer.net} {layer.name}" for layer in layers}
    each_s = RACE_S + (budget_ms / 1e3 if search else 0.0)
    patience = _Patience(wait_quiet_s, info.compute_units)
    with progress(console, "bench", len(names), each_s) as step:
        patience.wait(step)
        seen = environment(info)
        step("starting", 0)
        if isolate:
            silent_s = SILENT_S + 3e-3 * budget_ms if timeout_s is None else timeout_s
            setup_there = {"device": runtime.address(chosen), "peers": list(against), **setup}
            try:
                session: Any = Worker(setup_there, silent_s, until)
            except OutOfTime:
                raise InvalidArgument(f"nothing could be started within {within_s:g} s: give more time") from None
        else:
            session = _Here(chosen, against, setup)
        report = Report(layers, seen, {**session.settings, "command": command, "missing_peers": session.missing})
        try:
            for dtype in sorted({problem.dtype for problem in problems.values()}):
                step(f"ceilings of the device, {dtype}", 0)
                report.roofs[dtype] = session.roof(dtype)
            report.measured = _resumed(resume, report, session.settings)
            journal = Journal(resume, report) if resume else None
            new = [problems[text] for text in names if text not in report.measured]
            if jobs and search and new:
                most_s = precompile_s(len(new), budget_ms)
                if until is not None:
                    most_s = min(most_s, (until - time.monotonic()) / 4)
                precompile(new, runtime.address(chosen), jobs, most_s, solver, step)
            step.begin(done=len(names) - len(new))
            for problem in new:
                patience.wait(step)
                title = f"{names[str(problem)]} {problem.direction}"
                step(title, 0)
                found = session.measure(problem, lambda at, title=title: step(f"{title} {at}", 0))
                report.measured[str(problem)] = found
                if journal:
                    journal.add(found)
                keep(report)
                step("", 1)
            if new:
                _measure_again(session, report, step)
        except (KeyboardInterrupt, OutOfTime) as ended:
            report.interrupted, report.time_limit = True, isinstance(ended, OutOfTime)
        finally:
            session.close()
    report.environment["waited_s"] = round(patience.waited_s, 1)
    return report


def _measure_again(session: Any, report: Report, step: Callable[[str, int], None]) -> None:
    """The ceilings once more: on a machine that others use they come out otherwise than at the beginning."""
    for dtype, roof in report.roofs.items():
        step(f"ceilings of the device once more, {dtype}", 0)
        with contextlib.suppress(ConvDispatchError, OutOfTime):  # what was measured stands; nothing is known of its end
            again = session.roof(dtype)
            report.again[dtype] = {n: again[n]["rate"] for n, peak in roof.items() if _both(peak, again.get(n))}


def _both(first: Any, again: Any) -> bool:
    return isinstance(first, dict) and isinstance(again, dict)


class _Patience:
    """Seconds that are left to wait for quiet."""

    def __init__(self, most_s: float, processors: int) -> None:
        self._most_s, self._processors, self.waited_s = most_s, processors, 0.0

    def wait(self, step: Callable[[str, int], None]) -> None:
        """Until other work has ended, while seconds are left."""
        left = self._most_s - self.waited_s
        if left > 0:
            self.waited_s += wait_quiet(left, self._processors, say=lambda words: step(words, 0))


class _Here:
    """What Worker answers, in this process."""

    def __init__(self, device: Any, against: Sequence[str], setup: Mapping[str, Any]) -> None:
        found, self.missing = others.load(against, runtime.device_info(device))
        self._device, self._session = device, Session(device, peers=found, **setup)
        self.settings = self._session.settings

    def roof(self, dtype: str) -> dict[str, Any]:
        return asdict(measure_roof(self._device, dtype))

    def measure(self, problem: Any, say: Callable[[str], None]) -> Measured:
        return self._session.measure(problem)

    def close(self) -> None:
        pass


def _resumed(path: Path | None, report: Report, settings: Mapping[str, Any]) -> dict[str, Measured]:
    """What an earlier run measured of the same problems on the same device with the same solvers, peers and search."""
    if path is None or not path.exists():
        return {}
    earlier = load(path)
    seen, today = earlier.environment.get("device"), report.environment["device"]["key"]
    then = seen.get("key") if isinstance(seen, dict) else None
    if then != today:
        raise InvalidArgument(f"{path} was measured on {then}, this device is {today}: name another file")
    wanted = {layer.problem for layer in report.layers}
    return {text: found for text, found in earlier.measured.items() if text in wanted and found.settings == settings}
