"""One farm for all work that may crash or hang: child processes that are started again, and tasks spread over them.

The kit, find, the benchmark, bench/ and the workers of a cluster use it; ``child`` is what one process
is made of. A death costs the question it was at; who asked decides whether that is asked again, and of whom not.
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
DEATHS = 6
"""The most child processes that one request may end before it fails."""
_T = TypeVar("_T")
_R = TypeVar("_R")


class Died(Exception):
    """The child process has ended, by itself or killed because it was silent; the message says how.

    ``at`` names the candidate that it last said to be at, or nothing; ``without`` those of deaths before (``outlive``).
    """

    def __init__(self, how: str, at: str = "") -> None:
        super().__init__(how)
        self.at = at
        self.without: dict[str, str] = {}


class NotStarted(Died):
    """No child could be started: the next one would not start either."""


class OutOfTime(Exception):
    """The time for the whole has ended."""


class RestartingChild:
    """``python -m module``, started when something is asked, and again after a death.

    ``setup`` is its first line, which the child greets; by ``{"error": words}`` where it cannot work.
    After ``until`` (``time.monotonic``) every question raises OutOfTime.
    """

    def __init__(
        self, module: str, setup: Mapping[str, Any], *, start_s: float = START_S, until: float | None = None
    ) -> None:
        self._module, self._setup, self._start_s, self._until = module, setup, start_s, until
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
        """Send a question, whose reply ``hear`` returns. Raises as ``start`` does."""
        if self._child is None:
            self.start()
        self._child.say(question)  # type: ignore[union-attr]

    def hear(self, limit_s: float) -> dict[str, Any]:
        """Return the child's next message. Raises Died, and OutOfTime; the child has ended then."""
        if self._child is None:
            raise OutOfTime
        left = limit_s if self._until is None else min(limit_s, self._until - time.monotonic())
        try:
            said = self._child.hear(left)
            how = "" if said is not None else self._child.how_it_ended()
        except Silent as silent:
            self.close()
            if left < limit_s:
                raise OutOfTime from None
            raise Died(str(silent)) from None
        if said is not None:
            return said
        self.close()
        if self._ended:
            raise OutOfTime
        raise Died(how)

    def answer(
        self, question: Mapping[str, Any], limit_s: float, say: Callable[[str], None] = lambda at: None
    ) -> dict[str, Any]:
        """Ask, hear ``{"at": candidate}`` any number of times, and return the reply that comes then.

        Each silence may last ``limit_s``. Raises Died, with where the child was; ``{"lost": words}``, said by a child
        whose device runs nothing any more, is such a death.
        """
        at = ""
        self.ask(question)
        while True:
            try:
                said = self.hear(limit_s)
            except NotStarted:
                raise
            except Died as died:
                died.at = at
                raise
            if "at" in said:
                at = said["at"]
                say(at)
            elif "lost" in said:
                self.close()
                raise Died(f"it left a device that nothing runs on: {said['lost']}", at)
            else:
                return said

    def close(self) -> None:
        """End the child; the next question starts another."""
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


def outlive(ask: Callable[[dict[str, str]], _R]) -> _R:
    """What ``ask(without)`` returns; after a death it is called again without the candidate that the child was at.

    Raises Died after DEATHS of them, or at the second that no candidate is to blame for.
    """
    without: dict[str, str] = {}
    for turn in range(DEATHS):
        try:
            return ask(without)
        except Died as died:
            died.without = without
            if isinstance(died, NotStarted) or turn == DEATHS - 1 or (turn and not died.at):
                raise
            if died.at:
                without[died.at] = f"a process was lost: {died}"
    raise AssertionError("unreachable")


def farm(
    tasks: deque[_T],
    jobs: int,
    make: Callable[[], RestartingChild],
    work: Callable[[RestartingChild, _T], _R],
    until: float | None = None,
) -> Iterator[tuple[_T, _R]]:
    """Each task with the result of ``work(child, task)``, as they end; ``jobs`` run at a time, each in its own child.

    ``work`` may add to ``tasks``. A task whose child does not start goes back for the others, which have one; once none
    has, NotStarted is raised here, after all that is done, and the tasks that are left stand in ``tasks``. Ends without
    a word at ``until`` (``time.monotonic``); when the caller stops listening, all children are killed. Anything else
    that ``work`` raises is raised here.
    """
    done: queue.Queue[tuple[_T, _R] | BaseException | None] = queue.Queue()
    children = [make() for _ in range(max(1, min(jobs, len(tasks))))]
    stop = threading.Event()

    def feed(child: RestartingChild) -> None:
        last: BaseException | None = None
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
            last = error
        finally:
            child.close()
            done.put(last)

    for child in children:
        threading.Thread(target=feed, args=(child,), daemon=True).start()
    running, unable = len(children), None
    try:
        while running:
            try:
                ended = done.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(ended, tuple):
                yield ended
                continue
            running -= 1
            if isinstance(ended, NotStarted):
                unable = ended
            elif ended is not None:
                raise ended
        if tasks and unable is not None:
            raise unable
    finally:
        stop.set()
        for child in children:
            child.end()
