"""Work beside the caller's threads, and how it ends with the process.

A compiler or a kernel at work while the process's libraries are taken down aborts it ("terminate called without an
active exception", "pure virtual method called"). So when the interpreter ends, after its last line or by an interrupt,
nothing new begins aside, and what is under way is waited for. A second interrupt ends the process at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["at_work", "ended", "start"]

EXIT_S = 60.0
"""Most seconds that the end of a process waits."""
_changed = threading.Condition()
_under_way: set[object] = set()
_registered = _ended = False


def start(work: Callable[[], Any], name: str) -> threading.Thread:
    """Run ``work`` in a thread of its own, which the end of the process waits for. It should be over soon."""

    def run() -> None:
        try:
            work()
        finally:
            _leave(thread)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _enter(thread)
    try:
        thread.start()
    except BaseException:
        _leave(thread)
        raise
    return thread


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """What the end of the process waits for, of a daemon thread that otherwise waits for work. Ends the thread where
    the process ends already."""
    token = object()
    if not _enter(token):
        raise SystemExit
    try:
        yield
    finally:
        _leave(token)


def ended() -> bool:
    """Whether the process ends: what is not begun yet is not begun any more."""
    return _ended


def _enter(token: object) -> bool:
    """Note that something is under way; whether the process goes on."""
    global _registered
    with _changed:
        if not _registered:
            atexit.register(_wait)
            _registered = True
        _under_way.add(token)
        if _ended and not isinstance(token, threading.Thread):
            _under_way.discard(token)
            return False
    return True


def _leave(token: object) -> None:
    with _changed:
        _under_way.discard(token)
        _changed.notify_all()


def _wait() -> None:
    """At exit."""
    global _ended
    until = time.monotonic() + EXIT_S
    try:
        with _changed:
            _ended = True
            while _under_way and (left := until - time.monotonic()) > 0:
                _changed.wait(left)
    except KeyboardInterrupt:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(130)  # as a shell counts an interrupt; nothing is taken down under a compiler's feet


def _after_fork() -> None:
    """Of threads only the one that forked is in the child."""
    global _changed
    _changed = threading.Condition()
    _under_way.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
