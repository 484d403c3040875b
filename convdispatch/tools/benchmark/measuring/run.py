"""Runs a benchmark: the device's ceilings, then problem by problem, written, ended without loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from ....api.errors import InvalidArgument
from ....api.problem import ConvProblem
from ....device import runtime
from ....measurement.peaks import measure_roof
from ....measurement.search.precompile import precompile, precompile_s
from ....measurement.shapes import Entry
from ...progress import Progress, progress
from ..report import Layer, Measured, Report
from . import peers as peer_modules
from .session import Session, environment
from .worker import OutOfTime, Worker

SILENT_S = 60.0
"""Seconds, in addition to three times a problem's budget, after which a candidate without a message counts as hung."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run: what it measures, and for how long."""

    against: Sequence[str] = ()
    """The names of the peers (other libraries) to compare with."""
    solver: str | None = None
    """A glob that selects solvers by name; None for all."""
    search: bool = True
    """Whether every solver is measured, or only the immediate choice."""
    budget_ms: float = 3000.0
    every_solver: bool = False
    """Whether the budget may be exceeded until every solver's first configuration was measured."""
    record: bool = False
    """Whether the results are stored as records, from which dispatch then chooses."""
    command: str = ""
    isolate: bool = False
    """Whether everything is measured in a child process, so that a candidate that crashes ends only that process."""
    timeout_s: float | None = None
    """Seconds without a message after which a candidate in a child process counts as hung."""
    within_s: float | None = None
    """The most seconds that the whole run takes; needs ``isolate``."""
    jobs: int = 0
    """The number of processes that compile candidates ahead of their measurement."""

    @property
    def session(self) -> dict[str, Any]:
        """The options that are arguments of a Session."""
        return {name: getattr(self, name) for name in ("solver", "search", "budget_ms", "every_solver", "record")}


def run(
    nets: Mapping[str, Sequence[Entry]],
    device: Any = None,
    *,
    console: Console | None = None,
    keep: Callable[[Report], None] = lambda report: None,
    **options: Any,
) -> Report:
    """Measure the layers of ``nets`` (name to named problems) and return the report; ``options`` are Options' fields.

    An interrupt and the end of ``within_s`` end the measuring, not the report, which says so. ``keep`` is called with
    the report after each problem. Raises NoDevice and InvalidArgument.
    """
    return _Run(nets, runtime.find_device(device), Options(**options)).measure(console, keep)


class _Run:
    def __init__(self, nets: Mapping[str, Sequence[Entry]], device: Any, options: Options) -> None:
        self._device, self._options = device, options
        self._until = None if options.within_s is None else time.monotonic() + options.within_s
        entries = [(net, entry) for net, entries in nets.items() for entry in entries if entry.problem.mb]
        if not entries:
            raise InvalidArgument("nothing to measure: no problem has images")
        peer_modules.check(options.against)
        self._layers = [Layer(net, entry.name, str(entry.problem), entry.count) for net, entry in entries]
        self._problems = {str(entry.problem): entry.problem for _, entry in entries}
        self._names = {layer.problem: f"{layer.net} {layer.name}" for layer in self._layers}

    def measure(self, console: Console | None, keep: Callable[[Report], None]) -> Report:
        options, info = self._options, runtime.device_info(self._device)
        with progress(console, "bench", len(self._names)) as step:
            environment_values = environment(info)
            step("starting", 0)
            session = self._session()
            settings = {**session.settings, "command": options.command, "missing_peers": session.missing}
            report = Report(self._layers, environment_values, settings)
            try:
                for dtype in sorted({problem.dtype for problem in self._problems.values()}):
                    step(f"ceilings of the device, {dtype}", 0)
                    report.roofs[dtype] = session.roof(dtype)
                self._compile_ahead(list(self._problems.values()), step)
                for problem in self._problems.values():
                    title = f"{self._names[str(problem)]} {problem.direction}"
                    step(title, 0)
                    measured = session.measure(problem, lambda at, title=title: step(f"{title} {at}", 0))
                    report.measured[str(problem)] = measured
                    keep(report)
                    step("", 1)
            except (KeyboardInterrupt, OutOfTime) as ended:
                report.interrupted, report.time_limit = True, isinstance(ended, OutOfTime)
            finally:
                session.close()
        return report

    def _session(self) -> Any:
        options = self._options
        if not options.isolate:
            return _LocalSession(self._device, options)
        silent_s = SILENT_S + 3e-3 * options.budget_ms if options.timeout_s is None else options.timeout_s
        setup = {"device": runtime.address(self._device), "peers": list(options.against), **options.session}
        try:
            return Worker(setup, silent_s, self._until)
        except OutOfTime:
            message = f"nothing could be started within {options.within_s:g} s: give more time"
            raise InvalidArgument(message) from None

    def _compile_ahead(self, problems: list[ConvProblem], step: Progress) -> None:
        options = self._options
        if options.jobs and options.search and problems:
            most_s = precompile_s(len(problems), options.budget_ms)
            if self._until is not None:
                most_s = min(most_s, (self._until - time.monotonic()) / 4)
            precompile(problems, runtime.address(self._device), options.jobs, most_s, options.solver, step)


class _LocalSession:
    """A Session in this process, with the methods of a Worker."""

    def __init__(self, device: Any, options: Options) -> None:
        peers, self.missing = peer_modules.load(options.against, runtime.device_info(device))
        self._device, self._session = device, Session(device, peers=peers, **options.session)
        self.settings = self._session.settings

    def roof(self, dtype: str) -> dict[str, Any]:
        return asdict(measure_roof(self._device, dtype))

    def measure(self, problem: ConvProblem, say: Callable[[str], None]) -> Measured:
        return self._session.measure(problem)

    def close(self) -> None:
        pass
