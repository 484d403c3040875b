"""Compiles candidates in several processes before they are measured: compilers work on one processor each.

What is compiled stays in a cache on disk, the driver's or this package's, where the measuring process finds it. The
most promising candidate of each problem comes first, then the second of each, until the time ends. A process that dies
or hangs costs the candidate that it was at; nothing is concluded from that here. Who predicts no cost is left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...api.problem import ConvProblem
from ..child import Child, Silent, answer, questions

__all__ = ["MOST", "ahead_s", "compile_ahead"]

MOST = 40
"""Candidates of a problem that are compiled; a search within a few seconds gets no further."""
SHARE = 0.5
"""Most time for it, as a share of all problems' budgets."""
START_S = 120.0
COMPILE_S = 30.0


def ahead_s(problems: int, budget_ms: float) -> float:
    """Most seconds that compiling ahead may take for so many problems with such a budget each."""
    return SHARE * problems * budget_ms / 1e3


def compile_ahead(
    problems: Sequence[ConvProblem],
    device: str,
    jobs: int,
    seconds: float,
    solver: str | None = None,
    say: Callable[[str, int], None] = lambda words, advance: None,
) -> int:
    """Compile what would be tried first for ``problems`` on a device (``runtime.address``) in ``jobs`` processes.

    Ends after ``seconds``. ``solver`` is a glob that admits some. ``say`` hears of the progress. Answers the number of
    candidates that were compiled.
    """
    pool = _Pool(problems, {"device": device, "solver": solver}, time.monotonic() + seconds)
    threads = [threading.Thread(target=pool.feed, daemon=True) for _ in range(max(1, min(jobs, len(problems))))]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and time.monotonic() < pool.until:
            next((thread for thread in threads if thread.is_alive()), threads[0]).join(0.2)
            say(f"compiling ahead, {pool.compiled} candidates", 0)
    finally:
        pool.end()
    return pool.compiled


class _Pool:
    """The problems, each with the number of its next candidate: a process takes the next one of the next problem."""

    def __init__(self, problems: Sequence[ConvProblem], setup: dict[str, Any], until: float) -> None:
        self.todo = deque((str(problem), 0) for problem in problems)
        self.setup, self.until = setup, until
        self.compiled = 0
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._ended = False

    def feed(self) -> None:
        child: Child | None = None
        while not self._ended and time.monotonic() < self.until:
            try:
                problem, place = self.todo.popleft()
            except IndexError:
                return
            first = child is None
            child = child or self._start()
            child.say({"problem": problem, "place": place})
            try:
                said = child.hear(COMPILE_S + (START_S if first else 0.0))
            except Silent:
                said = None
            if said is None:  # dead or hanging: the next candidate in a new process
                child.close()
                child = None
                if first and place == 0:  # perhaps no process can be started at all
                    return
            with self._lock:
                self.compiled += bool(said and said["compiled"])
                if place + 1 < MOST and not (said and said["last"]):
                    self.todo.append((problem, place + 1))

    def end(self) -> None:
        """Kill every process that is still at work."""
        self._ended = True
        with self._lock:
            children = list(self._children)
        for child in children:
            child.close()

    def _start(self) -> Child:
        child = Child("convdispatch.measurement.search.ahead", self.setup)
        with self._lock:
            self._children.add(child)
        return child


def _serve() -> None:
    """The child: a problem and the place of a candidate in a line."""
    from ...api.policy import Policy
    from ...device import runtime
    from ...selection import dispatch
    from .candidates import Entry, candidates

    lines = questions()
    setup = next(lines)
    device = runtime.find_device(setup["device"])
    info, context = runtime.device_info(device), runtime.context(device)
    known: dict[str, tuple[ConvProblem, list[Entry]]] = {}
    for asked in lines:
        text, place = asked["problem"], asked["place"]
        if text not in known:
            problem = ConvProblem.parse(text)
            found = candidates(problem, info, Policy(solver=setup["solver"]))[0]
            # Who predicts nothing calls a library: loading it in each process takes long, and nothing of it would stay.
            known[text] = problem, [entry for entry in found if entry.cost is not None]
        problem, entries = known[text]
        compiled = place < len(entries)
        if compiled:
            try:
                dispatch.make(entries[place].solver, entries[place].config, problem, context)
            except Exception:  # the search will meet it, and say so
                compiled = False
        answer({"compiled": compiled, "last": place + 1 >= len(entries)})


if __name__ == "__main__":
    _serve()
