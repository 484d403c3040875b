"""A progress line on a terminal while kernels compile: how many are done, and the seconds left.

It is shown if standard error is a terminal and more than ``LEAST_S`` seconds are left, or if somebody has waited for
``WAITED_S``; otherwise nothing is printed. Of several lines the one that began last is drawn.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LEAST_S = 3.0
"""The fewest seconds of work left for which a line is shown."""
WAITED_S = 1.0
"""Seconds after which somebody who waits for the work sees a line, whatever is left."""
_ASSUMED_S = 0.3
"""Seconds that one problem is assumed to take, until some are done."""
_UPDATE_S = 0.5
_lines: list[threading.Event] = []
"""The ends of the lines that are under way, in the order in which they began."""


def _line(what: str, done: int, total: int, left_s: float) -> str:
    return f"convdispatch: {what}, {done} of {total}, about {max(1, round(left_s))} s left"


@dataclass
class _Line:
    """What a line says: ``counts()`` returns how many problems are done and left; ``at_once`` of them are assumed to
    run in parallel until some are done. After ``after_s`` seconds the line is shown, however little is left."""

    what: str
    counts: Callable[[], tuple[int, int]]
    at_once: int
    after_s: float


def _watch(stream: Any, line: _Line, ended: threading.Event) -> None:
    """Write the line until ``ended`` is set."""
    begin, width = time.monotonic(), 0
    done_before, _ = line.counts()
    while not ended.wait(_UPDATE_S):
        done, left = line.counts()
        if not left:
            break
        finished, elapsed = done - done_before, time.monotonic() - begin
        seconds_each = elapsed / finished if finished else _ASSUMED_S / line.at_once
        if _lines[-1] is not ended or not (width or seconds_each * left >= LEAST_S or elapsed >= line.after_s):
            continue
        text = _line(line.what, done, done + left, seconds_each * left)
        with contextlib.suppress(OSError, ValueError):
            stream.write("\r" + text.ljust(width))
            stream.flush()
        width = max(width, len(text))
    _lines.remove(ended)
    if width:
        with contextlib.suppress(OSError, ValueError):
            stream.write("\r" + " " * width + "\r")
            stream.flush()


def start(
    what: str, counts: Callable[[], tuple[int, int]], at_once: int = 1, after_s: float = math.inf
) -> threading.Event | None:
    """Show the line until nothing is left, or the returned event is set; returns None without a terminal."""
    try:
        if not sys.stderr.isatty():
            return None
    except (AttributeError, ValueError):
        return None
    ended = threading.Event()
    _lines.append(ended)
    line = _Line(what, counts, at_once, after_s)
    threading.Thread(target=_watch, args=(sys.stderr, line, ended), name="convdispatch-progress", daemon=True).start()
    return ended


@contextlib.contextmanager
def shown(what: str, counts: Callable[[], tuple[int, int]], after_s: float = math.inf) -> Iterator[None]:
    """Shows the progress line while the block runs."""
    ended = start(what, counts, after_s=after_s)
    try:
        yield
    finally:
        if ended is not None:
            ended.set()
