"""A whole net as a timeline: its layers' times laid end to end, as a picture; a run and a training step as the device's
own clock saw them, in Chrome's trace format (JSON that chrome://tracing and ui.perfetto.dev open).

A row of the picture is the fastest solvers, what dispatch chose without searching, a peer, or the roofline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..report import Report
from ..summary import Line, family, lines

WIDTH, HEIGHT, LEFT = 1000, 24, 110


@dataclass(frozen=True)
class Span:
    """One run of one layer, milliseconds from the net's beginning."""

    layer: str
    what: str
    """The solver, or the peer's variant."""
    start_ms: float
    ms: float
    line: Line


def rows_of(group: Sequence[Line], peers: Sequence[str]) -> dict[str, list[Span]]:
    """Row to its spans in the net's order, a layer as often as the net runs it; a row without every layer's time is
    left out, for it would seem shorter than it is."""
    rows: dict[str, list[Span]] = {}
    for name in ("fastest", "chosen", *peers, "roofline"):
        spans: list[Span] = []
        at = 0.0
        for line in group:
            what, ms = _timed(line, name)
            if not ms:
                break
            for _ in range(line.layer.count):
                spans.append(Span(line.layer.name, what, at, ms, line))
                at += ms
        else:
            rows[name] = spans
    return rows


def _timed(line: Line, row: str) -> tuple[str, float | None]:
    if row == "roofline":
        return f"bound by {line.bound}", line.roof_ms
    if row == "fastest":
        return line.fastest, line.ms
    if row == "chosen":
        chosen = line.measured.chosen
        return (chosen.solver, chosen.median_ms) if chosen else ("", None)
    peer = line.measured.peer(row)
    return (f"{row} {peer.variant}", peer.median_ms) if peer else ("", None)


def by_net(report: Report) -> dict[tuple[str, str], list[Line]]:
    """The measured layers of each net and direction."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines(report):
        groups.setdefault((line.layer.net, line.problem.direction), []).append(line)
    return groups


def training_events(net: str, spans: Sequence[Sequence[Any]], number: int = 1) -> list[dict[str, Any]]:
    """A training profile's spans (kind, part, start and length in milliseconds by the device's clock)."""
    parts = {"forward_ms": 1, "backward_ms": 2}
    events = [_name("process_name", f"{net}, training", number)]
    events += [_name("thread_name", part.removesuffix("_ms"), number, place) for part, place in parts.items()]
    for kind, part, start, ms in spans:
        events.append(_span(kind, part.removesuffix("_ms"), start * 1e3, ms * 1e3, number, parts[part], {}))
    return events


def write_training_trace(reports: Sequence[Any], path: Path) -> None:
    """The operations of the profiled steps, one process a net."""
    events = [e for number, r in enumerate(reports, 1) for e in training_events(r.net, r.spans, number)]
    _write(path, events, {"device": reports[0].device, "times": "the device's clock at markers around operations"})


def write_measured_trace(net: Any, name: str, device: str, path: Path) -> None:
    """A warm run of an inference form as it was measured, gaps included, one line a layer's command."""
    layers = net.layers
    events = [_name("process_name", f"{name}, one run", 1), _name("thread_name", "device", 1, 1)]
    for step, start, ms in net.timeline():
        layer = layers[step]
        details = {"problem": str(layer.problem)} if layer.problem is not None else {}
        events.append(_span(layer.name, layer.solver or layer.name, start * 1e3, ms * 1e3, 1, 1, details))
    _write(path, events, {"device": device, "times": "the device's clock, one warm run on one queue"})


def _write(path: Path, events: list[dict[str, Any]], about: dict[str, str]) -> None:
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def _name(what: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _span(
    name: str, kind: str, start: float, length: float, process: int, thread: int, details: dict[str, Any]
) -> dict[str, Any]:
    at = {"ts": round(start, 3), "dur": round(length, 3), "pid": process, "tid": thread}
    return {"ph": "X", "name": name, "cat": kind, **at, "args": details}


def chart(rows: Mapping[str, list[Span]], colour: Mapping[str, str]) -> str:
    """The rows as SVG, all at one scale; a span's colour is its algorithm's."""
    if not rows:
        return ""
    whole = max(spans[-1].start_ms + spans[-1].ms for spans in rows.values())
    scale = (WIDTH - LEFT - 90) / whole
    height = len(rows) * HEIGHT + 4
    parts = [f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="The net as a timeline">']
    for place, (row, spans) in enumerate(rows.items()):
        y = place * HEIGHT + 2
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(row)}</text>')
        for span in spans:
            css = colour.get(family(span.what), "var(--peer)")
            title = escape(f"{span.layer}: {span.what}, {span.ms:.4g} ms")
            parts.append(
                f'<rect x="{LEFT + span.start_ms * scale:.2f}" y="{y}" width="{max(0.5, span.ms * scale - 0.6):.2f}" '
                f'height="{HEIGHT - 5}" style="fill:{css}"><title>{title}</title></rect>'
            )
        end = spans[-1].start_ms + spans[-1].ms
        parts.append(f'<text x="{LEFT + end * scale + 6:.1f}" y="{y + 15}">{end:.4g} ms</text>')
    return "".join([*parts, "</svg>"])
