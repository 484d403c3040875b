"""Threads that plan take turns: each mostly waits for compilers, and two that run Python only hinder each other.

A thread has its turn inside ``locked``, except while it waits inside ``unlocked``. A thread that has waited, and does
not get its turn back in time, goes on without: the thread that has the turn may be waiting for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_TURN_TIMEOUT_S = 0.5
"""Seconds that a thread waits to get its turn back before it goes on without."""


class _Thread(threading.local):
    turn: threading.Lock | None = None
    has_turn = False


_thread = _Thread()


@contextlib.contextmanager
def locked(turn: threading.Lock) -> Iterator[None]:
    """Runs the block while no other thread runs a block of the same ``turn``, except threads inside ``unlocked``."""
    turn.acquire()
    _thread.turn, _thread.has_turn = turn, True
    try:
        yield
    finally:
        if _thread.has_turn:
            turn.release()
        _thread.turn, _thread.has_turn = None, False


@contextlib.contextmanager
def unlocked() -> Iterator[None]:
    """Inside the block the thread waits for a compiler or another thread, and other threads take their turn."""
    turn = _thread.turn
    if turn is None or not _thread.has_turn:
        yield
        return
    _thread.has_turn = False
    turn.release()
    try:
        yield
    finally:
        _thread.has_turn = turn.acquire(timeout=_TURN_TIMEOUT_S)
