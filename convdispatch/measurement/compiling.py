"""Compiles with a time limit. A compilation cannot be stopped: past its time it is left to end by itself, and the end
of the process waits for it (``device.background``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from ..device import background

Made = TypeVar("Made")
_NAME = "convdispatch-compile"


class StillCompiling(Exception):
    """A compilation took longer than it may."""


def compiled_within(make: Callable[[], Made], seconds: float) -> Made:
    """``make()``, in a thread of its own. Raises StillCompiling after ``seconds``, and what ``make`` raises."""
    made: Future[Made] = Future()

    def work() -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    background.start(work, _NAME)
    if not wait([made], seconds).done:
        raise StillCompiling(f"it was still compiling after {seconds:.3g} s")
    return made.result()


def under_way() -> bool:
    """Whether a compilation that was given up is still at work."""
    return any(thread.name == _NAME for thread in threading.enumerate())
