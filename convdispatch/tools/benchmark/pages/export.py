"""Writes a report as CSV, a line for each layer and each thing that was timed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..report import Report
from ..summary import Line, lines

COLUMNS = (
    "net", "layer", "count", "problem", "direction", "type", "what", "name", "config", "status", "median_ms", "p20_ms",
    "p80_ms", "samples", "ci_low_ms", "ci_high_ms", "timed_in", "measured", "offered",
    "gflops", "roofline_ms", "fraction", "error", "error_scaled", "workspace_bytes", "compile_ms", "reason", "device",
)  # fmt: skip


def write_csv(report: Report | Sequence[Report], path: Path) -> None:
    """``what`` is ``best``, ``chosen``, ``candidate`` or ``peer``; ``timed_in`` is the layer's last ``benchmarking``,
    the ``search`` before it, or ``screening``: only times of one sort compare. ``device`` is the kind's key."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for each in [report] if isinstance(report, Report) else report:
            key = each.environment["device"].get("key", "")
            writer.writerows({**row, "device": key} for line in lines(each) for row in _rows(line))


def _rows(line: Line) -> Iterator[dict[str, Any]]:
    layer, measured = line.layer, line.measured
    common = {"net": layer.net, "layer": layer.name, "count": layer.count, "problem": measured.problem}
    common |= dict(zip(("measured", "offered"), measured.coverage))
    common |= {"direction": line.problem.direction, "type": line.kind, "roofline_ms": line.roof_ms}

    def timed(what: str, name: str, thing: Any, **more: Any) -> dict[str, Any]:
        ms = thing.median_ms
        figures = {"median_ms": ms, "p20_ms": thing.p20_ms, "p80_ms": thing.p80_ms, "samples": thing.count}
        low, high = thing.ci_ms or (None, None)
        figures |= {"ci_low_ms": low, "ci_high_ms": high}
        figures |= {"gflops": measured.flops / ms / 1e6 if ms else None}
        figures |= {"fraction": line.roof_ms / ms if ms and line.roof_ms else None}
        figures |= {"error": thing.error, "error_scaled": thing.error_scaled}
        return {**common, "what": what, "name": name, **figures, **more}

    for kind_of_time, choice in (("best", measured.best), ("chosen", measured.chosen)):
        if choice:
            extra = {"config": json.dumps(choice.config), "reason": choice.source, "timed_in": "benchmarking"}
            yield timed(kind_of_time, choice.solver, choice, **extra)
    for row in measured.rows:
        extra = {"config": json.dumps(row.config), "status": row.status, "reason": row.reason}
        if row.median_ms is not None:
            extra |= {"timed_in": "screening" if row.benchmarked is False else "search"}
        yield timed("candidate", row.solver, row, workspace_bytes=row.workspace, compile_ms=row.compile_ms, **extra)
    for peer in measured.peers:
        name = f"{peer.peer} {peer.variant}".strip()
        yield timed("peer", name, peer, reason=peer.reason, timed_in="benchmarking")


def write_trace(net: Any, name: str, device: str, path: Path) -> None:
    """Write a warm run of an inference form as it was measured, gaps included, one event a layer's command."""
    names = {"process_name": f"{name}, one run", "thread_name": "device"}
    events = [{"ph": "M", "name": key, "pid": 1, "tid": 1, "args": {"name": text}} for key, text in names.items()]
    layers = net.layers
    for step, start_ms, ms in net.timeline():
        layer = layers[step]
        event = {"ph": "X", "name": layer.name, "cat": layer.solver or layer.name, "pid": 1, "tid": 1}
        event |= {"ts": round(start_ms * 1e3, 3), "dur": round(ms * 1e3, 3)}
        events.append(event | {"args": {} if layer.problem is None else {"problem": str(layer.problem)}})
    about = {"device": device, "times": "the device's clock, one warm run on one queue"}
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    path.write_text(json.dumps(trace, indent=1) + "\n", encoding="utf-8")
