"""Threads that plan take turns: each mostly waits for compilers, and two that run Python only hinder each other.

A thread that runs ``locked`` has its turn until it ends or says that it waits, by ``unlocked``. One that comes back
from waiting goes on without a turn where it gets none in time: the thread whose turn it is may wait for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_PATIENCE = 0.5
"""Seconds after which a thread that has waited for its turn goes on without it."""


class _Thread(threading.local):
    turn: threading.Lock | None = None
    held = False


_thread = _Thread()


@contextlib.contextmanager
def locked(turn: threading.Lock) -> Iterator[None]:
    """Runs the block while no other thread runs a block of the same ``turn``, except threads inside ``unlocked``."""
    turn.acquire()
    _thread.turn, _thread.held = turn, True
    try:
        yield
    finally:
        if _thread.held:
            turn.release()
        _thread.turn, _thread.held = None, False


@contextlib.contextmanager
def unlocked() -> Iterator[None]:
    """Inside the block the thread waits for a compiler or another thread, and other threads take their turn."""
    turn = _thread.turn
    if turn is None or not _thread.held:
        yield
        return
    _thread.held = False
    turn.release()
    try:
        yield
    finally:
        _thread.held = turn.acquire(timeout=_PATIENCE)
