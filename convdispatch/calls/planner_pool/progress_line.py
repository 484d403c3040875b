"""A progress line on a terminal while kernels compile: how many are done, and the seconds left.

It is shown if standard error is a terminal and more than ``LEAST_S`` seconds are left; otherwise nothing is printed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

LEAST_S = 3.0
"""The fewest seconds of work left for which a line is shown."""
_ASSUMED_S = 0.3
"""Seconds that one problem is assumed to take, until some are done."""
_UPDATE_S = 0.5


def _line(what: str, done: int, total: int, left_s: float) -> str:
    return f"convdispatch: {what}, {done} of {total}, about {max(1, round(left_s))} s left"


def _watch(stream: Any, what: str, counts: Callable[[], tuple[int, int]], at_once: int, ended: threading.Event) -> None:
    """Write the line until ``ended`` is set. ``counts()`` returns how many problems are done and left; ``at_once`` of
    them are assumed to run in parallel until some are done."""
    begin, width = time.monotonic(), 0
    done_before, _ = counts()
    while not ended.wait(_UPDATE_S):
        done, left = counts()
        if not left:
            break
        finished = done - done_before
        seconds_each = (time.monotonic() - begin) / finished if finished else _ASSUMED_S / at_once
        if not width and seconds_each * left < LEAST_S:
            continue
        text = _line(what, done, done + left, seconds_each * left)
        with contextlib.suppress(OSError, ValueError):
            stream.write("\r" + text.ljust(width))
            stream.flush()
        width = max(width, len(text))
    if width:
        with contextlib.suppress(OSError, ValueError):
            stream.write("\r" + " " * width + "\r")
            stream.flush()


def start(what: str, counts: Callable[[], tuple[int, int]], at_once: int = 1) -> threading.Event | None:
    """Show the line until nothing is left, or the returned event is set; returns None without a terminal."""
    try:
        if not sys.stderr.isatty():
            return None
    except (AttributeError, ValueError):
        return None
    ended = threading.Event()
    threading.Thread(
        target=_watch, args=(sys.stderr, what, counts, at_once, ended), name="convdispatch-progress", daemon=True
    ).start()
    return ended


@contextlib.contextmanager
def shown(what: str, counts: Callable[[], tuple[int, int]], at_once: int = 1) -> Iterator[None]:
    """Shows the progress line while the block runs."""
    ended = start(what, counts, at_once)
    try:
        yield
    finally:
        if ended is not None:
            ended.set()
