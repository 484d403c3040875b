"""Steps that an interrupt does not cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM are only noted; at its end their handlers hear of them.

    For short blocks whose halves must not part, such as to record what was measured and to tell of it. Handlers run in
    the main thread alone, so in other threads nothing is done; a handler that is no function of Python's stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[tuple[int, Any]] = []
    before = {number: handler for number in _ENDING if callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, lambda number, frame: noted.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in noted[:1]:
            before[signal.Signals(number)](number, frame)
