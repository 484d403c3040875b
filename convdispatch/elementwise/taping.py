"""The tape that is active in this thread, which an operation queries before it records itself (see
``convdispatch.tape``)."""

from __future__ import annotations

import threading
from typing import Any

_threads = threading.local()


def current_tape() -> Any:
    """The tape in force in this thread, or None."""
    return getattr(_threads, "tape", None)


def put_in_force(tape: Any) -> Any:
    """Make ``tape``, or None, the one in force; returns the one that was."""
    outer = current_tape()
    _threads.tape = tape
    return outer


class paused:  # noqa: N801 (a context manager, used like a function)
    """Inside the block no tape is in force: what an operation does within itself is not noted."""

    __slots__ = ("_tape",)

    def __enter__(self) -> None:
        self._tape = put_in_force(None)

    def __exit__(self, *error: object) -> None:
        put_in_force(self._tape)
