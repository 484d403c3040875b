"""Runs a benchmark: the device's ceilings, then problem by problem, written, ended without loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ...api.errors import InvalidArgument
from ...api.problem import ConvProblem
from ...device import runtime
from ...measurement.peaks import measure_roof
from ...measurement.shapes import Entry
from ..progress import progress
from . import peers as peer_modules
from .report import Layer, Report
from .session import Session, environment


def run(
    nets: Mapping[str, Sequence[Entry]],
    device: Any = None,
    *,
    console: Console | None = None,
    keep: Callable[[Report], None] = lambda report: None,
    against: Sequence[str] = (),
    within_s: float | None = None,
    **settings: Any,
) -> Report:
    """Measure the layers of ``nets`` (name to named problems) and return the report.

    ``against`` names peers (other libraries) to compare with, ``settings`` are Session's: ``solver``, ``search``,
    ``budget_ms``, ``every_solver`` and ``isolate``, and the ``command`` that asked. An interrupt and the end of
    ``within_s``, the seconds after which no further problem is begun, end the measuring, not the report, which says
    so. ``keep`` is called with the report after each problem. Raises NoDevice and InvalidArgument.
    """
    device = runtime.find_device(device)
    until = None if within_s is None else time.monotonic() + within_s
    layers = [
        Layer(net, entry.name, str(entry.problem), entry.count)
        for net, entries in nets.items()
        for entry in entries
        if entry.problem.mb
    ]
    if not layers:
        raise InvalidArgument("nothing to measure: no problem has images")
    peer_modules.check(against)
    names = {layer.problem: f"{layer.net} {layer.name}" for layer in layers}
    problems = {text: ConvProblem.parse(text) for text in names}
    now = ""
    with progress(console, "bench", len(names)) as step:
        report = Report(layers, environment(runtime.device_info(device)))
        step("starting", 0)
        peers, missing = peer_modules.load(against, runtime.device_info(device))
        session = Session(device, peers=peers, watch=lambda name: step(f"{now} {name}", 0), **settings)
        report.settings = {**session.settings, "missing_peers": missing}
        try:
            for dtype in sorted({problem.dtype for problem in problems.values()}):
                step(f"ceilings of the device, {dtype}", 0)
                report.roofs[dtype] = asdict(measure_roof(device, dtype))
            for text, problem in problems.items():
                report.time_limit = until is not None and time.monotonic() > until
                if report.time_limit or session.lost:
                    break
                now = f"{names[text]} {problem.direction}"
                step(now, 0)
                report.measured[text] = session.measure(problem)
                keep(report)
                step("", 1)
            report.interrupted = len(report.measured) < len(problems)
        except KeyboardInterrupt:
            report.interrupted = True
    return report
