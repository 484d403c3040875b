"""Runs cases in child processes: as many at once as asked; one that crashes or hangs costs one solver one case.

A compiler works on one processor, and a kernel that writes out of bounds may end its process, or leave it a device that
refuses everything from then on: so the command runs the cases elsewhere, says of a child that died which solver it was
at, and asks the solvers behind it in a new one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ...api.errors import ConvDispatchError
from ..child import Child, Silent, answer, questions
from .levels import Case
from .outcome import Outcome

__all__ = ["run"]

START_S = 120.0
"""Seconds that a child may take to load its plugins and open the device."""


class _Stopped(Exception):
    """No further case is wanted."""


def run(
    cases: Sequence[Case],
    setup: dict[str, Any],
    jobs: int,
    timeout_s: float,
    report: Callable[[Case, list[Outcome]], bool],
    until: float | None = None,
) -> list[str]:
    """Every case, ``jobs`` at a time; ``report`` is called in this thread as each is done, in any order;
    once it answers False no further case begins.

    ``setup`` is Kit's arguments. A solver that takes longer than ``timeout_s`` for a case fails it, and its child is
    killed. Nothing is awaited after ``until`` (``time.monotonic``), nor after an interrupt from the keyboard. Answers
    the names of the cases that were not reported. Raises ConvDispatchError when no child starts.
    """
    work = _Work(cases, setup, timeout_s)
    threads = [threading.Thread(target=work.feed, daemon=True) for _ in range(max(1, min(jobs, len(cases))))]
    for thread in threads:
        thread.start()
    running, waiting = len(threads), {case.name for case in cases}
    try:
        while running:
            left = None if until is None else max(0.0, until - time.monotonic())
            done = work.done.get(timeout=left)
            if done is None:
                running -= 1
            elif isinstance(done, BaseException):
                raise done
            else:
                waiting.discard(done[0].name)
                if not report(*done):
                    break
    except (queue.Empty, KeyboardInterrupt):
        pass
    finally:
        work.end()
    if not running:  # every case was taken, but one that no child was left for
        for case in [case for case in cases if case.name in waiting]:
            if work.started == 0:
                raise ConvDispatchError(f"no process could be started to verify in: {work.why}")
            waiting.discard(case.name)
            report(case, [_ended(case, "", f"no process was left to run it: {work.why}")])
    return [case.name for case in cases if case.name in waiting]


class _Work:
    """What the threads share, each of which has one child after the other."""

    def __init__(self, cases: Sequence[Case], setup: dict[str, Any], timeout_s: float) -> None:
        self.todo, self.setup, self.timeout_s = deque(cases), setup, timeout_s
        self.done: queue.Queue[tuple[Case, list[Outcome]] | BaseException | None] = queue.Queue()
        self.started, self.why = 0, ""
        self._stop = threading.Event()
        self._children: set[Child] = set()
        self._lock = threading.Lock()

    def feed(self) -> None:
        """One child after the other until nothing is left to do."""
        child: Child | None = None
        try:
            while not self._stop.is_set():
                try:
                    case = self.todo.popleft()
                except IndexError:
                    break
                found: list[Outcome] = []
                more = True
                while more:
                    child = child or self._start()
                    if child is None:
                        self.todo.append(case)  # for the other threads, which have one
                        return
                    more = self._ask(child, case, found)
                    if more or (found and found[-1].solver == "?"):
                        self._close(child)
                        child = None
                self.done.put((case, found))
        except _Stopped:
            pass
        except BaseException as error:
            self.done.put(error)
        finally:
            if child is not None:
                self._close(child)
            self.done.put(None)

    def end(self) -> None:
        """Stop the threads and kill their children."""
        self._stop.set()
        with self._lock:
            children = list(self._children)
        for child in children:
            child.close()

    def _start(self) -> Child | None:
        child = Child("convdispatch.measurement.conformance.workers", self.setup)
        with self._lock:
            self._children.add(child)
        try:
            ready = child.hear(START_S)
            why = child.how_it_ended() if ready is None else ready.get("error", "")
        except Silent as silent:
            why = str(silent)
        if self._stop.is_set():
            raise _Stopped
        with self._lock:
            self.started += not why
            self.why = why or self.why
        if why:
            self._close(child)
        return None if why else child

    def _close(self, child: Child) -> None:
        child.close()
        with self._lock:
            self._children.discard(child)

    def _ask(self, child: Child, case: Case, found: list[Outcome]) -> bool:
        """Add the outcomes of a case to ``found``; whether a new child must ask the solvers that are left."""
        known = {outcome.solver for outcome in found}
        child.say({**asdict(case), "problem": str(case.problem), "skip": sorted(known)})
        asked = ""
        while True:
            try:
                said = child.hear(self.timeout_s)
                words = child.how_it_ended() if said is None else ""
            except Silent:
                said, words = None, f"it did not end within {self.timeout_s:g} s"
            if self._stop.is_set():
                raise _Stopped
            if said is None:
                if asked:
                    found.append(_ended(case, asked, words))
                elif len(found) == len(known):  # it died at the question itself, and would again
                    found.append(_ended(case, "", words))
                    return False
                return True
            if "done" in said:
                return False
            if "lost" in said:
                return True
            if "asked" in said:
                asked = said["asked"]
            else:
                asked = ""
                found.append(Outcome(**said))


def _ended(case: Case, solver: str, words: str) -> Outcome:
    return Outcome(solver or "?", case.name, str(case.problem), case.level, "failed", words, "plan")


def _serve() -> None:
    """The child: one line of setup, then a case a line."""
    from ...api.problem import ConvProblem
    from .session import Kit

    lines = questions()
    try:
        kit = Kit(**next(lines))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    for asked in lines:
        skip, problem = set(asked.pop("skip")), ConvProblem.parse(asked.pop("problem"))
        case = Case(problem=problem, **asked)
        for solver in kit.asked(case):
            if solver.name in skip:
                continue
            answer({"asked": solver.name})
            outcome = kit.examine(solver, case)
            answer(asdict(outcome))
            if outcome.status == "failed" and (why := kit.lost()):
                answer({"lost": why})
                return
        answer({"done": True})


if __name__ == "__main__":
    _serve()
