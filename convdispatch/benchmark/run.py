"""Runs a benchmark: the device's ceilings, then problem by problem, journalled, resumed, interrupted without loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .. import runtime
from ..api.errors import InvalidArgument
from ..shapes import Entry
from . import peers as others
from .environment import environment
from .peaks import measure_roof
from .regret import regret_report
from .report import Journal, Layer, Measured, Report, load
from .session import Session

__all__ = ["run"]


def run(
    nets: Mapping[str, Sequence[Entry]],
    device: Any = None,
    *,
    against: Sequence[str] = (),
    solver: str | None = None,
    search: bool = True,
    budget_ms: float = 3000.0,
    record: bool = False,
    regret: bool = False,
    resume: Path | None = None,
    command: str = "",
    console: Console | None = None,
) -> Report:
    """Measure the layers of ``nets`` (name to named problems) and answer the report.

    ``against`` names peers; ``resume`` is a journal that is read first and appended to. An interrupt ends the
    measuring, not the report, which says so. Raises NoDevice and InvalidArgument.
    """
    chosen = runtime.find_device(device)
    info = runtime.device_info(chosen)
    found, missing = others.load(against, info)
    session = Session(chosen, solver=solver, peers=found, search=search, budget_ms=budget_ms, record=record)
    layers = [
        Layer(net, entry.name, str(entry.problem), entry.count)
        for net, entries in nets.items()
        for entry in entries
        if entry.problem.mb
    ]
    if not layers:
        raise InvalidArgument("nothing to measure: no problem has images")
    report = Report(layers, environment(info), {**session.settings, "command": command, "missing_peers": missing})
    problems = {entry.problem for entries in nets.values() for entry in entries if entry.problem.mb}
    with _progress(console, len({layer.problem for layer in layers})) as step:
        try:
            for dtype in sorted({problem.dtype for problem in problems}):
                step(f"ceilings of the device, {dtype}", 0)
                report.roofs[dtype] = asdict(measure_roof(chosen, dtype))
            report.measured = _resumed(resume, report, session)
            journal = Journal(resume, report) if resume else None
            for text, name in {layer.problem: f"{layer.net} {layer.name}" for layer in layers}.items():
                problem = next(p for p in problems if str(p) == text)
                step(f"{name} {problem.direction}", 0)
                if text not in report.measured:
                    report.measured[text] = session.measure(problem)
                    if journal:
                        journal.add(report.measured[text])
                step("", 1)
            if regret:
                report.regret = regret_report(session, report, lambda words: step(words, 0))
        except KeyboardInterrupt:
            report.interrupted = True
    return report


def _resumed(path: Path | None, report: Report, session: Session) -> dict[str, Measured]:
    """What an earlier run measured of the same problems on the same device with the same solvers, peers and search."""
    if path is None or not path.exists():
        return {}
    earlier = load(path)
    then, today = earlier.environment["device"]["key"], report.environment["device"]["key"]
    if then != today:
        raise InvalidArgument(f"{path} was measured on {then}, this device is {today}: name another file")
    wanted = {layer.problem for layer in report.layers}
    return {
        text: found for text, found in earlier.measured.items() if text in wanted and found.settings == session.settings
    }


@contextmanager
def _progress(console: Console | None, total: int) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = Progress(*columns, TimeRemainingColumn(), console=console, disable=console is None, transient=True)
    with shown as progress:
        task = progress.add_task("bench", total=total)

        def step(words: str, advance: int) -> None:
            progress.update(task, advance=advance, **({"description": words[:60]} if words else {}))

        yield step
