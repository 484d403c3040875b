"""The benchmark on every kind of device that a cluster's workers offer: layers in parts, one report a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....cluster.running import Run, Task
from ....cluster.worker import call
from ....measurement.shapes import Entry
from ....measurement.shapes import parse as parse_entries
from ..report import Report

PROBLEMS_PER_TASK = 8
"""The number of problems per task, which also measures the device's ceilings; a worker's death loses one task."""


def measure(address: str, nets: dict[str, list[list[Any]]], **options: Any) -> Any:
    """Measure some layers, each in a child process of the worker."""
    from .run import run

    parsed = {net: [_entry(*each) for each in entries] for net, entries in nets.items()}
    return run(parsed, address, isolate=True, **options).to_json()


def _entry(name: str, problem: str, count: int) -> Entry:
    return parse_entries(f"{problem} layer *{count}")[0]._replace(name=name)


def benchmark_by_workers(
    nets: Mapping[str, Sequence[Entry]],
    cluster: Run,
    *,
    say: Callable[[str, int, int], None] = lambda words, done, total: None,
    **options: Any,
) -> list[Report]:
    """``run`` on every kind of device, a report for each, by the kinds' names; ``options`` are ``run``'s.

    ``say`` hears of each part. Of a part that failed the layers are missing in the report, which says that it is
    interrupted, and so after an interrupt from the keyboard.
    """
    problems = list(dict.fromkeys(e.problem for entries in nets.values() for e in entries if e.problem.mb))
    parts = [set(problems[start : start + PROBLEMS_PER_TASK]) for start in range(0, len(problems), PROBLEMS_PER_TASK)]
    waiting = dict.fromkeys(sorted(cluster.kinds), len(parts))
    reports: dict[str, Report] = {}
    tasks = []
    for part in parts:
        part_nets = {
            net: [[e.name, str(e.problem), e.count] for e in entries if e.problem in part]
            for net, entries in nets.items()
        }
        part_nets = {net: entries for net, entries in part_nets.items() if entries}
        request = (measure, {"nets": part_nets, **options})
        tasks += [Task(f"{len(part)} problems", key, call, request) for key in waiting]

    def hear(task: Task, answer: Any) -> None:
        waiting[task.kind] -= 1
        _merge(reports, task.kind, Report.from_json(answer))
        say(f"{task.words} on {task.kind}", 1, len(tasks))

    cluster.called(tasks, hear)
    order = [(net, e.name, str(e.problem)) for net, entries in nets.items() for e in entries]
    order_of_layers = {layer: number for number, layer in enumerate(order)}
    for key, report in reports.items():
        report.interrupted = report.interrupted or waiting[key] > 0
        report.layers.sort(key=lambda layer: order_of_layers[layer.net, layer.name, layer.problem])
    return [reports[key] for key in sorted(reports)]


def _merge(reports: dict[str, Report], kind: str, part: Report) -> None:
    """Add a part to its kind's report; a ceiling that was measured more than once is the highest."""
    merged = reports.setdefault(kind, part)
    if merged is part:
        return
    merged.layers += part.layers
    merged.measured |= part.measured
    merged.interrupted = merged.interrupted or part.interrupted
    # The end of one part of a run must not be compared with the beginning of another part.
    merged.again.clear()
    for dtype, roof in part.roofs.items():
        ceilings = merged.roofs.setdefault(dtype, roof)
        for name, peak in roof.items():
            if isinstance(peak, dict) and peak["rate"] > (ceilings.get(name) or {"rate": 0})["rate"]:
                ceilings[name] = peak
