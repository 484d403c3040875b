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
from collections.abc import Callable

LEAST_S = 3.0
"""The fewest seconds of work left for which a line is shown."""
WAITED_S = 1.0
"""Seconds after which somebody who waits for the work sees a line, whatever is left."""
_ASSUMED_S = 0.3
"""Seconds that one problem is assumed to take, until some are done."""
_UPDATE_S = 0.5
_lines: list[ProgressLine] = []
"""The lines that are under way, in the order in which they began."""


class ProgressLine(threading.Thread):
    """Shows the line until nothing is left, the block ends or ``ended`` is set, as it is without a terminal.

    ``counts()`` returns how many problems are done and left; ``at_once`` of them are assumed to run in parallel until
    some are done. After ``after_s`` seconds the line is shown, however little is left.
    """

    def __init__(
        self, what: str, counts: Callable[[], tuple[int, int]], at_once: int = 1, after_s: float = math.inf
    ) -> None:
        super().__init__(name="convdispatch-progress", daemon=True)
        self._what, self._counts, self._at_once, self._after_s = what, counts, at_once, after_s
        self.ended, self._stream = threading.Event(), sys.stderr
        with contextlib.suppress(AttributeError, ValueError):
            if self._stream.isatty():
                _lines.append(self)
                self.start()
                return
        self.ended.set()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.ended.set()

    def run(self) -> None:
        """Write the line until ``ended`` is set."""
        begin, width = time.monotonic(), 0
        done_before, _ = self._counts()
        while not self.ended.wait(_UPDATE_S):
            done, left = self._counts()
            if not left:
                break
            finished, elapsed = done - done_before, time.monotonic() - begin
            left_s = left * (elapsed / finished if finished else _ASSUMED_S / self._at_once)
            if _lines[-1] is not self or not (width or left_s >= LEAST_S or elapsed >= self._after_s):
                continue
            text = f"convdispatch: {self._what}, {done} of {done + left}, about {max(1, round(left_s))} s left"
            self._write("\r" + text.ljust(width))
            width = max(width, len(text))
        self.ended.set()
        _lines.remove(self)
        if width:
            self._write("\r" + " " * width + "\r")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
