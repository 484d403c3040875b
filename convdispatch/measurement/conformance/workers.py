"""Runs cases in several child processes, so that a crash or hang costs one solver one case.

A compiler works on one processor, and a kernel that writes out of bounds may end its process, or leave it a device that
refuses everything from then on: so the command runs the cases elsewhere, says of a child that died which solver it was
at, and asks the solvers behind it in a new one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ...api.errors import ConvDispatchError
from ...api.fault_text import words
from ...device.child import answer, questions
from ..farm import Died, NotStarted, RestartingChild, farm
from .levels import Case
from .outcome import Outcome
from .session import HUNG, MOST_HANGS


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
    todo, waiting = deque(cases), {case.name for case in cases}
    hangs: Counter[str] = Counter()
    child = lambda: RestartingChild(__name__, setup)  # noqa: E731
    ended = farm(todo, jobs, child, lambda c, case: _run(c, case, timeout_s, hangs), until)
    try:
        for case, found in ended:
            waiting.discard(case.name)
            if not report(case, found):
                break
    except KeyboardInterrupt:
        pass
    except NotStarted as error:
        if len(waiting) == len(cases):
            raise ConvDispatchError(f"no process could be started to verify in: {error}") from None
        for case in todo:  # For the remaining cases no child process was left.
            waiting.discard(case.name)
            report(case, [_ended(case, "", f"no process was left to run it: {error}")])
    finally:
        ended.close()
    return [case.name for case in cases if case.name in waiting]


def _run(child: RestartingChild, case: Case, timeout_s: float, hangs: Counter[str]) -> list[Outcome]:
    """One outcome a solver; who comes behind one that took the child with it is asked of the next child."""
    found = [_ended(case, solver, HUNG) for solver, times in hangs.items() if times >= MOST_HANGS]
    while True:
        known = len(found)
        skip = sorted(outcome.solver for outcome in found)
        child.ask({**asdict(case), "problem": str(case.problem), "skip": skip})
        running = ""
        try:
            while "done" not in (said := child.hear(timeout_s)):
                if "lost" in said:
                    child.close()
                    break
                running = said.get("asked", "")
                if not running:
                    found.append(_outcome(child, said))
            else:
                return found
        except Died as died:
            words = str(died).replace("it gave no answer within", "it did not end within")
            if running:
                hangs[running] += words != str(died)
                found.append(_ended(case, running, words))
            # The child died at the question itself, before any solver ran, and a new child would die there too.
            elif len(found) == known:
                return [*found, _ended(case, "", words)]


def _outcome(child: RestartingChild, said: dict[str, Any]) -> Outcome:
    """Return the child's outcome of a case. Raises Died where it is none: another process answers on its pipe."""
    try:
        return Outcome(**said)
    except TypeError:
        child.close()
        raise Died(f"it answered what is no outcome: {str(said)[:80]}") from None


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
        answer({"error": f"{words(error)}"})
        return
    answer({"ready": True})
    for request in lines:
        skip, problem = set(request.pop("skip")), ConvProblem.parse(request.pop("problem"))
        case = Case(problem=problem, **request)
        for solver in kit.solvers_for(case):
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
