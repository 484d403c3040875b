"""Progress is counted and shown: a bar on a terminal; where output is piped, a line every ten seconds."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from convdispatch.tools import progress


def test_lines_come_also_while_a_single_step_takes_long(monkeypatch):
    """A pipe is told every ten seconds, though nothing is counted: here the ten seconds are a millisecond."""
    assert progress.EVERY_S == 10
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)
    words = "a problem with a long name that is wider than the console"
    three, out = threading.Event(), io.StringIO()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            out.write(text)
            if out.getvalue().count(f"{words}\n") >= 3:
                three.set()
            return len(text)

    with progress.progress(Console(file=Out(), width=20), "bench", 4) as step:
        step(words, 1)  # lines may have been told before it
        assert three.wait(30), out.getvalue()
    lines = out.getvalue().splitlines()
    assert {*lines} <= {"bench: 0 of 4, 0 s: ", f"bench: 1 of 4, 0 s: {words}"}, "a line is never cut"


def test_a_terminal_shows_a_bar():
    out = io.StringIO()
    with progress.progress(Console(file=out, width=120, force_terminal=True), "bench", 9) as step:
        step("L1", 1)
        step.resize(4)
    assert "L1" in out.getvalue()
    assert "1/4" in out.getvalue()


def test_no_console_shows_nothing():
    with progress.progress(None, "x", 2) as step:
        step("a", 1)
        step("", 1)
    assert (step.done, step.words) == (2, "a")
