"""Compiles candidates in several processes before they are measured, because a compiler uses one processor.

Compiled programs are stored in a cache on disk, the driver's or this package's, from which the measuring process loads
them. The most promising candidate of each problem comes first, then the second of each, until the time ends. A process
that dies or hangs costs its candidate, but the candidate is not blamed. Solvers that predict no cost are left out.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence

from ...api.problem import ConvProblem
from ...device.child import answer, questions
from ..farm import Died, NotStarted, RestartingChild, farm

MAX_CANDIDATES = 40
"""The most candidates of a problem that are compiled ahead; a search within a few seconds tries no more."""
BUDGET_SHARE = 0.5
"""The most time for compiling ahead, as a fraction of the sum of all problems' budgets."""
START_S = 120.0
COMPILE_S = 30.0


def precompile_s(problems: int, budget_ms: float) -> float:
    """The most seconds for compiling ahead, for a number of problems with a budget each."""
    return BUDGET_SHARE * problems * budget_ms / 1e3


def precompile(
    problems: Sequence[ConvProblem],
    device: str,
    jobs: int,
    seconds: float,
    say: Callable[[str, int], None] = lambda words, advance: None,
) -> int:
    """Compile the first candidates of ``problems`` on a device (``runtime.address``) in ``jobs`` processes.

    Ends after ``seconds``. ``say`` is called with the progress. Returns the number of compiled candidates.
    """
    todo = deque((str(problem), 0) for problem in problems)
    until, compiled = time.monotonic() + seconds, 0

    def work(child: RestartingChild, task: tuple[str, int]) -> bool:
        problem, index = task
        is_compiled, is_last = _compile_one(child, problem, index)
        if index + 1 < MAX_CANDIDATES and not is_last:
            todo.append((problem, index + 1))
        return is_compiled

    setup = {"device": device}
    # Where no child process starts, the search will not start one either, and reports the reason.
    with contextlib.suppress(NotStarted):
        for _, made in farm(todo, jobs, lambda: RestartingChild(__name__, setup, start_s=START_S), work, until):
            compiled += made
            say(f"compiling ahead, {compiled} candidates", 0)
    return compiled


def _compile_one(child: RestartingChild, problem: str, place: int) -> tuple[bool, bool]:
    """Compile a problem's candidate at index ``place``; return whether it was compiled, and is the last one."""
    try:
        reply = child.answer({"problem": problem, "place": place}, COMPILE_S)
    except NotStarted:
        raise
    except Died:  # The candidate ended the child process; the next candidate is compiled in a new one.
        return False, False
    return reply["compiled"], reply["last"]


def _serve() -> None:
    """The child process: it reads a problem and the index of a candidate from each line."""
    from ...api.policy import Policy
    from ...device import runtime
    from ...selection import dispatch
    from .candidates import Entry, candidates

    lines = questions()
    device = runtime.find_device(next(lines)["device"])
    info, context = runtime.device_info(device), runtime.context(device)
    answer({"ready": True})
    entries_of: dict[str, tuple[ConvProblem, list[Entry]]] = {}
    for request in lines:
        text, index = request["problem"], request["place"]
        if text not in entries_of:
            problem = ConvProblem.parse(text)
            ranked = candidates(problem, info, Policy())[0]
            # A solver without a cost model calls a library, which each process takes long to load and cannot hand on.
            entries_of[text] = problem, [entry for entry in ranked if entry.cost is not None]
        problem, entries = entries_of[text]
        compiled = index < len(entries)
        if compiled:
            try:
                dispatch.make(entries[index].solver, entries[index].config, problem, context)
            except Exception:  # The search will meet the same error, and report it.
                compiled = False
        answer({"compiled": compiled, "last": index + 1 >= len(entries)})


if __name__ == "__main__":
    _serve()
