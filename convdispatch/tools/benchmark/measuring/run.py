"""Runs a benchmark: the device's ceilings, then problem by problem, written, resumed, ended without loss."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ....api.errors import ConvDispatchError, InvalidArgument
from ....api.problem import ConvProblem
from ....device import runtime
from ....measurement.peaks import measure_roof
from ....measurement.search.precompile import precompile, precompile_s
from ....measurement.shapes import Entry
from ...progress import Progress, progress
from ..quiet import wait_quiet
from ..report import Layer, Measured, Report, load, write_json
from . import peers as peer_modules
from .session import Session, environment
from .worker import OutOfTime, Worker

SILENT_S = 60.0
"""Seconds, in addition to three times a problem's budget, after which a candidate without a message counts as hung."""
RACE_S = 2.0
"""The first estimate of the seconds that a problem takes beyond its budget, for compilers, benchmarking and the
reference."""


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
    resume: Path | None = None
    """The report of an earlier run, which is read first and then written anew after each problem."""
    command: str = ""
    isolate: bool = False
    """Whether everything is measured in a child process, so that a candidate that crashes ends only that process."""
    timeout_s: float | None = None
    """Seconds without a message after which a candidate in a child process counts as hung."""
    within_s: float | None = None
    """The most seconds that the whole run takes; needs ``isolate``."""
    jobs: int = 0
    """The number of processes that compile candidates ahead of their measurement."""
    wait_quiet_s: float = 0.0
    """The most seconds in sum that the run waits, before and between problems, for other work to end."""

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
        self._waited_s = 0.0

    def measure(self, console: Console | None, keep: Callable[[Report], None]) -> Report:
        options, info = self._options, runtime.device_info(self._device)
        each_s = RACE_S + (options.budget_ms / 1e3 if options.search else 0.0)
        with progress(console, "bench", len(self._names), each_s) as step:
            self._wait_quiet(step, info.compute_units)
            environment_values = environment(info)
            step("starting", 0)
            session = self._session()
            settings = {**session.settings, "command": options.command, "missing_peers": session.missing}
            report = Report(self._layers, environment_values, settings)
            try:
                for dtype in sorted({problem.dtype for problem in self._problems.values()}):
                    step(f"ceilings of the device, {dtype}", 0)
                    report.roofs[dtype] = session.roof(dtype)
                report.measured = _resumed(options.resume, report, session.settings)
                new = [problem for text, problem in self._problems.items() if text not in report.measured]
                self._compile_ahead(new, step)
                step.begin(done=len(self._names) - len(new))
                for problem in new:
                    self._wait_quiet(step, info.compute_units)
                    title = f"{self._names[str(problem)]} {problem.direction}"
                    step(title, 0)
                    measured = session.measure(problem, lambda at, title=title: step(f"{title} {at}", 0))
                    report.measured[str(problem)] = measured
                    if options.resume:
                        write_json(report, options.resume)
                    keep(report)
                    step("", 1)
                if new:
                    _measure_again(session, report, step)
            except (KeyboardInterrupt, OutOfTime) as ended:
                report.interrupted, report.time_limit = True, isinstance(ended, OutOfTime)
            finally:
                session.close()
        report.environment["waited_s"] = round(self._waited_s, 1)
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

    def _wait_quiet(self, step: Progress, processors: int) -> None:
        """Wait until other work has ended, while seconds are left."""
        remaining_s = self._options.wait_quiet_s - self._waited_s
        if remaining_s > 0:
            self._waited_s += wait_quiet(remaining_s, processors, say=lambda words: step(words, 0))


def _measure_again(session: Any, report: Report, step: Callable[[str, int], None]) -> None:
    """Measure the ceilings once more: on a machine that others use they differ from those at the beginning."""
    for dtype, roof in report.roofs.items():
        step(f"ceilings of the device once more, {dtype}", 0)
        # If the second measurement of the ceilings fails, the first one holds.
        with contextlib.suppress(ConvDispatchError, OutOfTime):
            ceilings_at_end = session.roof(dtype)
            rates = {name: (peak, ceilings_at_end.get(name)) for name, peak in roof.items()}
            both = {name: pair for name, pair in rates.items() if all(isinstance(peak, dict) for peak in pair)}
            report.again[dtype] = {name: last_peak["rate"] for name, (_, last_peak) in both.items()}


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


def _resumed(path: Path | None, report: Report, settings: Mapping[str, Any]) -> dict[str, Measured]:
    """What an earlier run measured of the same problems on the same device with the same solvers, peers and search."""
    if path is None or not path.exists():
        return {}
    earlier = load(path)
    earlier_device, device_key = earlier.environment.get("device"), report.environment["device"]["key"]
    earlier_key = earlier_device.get("key") if isinstance(earlier_device, dict) else None
    if earlier_key != device_key:
        raise InvalidArgument(f"{path} was measured on {earlier_key}, this device is {device_key}: name another file")
    problems = {layer.problem for layer in report.layers}
    return {text: found for text, found in earlier.measured.items() if text in problems and found.settings == settings}
