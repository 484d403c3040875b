"""Child processes for work that may crash or hang: they are restarted after a death, and tasks are spread over them.

The kit, find and bench/ use it. A death costs the request that was running; the caller decides whether to repeat it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ..device.child import Child, Silent

START_S = 180.0
"""Seconds that a child may take to load its plugins and open the device, on a busy machine."""
_T = TypeVar("_T")
_R = TypeVar("_R")


class Died(Exception):
    """The child process has ended, by itself or killed because it was silent; the message says how."""


class NotStarted(Died):
    """No child process could be started, and a new attempt would fail too."""


class OutOfTime(Exception):
    """The child process was ended for good, because the time limit of all work was reached."""


class RestartingChild:
    """A child process ``python -m module``, started at the first request, and again after a death.

    ``setup`` is the first line that it reads; it replies with a greeting, or with ``{"error": words}`` if it cannot
    work.
    """

    def __init__(self, module: str, setup: Mapping[str, Any], *, start_s: float = START_S) -> None:
        self._module, self._setup, self._start_s = module, setup, start_s
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> dict[str, Any]:
        """Start a child and return its greeting. Raises NotStarted, and OutOfTime after ``end``."""
        with self._lock:
            if self._ended:
                raise OutOfTime
            self._child = Child(self._module, self._setup)
        try:
            greeting = self.hear(self._start_s)
        except Died as died:
            raise NotStarted(str(died)) from None
        if "error" in greeting:
            self.close()
            raise NotStarted(greeting["error"])
        return greeting

    def ask(self, question: Mapping[str, Any]) -> None:
        """Send a request, whose reply ``hear`` returns. Raises what ``start`` raises."""
        if self._child is None:
            self.start()
        self._child.say(question)  # type: ignore[union-attr]

    def hear(self, limit_s: float) -> dict[str, Any]:
        """Return the child's next message. Raises Died or OutOfTime if the child has ended."""
        if self._child is None:
            raise OutOfTime
        try:
            message = self._child.hear(limit_s)
            how = "" if message is not None else self._child.how_it_ended()
        except Silent as silent:
            self.close()
            raise Died(str(silent)) from None
        if message is not None:
            return message
        self.close()
        if self._ended:
            raise OutOfTime
        raise Died(how)

    def answer(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request and return the reply, for which the child may take ``limit_s``. Raises as ``hear`` does."""
        self.ask(question)
        return self.hear(limit_s)

    def close(self) -> None:
        """End the child; the next request starts another."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def end(self) -> None:
        """End the child for good, from any thread; a thread that waits for the child gets OutOfTime."""
        with self._lock:
            self._ended = True
        if self._child is not None:
            self._child.kill()


def farm(
    tasks: deque[_T],
    jobs: int,
    make: Callable[[], RestartingChild],
    work: Callable[[RestartingChild, _T], _R],
    until: float | None = None,
) -> Iterator[tuple[_T, _R]]:
    """Each task with the result of ``work(child, task)``, as they end; ``jobs`` run at a time, each in its own child.

    ``work`` may add to ``tasks``. A task whose child does not start is returned to ``tasks`` for the other children; if
    no child is left, NotStarted is raised after all finished tasks were yielded. The iteration ends at ``until``
    (``time.monotonic``); when the caller ends it, all children are killed. Other errors of ``work`` are raised here.
    """
    done: queue.Queue[tuple[_T, _R] | BaseException | None] = queue.Queue()
    children = [make() for _ in range(max(1, min(jobs, len(tasks))))]
    stop = threading.Event()

    def feed(child: RestartingChild) -> None:
        failure: BaseException | None = None
        try:
            while not stop.is_set():
                try:
                    task = tasks.popleft()
                except IndexError:
                    break
                try:
                    done.put((task, work(child, task)))
                except NotStarted:
                    tasks.append(task)
                    raise
        except OutOfTime:
            pass
        except BaseException as error:
            failure = error
        finally:
            child.close()
            done.put(failure)

    for child in children:
        threading.Thread(target=feed, args=(child,), daemon=True).start()
    running, start_error = len(children), None
    try:
        while running:
            try:
                result = done.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(result, tuple):
                yield result
                continue
            running -= 1
            if isinstance(result, NotStarted):
                start_error = result
            elif result is not None:
                raise result
        if tasks and start_error is not None:
            raise start_error
    finally:
        stop.set()
        for child in children:
            child.end()
