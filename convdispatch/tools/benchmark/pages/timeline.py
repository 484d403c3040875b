"""Writes a run of a net as a timeline, which Chrome's about:tracing and Perfetto show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
