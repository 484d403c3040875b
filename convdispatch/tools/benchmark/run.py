"""Runs a benchmark: the device's ceilings, then problem by problem, written, ended without loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from ...api.errors import InvalidArgument
from ...device import runtime
from ...measurement.peaks import measure_roof
from ...measurement.shapes import Entry
from ..progress import progress
from . import peers as peer_modules
from .report import Layer, Report
from .session import Session, environment


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
    command: str = ""
    isolate: bool | None = None
    """Whether each candidate is tried in a child process first; None: those of plugins that were not verified here."""
    within_s: float | None = None
    """The seconds after which no further problem is begun."""

    @property
    def session(self) -> dict[str, Any]:
        """The options that are arguments of a Session."""
        names = ("solver", "search", "budget_ms", "every_solver", "isolate")
        return {name: getattr(self, name) for name in names}


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
        self._now = ""
        self._names = {layer.problem: f"{layer.net} {layer.name}" for layer in self._layers}

    def measure(self, console: Console | None, keep: Callable[[Report], None]) -> Report:
        options, info = self._options, runtime.device_info(self._device)
        with progress(console, "bench", len(self._names)) as step:
            environment_values = environment(info)
            step("starting", 0)
            peers, missing = peer_modules.load(options.against, info)
            session = Session(
                self._device, peers=peers, watch=lambda name: step(f"{self._now} {name}", 0), **options.session
            )
            settings = {**session.settings, "command": options.command, "missing_peers": missing}
            report = Report(self._layers, environment_values, settings)
            try:
                for dtype in sorted({problem.dtype for problem in self._problems.values()}):
                    step(f"ceilings of the device, {dtype}", 0)
                    report.roofs[dtype] = asdict(measure_roof(self._device, dtype))
                for text, problem in self._problems.items():
                    report.time_limit = self._until is not None and time.monotonic() > self._until
                    if report.time_limit or session.lost:
                        break
                    self._now = f"{self._names[text]} {problem.direction}"
                    step(self._now, 0)
                    report.measured[text] = session.measure(problem)
                    keep(report)
                    step("", 1)
                report.interrupted = len(report.measured) < len(self._problems)
            except KeyboardInterrupt:
                report.interrupted = True
        return report
