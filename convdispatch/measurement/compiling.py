"""Compiles with a time limit. A compilation cannot be stopped: after its time it continues in the background, and the
end of the process waits for it (``device.background``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from ..device import background

Compiled = TypeVar("Compiled")
_NAME = "convdispatch-compile"


class StillCompiling(Exception):
    """A compilation took longer than its time limit."""


def compiled_within(make: Callable[[], Compiled], seconds: float) -> Compiled:
    """Return ``make()``, called in a new thread. Raises StillCompiling after ``seconds``, and what ``make`` raises."""
    future: Future[Compiled] = Future()

    def work() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    background.start(work, _NAME)
    if not wait([future], seconds).done:
        raise StillCompiling(f"it was still compiling after {seconds:.3g} s")
    return future.result()


def under_way() -> bool:
    """Whether a compilation that exceeded its time limit is still running."""
    return any(thread.name == _NAME for thread in threading.enumerate())
