"""Blocks of code that an interrupt does not interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM are only noted; their handlers are called at its end.

    For short blocks that must run completely, such as recording a result and reporting it. Handlers run only in the
    main thread, so in other threads nothing is changed; nor is a handler that is no Python function.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[tuple[int, Any]] = []
    handlers = {number: handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: noted.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in noted[:1]:
            handlers[signal.Signals(number)](number, frame)
