"""Compiles with a time limit. A compilation cannot be stopped: past its time it is left to end by itself."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

__all__ = ["StillCompiling", "compiled_within", "under_way"]

EXIT_S = 60.0
"""Most seconds that the end of a process waits for compilations."""
Made = TypeVar("Made")
_threads: set[threading.Thread] = set()
_registered: list[bool] = []
_lock = threading.Lock()


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
        finally:
            with _lock:
                _threads.discard(threading.current_thread())

    # Not a pool: Python waits for a pool's threads before it ends, and this one may never.
    thread = threading.Thread(target=work, name="convdispatch-compile", daemon=True)
    with _lock:
        if not _registered:
            atexit.register(_wait)
            _registered.append(True)
        _threads.add(thread)
    thread.start()
    if not wait([made], seconds).done:
        raise StillCompiling(f"it was still compiling after {seconds:.3g} s")
    return made.result()


def under_way() -> bool:
    """Whether a compilation that was given up is still at work."""
    with _lock:
        return bool(_threads)


def _wait() -> None:
    """At exit: a compiler at work while its library is taken down aborts the process ("pure virtual method called")."""
    until = time.monotonic() + EXIT_S
    with _lock:
        waiting = list(_threads)
    for thread in waiting:
        thread.join(max(0.0, until - time.monotonic()))
