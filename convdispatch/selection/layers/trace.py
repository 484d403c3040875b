"""Writes a line for each convolution: problem, solver, plan's workspace and host time; ``replay`` repeats the calls,
and ``bench --from`` measures them.

``convdispatch,1,<problem>,<solver>,<device>,<workspace bytes>,<microseconds in enqueue>``. The lines go to standard
error, or are appended to the file that ``CONVDISPATCH_TRACE`` names, which begins with a header. With
``CONVDISPATCH_TRACE_WAIT=1`` each call is waited for, and one more field holds the microseconds until its result was
complete.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator
from typing import Any

from convdispatch.api import hookimpl, settings

PREFIX = "convdispatch,1,"
HEADER = "convdispatch,version,problem,solver,device,workspace_bytes,enqueue_us,done_us\n"
"""The first line of a new file, for programs that read CSV."""


@hookimpl(wrapper=True)
def convdispatch_enqueue(queue: Any, problem: Any, solver: Any, plan: Any) -> Generator[None, Any, Any]:
    """Time the call and write its line, also when it fails."""
    start = time.perf_counter_ns()
    outcome, done = "failed", ""
    try:
        event = yield
        outcome = solver.name
        enqueue_us = (time.perf_counter_ns() - start) / 1000
        if settings.TRACE_WAIT.value():
            # A failed wait is not this layer's fault, and the caller's own wait raises the same error.
            with contextlib.suppress(Exception):
                event.wait()
                done = f",{(time.perf_counter_ns() - start) / 1000:.1f}"
        return event
    finally:
        if outcome == "failed":
            enqueue_us = (time.perf_counter_ns() - start) / 1000
        write(f"{PREFIX}{problem},{outcome},{queue.device.name.strip()},{plan.workspace_size},{enqueue_us:.1f}{done}")


def write(line: str) -> None:
    """Write a line to the trace's destination by a single call, so that lines of several threads do not mix."""
    target = settings.TRACE.value()
    if target is None:
        sys.stderr.write(line + "\n")
        return
    with target.open("a", encoding="utf-8") as file:
        file.write((HEADER if file.tell() == 0 else "") + line + "\n")
