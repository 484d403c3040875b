"""What remains is told from the first moment, by a clock that lies; where output is piped, a line every ten seconds."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from convdispatch.tools import progress
from convdispatch.tools.progress import Progress, duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_expectation_tells_what_remains_before_anything_has_ended():
    clock = Clock()
    counted = Progress(10, 6.0, clock)
    assert counted.remaining_s == 60
    clock.now += 4
    assert counted.remaining_s == pytest.approx(56)
    assert counted.line("bench") == "bench: 0 of 10, 4 s, about 56 s left: "


def test_what_steps_took_replaces_the_expectation():
    clock = Clock()
    counted = Progress(101, 1.0, clock)
    for _ in range(100):
        clock.now += 20
        counted("on", 1)
    assert counted.remaining_s == pytest.approx(20, rel=0.02)
    clock.now += 15
    assert counted.remaining_s == pytest.approx(5, abs=0.5)
    clock.now += 500
    assert counted.remaining_s == 0, "of the last step nothing more is known"


def test_a_step_that_takes_long_makes_the_others_no_shorter():
    clock = Clock()
    counted = Progress(4, 1.0, clock)
    clock.now += 30
    assert counted.remaining_s == pytest.approx(90)


def test_without_an_expectation_the_first_step_tells():
    clock = Clock()
    counted = Progress(3, None, clock)
    clock.now += 5
    assert counted.remaining_s is None
    assert counted.line("verify").startswith("verify: 0 of 3, 5 s, what remains is not known yet")
    counted("one", 1)
    assert counted.remaining_s == pytest.approx(10)


def test_preparation_and_what_was_known_already_count_for_nothing():
    clock = Clock()
    counted = Progress(12, 5.0, clock)
    clock.now += 300
    counted.begin(done=10)
    assert (counted.done, counted.remaining_s) == (10, 10)
    clock.now += 5
    counted("a", 1)
    assert counted.remaining_s == pytest.approx(5)
    counted("b", 1)
    assert counted.remaining_s == 0
    assert counted.elapsed_s == 305


def test_a_last_step_that_is_overdue_says_so():
    """ "about 0 s left" for a minute is no answer."""
    clock = Clock()
    counted = Progress(1, 5.0, clock)
    clock.now += 4
    assert counted.remains == "about 1 s left"
    clock.now += 60
    assert counted.line("find") == "find: 0 of 1, 1:04, it takes longer than expected: "
    counted("", 1)
    assert counted.remains == "about 0 s left"


@pytest.mark.parametrize(("seconds", "words"), [(0, "0 s"), (59.4, "59 s"), (185, "3:05"), (7209, "2:00:09")])
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words


def test_lines_come_also_while_a_single_step_takes_long(monkeypatch):
    """A pipe is told every ten seconds, though nothing is counted: here the ten seconds are a millisecond."""
    assert progress.EVERY_S == 10
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    words = "a problem with a long name that is wider than the console"
    three, out = threading.Event(), io.StringIO()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            out.write(text)
            if out.getvalue().count(f"{words}\n") >= 3:
                three.set()
            return len(text)

    with progress.progress(Console(file=Out(), width=20), "bench", 4, 3000.0) as step:
        step(words, 0)  # lines may have been told before it
        assert three.wait(30), out.getvalue()
    lines = out.getvalue().splitlines()
    begin = "bench: 0 of 4, 0 s, about 3:20:00 left: "
    assert {*lines} <= {begin, begin + words}, "a line is never cut"


def test_a_terminal_shows_what_remains_at_once():
    out = io.StringIO()
    with progress.progress(Console(file=out, width=120, force_terminal=True), "bench", 4, 30.0) as step:
        step("L1", 0)
    assert "2:00 left" in out.getvalue()


def test_no_console_shows_nothing():
    with progress.progress(None, "x", 2) as step:
        step("a", 1)
        step.begin(done=1)
    assert step.remaining_s == 0
