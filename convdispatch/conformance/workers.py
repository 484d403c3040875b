"""Runs cases in child processes: as many at once as asked, and one that crashes or hangs costs only its case.

A compiler works on one processor, and a kernel that writes out of bounds may end its process: so the command runs the
cases elsewhere, and says of a child that died which case it was at.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import IO, Any

from .levels import Case
from .outcome import Outcome

__all__ = ["run"]

_MARK = "convdispatch-conformance:"
"""Before every answer of a child: a driver may write to its output too."""


def run(
    cases: Sequence[Case],
    setup: dict[str, Any],
    jobs: int,
    timeout_s: float,
    report: Callable[[Case, list[Outcome]], bool],
) -> None:
    """Every case, ``jobs`` at a time; ``report`` is called in this thread as each is done, in any order;
    once it answers False no further case begins.

    ``setup`` is Kit's arguments. A case that takes longer than ``timeout_s`` is failed and its child killed.
    """
    todo, done = deque(cases), queue.Queue[tuple[Case, list[Outcome]] | BaseException | None]()
    stop = threading.Event()
    threads = [
        threading.Thread(target=_feed, args=(todo, setup, timeout_s, done, stop), daemon=True)
        for _ in range(max(1, min(jobs, len(cases))))
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            answer = done.get()
            if answer is None:
                running -= 1
            elif isinstance(answer, BaseException):
                raise answer
            elif not report(*answer):
                stop.set()
    finally:
        stop.set()


def _feed(todo: deque[Case], setup: dict[str, Any], timeout_s: float, done: queue.Queue[Any], stop: Any) -> None:
    """One child after the other until nothing is left to do."""
    child: _Child | None = None
    try:
        while not stop.is_set():
            try:
                case = todo.popleft()
            except IndexError:
                break
            child = child or _Child(setup)
            outcomes, alive = child.ask(case, timeout_s)
            done.put((case, outcomes))
            if not alive:
                child.close()
                child = None
    except BaseException as error:
        done.put(error)
    finally:
        if child is not None:
            child.close()
        done.put(None)


class _Child:
    """A process with the kit in it."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "convdispatch.conformance.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._say(setup)

    def ask(self, case: Case, timeout_s: float) -> tuple[list[Outcome], bool]:
        """The outcomes of a case, and whether the child lives on."""
        self._say({"name": case.name, "problem": str(case.problem), "level": case.level, "long": case.long})
        found: list[Outcome] = []
        asked, limit = "", time.monotonic() + timeout_s
        while True:
            try:
                answer = self._answers.get(timeout=max(0.1, limit - time.monotonic()))
            except queue.Empty:
                return [*found, _ended(case, asked, f"it did not end within {timeout_s:g} s")], False
            if answer is None:
                code = self._process.wait()
                words = f"its process died with signal {-code}" if code < 0 else f"its process ended with {code}"
                return [*found, _ended(case, asked, words)], False
            if "asked" in answer:
                asked = answer["asked"]
            elif "error" in answer:
                return [*found, _ended(case, asked, answer["error"])], False
            elif "done" in answer:
                return found, True
            else:
                found.append(Outcome(**answer))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _say(self, values: dict[str, Any]) -> None:
        stream: IO[str] = self._process.stdin  # type: ignore[assignment]
        try:
            stream.write(json.dumps(values) + "\n")
            stream.flush()
        except OSError:  # it died: the end of its answers says so
            pass

    def _listen(self) -> None:
        stream: IO[str] = self._process.stdout  # type: ignore[assignment]
        for line in stream:
            _, mark, text = line.partition(_MARK)
            if mark:
                self._answers.put(json.loads(text))
        self._answers.put(None)


def _ended(case: Case, solver: str, words: str) -> Outcome:
    return Outcome(solver or "?", case.name, str(case.problem), case.level, "failed", words, "plan")


def _serve() -> None:
    """The child: one line of setup, then a case a line."""
    from ..api.problem import ConvProblem
    from .session import Kit

    kit: Kit | None = None
    try:
        kit = Kit(**json.loads(sys.stdin.readline()))
    except Exception as error:
        _answer({"error": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        asked = json.loads(line)
        case = Case(asked["name"], ConvProblem.parse(asked["problem"]), asked["level"], asked["long"])
        for solver in kit.asked(case):
            _answer({"asked": solver.name})
            _answer(asdict(kit.examine(solver, case)))
        _answer({"done": True})


def _answer(values: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{_MARK}{json.dumps(values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve()
