"""Work beside the caller's threads, and how it ends with the process.

A compiler or a kernel at work while the process's libraries are taken down aborts it ("terminate called without an
active exception", "pure virtual method called"). So when the interpreter ends, after its last line or by an interrupt,
no further background work begins, and running work is waited for. A second interrupt ends the process at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

EXIT_S = 60.0
"""The most seconds that the end of the process waits for background work."""
_changed = threading.Condition()
_under_way: set[object] = set()
_registered = _ended = False


def start(work: Callable[[], Any], name: str) -> threading.Thread:
    """Run ``work`` in a thread of its own, which the end of the process waits for. It should be over soon."""

    def run() -> None:
        try:
            work()
        finally:
            _end_work(thread)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _enter(thread)
    try:
        thread.start()
    except BaseException:
        _end_work(thread)
        raise
    return thread


class Threads:
    """Runs functions in at most ``most`` threads, in the order of submission. A thread ends when the queue of work is
    empty; with ``stay`` it waits for more, because some libraries hold memory for each thread that ever called them.

    Unlike ``concurrent.futures.ThreadPoolExecutor`` it also works in a thread that outlives the main thread: from the
    main thread's end on, an executor takes no more work, and its module cannot even be imported.
    """

    def __init__(self, most: int, name: str, stay: bool = False) -> None:
        self._most, self._name, self._stay = most, name, stay
        self._running, self._process = 0, os.getpid()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` in one of the threads; the returned future gets its result or exception."""
        from concurrent.futures import Future  # loads logging, which a call that compiles nothing needs not

        future: Future[Any] = Future()
        with self._changed:
            if self._process != os.getpid():  # a forked process lacks its parent's threads
                self._running, self._process = 0, os.getpid()
                self._waiting.clear()
            self._waiting.append((future, work))
            starts_thread = self._running < self._most
            self._running += starts_thread
            self._changed.notify()
        try:
            if starts_thread and self._stay:
                threading.Thread(target=self._run, args=(True,), name=self._name, daemon=True).start()
            elif starts_thread:
                start(self._run, self._name)
        except RuntimeError:  # the interpreter is ending and starts no threads
            self._run()
        return future

    def _run(self, stay: bool = False) -> None:
        while True:
            with self._changed:
                while stay and not self._waiting:
                    self._changed.wait()
                if not self._waiting:
                    self._running -= 1
                    return
                future, work = self._waiting.popleft()
            token = object()
            _enter(token)
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            finally:
                _end_work(token)
                del future, work  # a waiting thread must not keep the memory of its last work


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """The end of the process waits for this block, which a daemon thread runs between its waits for work. Raises
    SystemExit, which ends the thread, if the process is ending already."""
    token = object()
    if not _enter(token):
        raise SystemExit
    try:
        yield
    finally:
        _end_work(token)


def ended() -> bool:
    """Whether the process is ending, so that no background work may begin."""
    return _ended


def _enter(token: object) -> bool:
    """Note that background work begins; returns False if the process is ending."""
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


def _end_work(token: object) -> None:
    with _changed:
        _under_way.discard(token)
        _changed.notify_all()


def _wait() -> None:
    """Called at exit: waits for the background work that is under way."""
    global _ended
    deadline = time.monotonic() + EXIT_S
    try:
        with _changed:
            _ended = True
            while _under_way and (remaining_s := deadline - time.monotonic()) > 0:
                _changed.wait(remaining_s)
    except KeyboardInterrupt:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # 130 is a shell's status for an interrupt; no exit handlers run, as a compiler may still be at work
        os._exit(130)


def _after_fork() -> None:
    """After a fork only the forking thread exists in the child, so locks are made anew."""
    global _changed
    _changed = threading.Condition()
    _under_way.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_TURN_TIMEOUT_S = 0.5
"""Seconds that a thread waits to get its turn back before it goes on without."""


class _Thread(threading.local):
    turn: threading.Lock | None = None
    has_turn = False


_thread = _Thread()


@contextlib.contextmanager
def locked(turn: threading.Lock) -> Iterator[None]:
    """Runs the block while no other thread runs a block of the same ``turn``, except threads inside ``unlocked``.

    Threads that plan take turns so: each mostly waits for compilers, and two that run Python only hinder each other. A
    thread that has waited inside ``unlocked``, and does not get its turn back in time, goes on without: the thread that
    has the turn may be waiting for it.
    """
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
