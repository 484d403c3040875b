"""Compiles candidates in several processes before they are measured: compilers work on one processor each.

What is compiled stays in a cache on disk, the driver's or this package's, where the measuring process finds it. The
most promising candidate of each problem comes first, then the second of each, until the time ends. A process that dies
or hangs costs the candidate that it was at; nothing is concluded from that here. Who predicts no cost is left out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...api.problem import ConvProblem
from ...device.child import answer, questions
from ..farm import Died, NotStarted, RestartingChild, farm

MOST = 40
"""The most candidates of a problem that are compiled ahead; a search within a few seconds tries no more."""
SHARE = 0.5
"""The most time for compiling ahead, as a fraction of the sum of all problems' budgets."""
START_S = 120.0
COMPILE_S = 30.0


def precompile_s(problems: int, budget_ms: float) -> float:
    """Most seconds that compiling ahead may take for so many problems with such a budget each."""
    return SHARE * problems * budget_ms / 1e3


def precompile(
    problems: Sequence[ConvProblem],
    device: str,
    jobs: int,
    seconds: float,
    solver: str | None = None,
    say: Callable[[str, int], None] = lambda words, advance: None,
) -> int:
    """Compile what would be tried first for ``problems`` on a device (``runtime.address``) in ``jobs`` processes.

    Ends after ``seconds``. ``solver`` is a glob that admits some. ``say`` hears of the progress. Returns the number of
    candidates that were compiled.
    """
    todo = deque((str(problem), 0) for problem in problems)
    until, compiled = time.monotonic() + seconds, 0

    def work(child: RestartingChild, task: tuple[str, int]) -> bool:
        problem, place = task
        made, last = compile_one(child, problem, place)
        if place + 1 < MOST and not last:
            todo.append((problem, place + 1))
        return made

    setup = {"device": device, "solver": solver}
    # Where no child process starts, the search will not start one either, and reports the reason.
    with contextlib.suppress(NotStarted):
        for _, made in farm(todo, jobs, lambda: compiler(setup), work, until):
            compiled += made
            say(f"compiling ahead, {compiled} candidates", 0)
    return compiled


def compiler(setup: dict[str, Any]) -> RestartingChild:
    """A child for ``compile_one``; ``setup`` names the ``device`` and perhaps the ``solver``, a glob.

    With ``cores``, a list of processors, it works on these alone, and gives way to other work.
    """
    return RestartingChild(__name__, setup, start_s=START_S)


def compile_one(child: RestartingChild, problem: str, place: int) -> tuple[bool, bool]:
    """Compile a problem's candidate at ``place``: whether it did, and whether it was the last that there is."""
    try:
        said = child.answer({"problem": problem, "place": place}, COMPILE_S)
    except NotStarted:
        raise
    except Died:  # The candidate ended the child process; the next candidate is compiled in a new one.
        return False, False
    return said["compiled"], said["last"]


def _serve() -> None:
    """The child: a problem and the place of a candidate in a line."""
    from ...api.policy import Policy
    from ...device import runtime
    from ...selection import dispatch
    from .candidates import Entry, candidates

    lines = questions()
    setup = next(lines)
    if setup.get("cores") and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, setup["cores"])
        os.nice(5)
    device = runtime.find_device(setup["device"])
    info, context = runtime.device_info(device), runtime.context(device)
    answer({"ready": True})
    known: dict[str, tuple[ConvProblem, list[Entry]]] = {}
    for request in lines:
        text, place = request["problem"], request["place"]
        if text not in known:
            problem = ConvProblem.parse(text)
            found = candidates(problem, info, Policy(solver=setup.get("solver")))[0]
            # A solver without a cost model calls a library, which each process takes long to load and cannot hand on.
            known[text] = problem, [entry for entry in found if entry.cost is not None]
        problem, entries = known[text]
        compiled = place < len(entries)
        if compiled:
            try:
                dispatch.make(entries[place].solver, entries[place].config, problem, context)
            except Exception:  # The search will meet the same error, and report it.
                compiled = False
        answer({"compiled": compiled, "last": place + 1 >= len(entries)})


if __name__ == "__main__":
    _serve()
