"""Runs cases in several child processes, so that a crash or hang costs one solver one case.

A compiler uses one processor, and a kernel that writes out of bounds may end its process or make the device refuse all
further work. When a child dies, the solver that it was running fails the case, and the next ones run in a new child.
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
from .session import HUNG, MAX_HANGS


def run(
    cases: Sequence[Case],
    setup: dict[str, Any],
    jobs: int,
    timeout_s: float,
    report: Callable[[Case, list[Outcome]], bool],
    until: float | None = None,
) -> list[str]:
    """Run every case, ``jobs`` at a time; ``report`` is called in this thread as each ends, in any order, and no
    further case starts once it returns False.

    ``setup`` holds the arguments of Kit. A solver that takes longer than ``timeout_s`` for a case fails it, and its
    child is killed. The run ends at ``until`` (``time.monotonic``) and at an interrupt from the keyboard. Returns the
    names of the cases that were not reported. Raises ConvDispatchError if no child starts.
    """
    todo, waiting = deque(cases), {case.name for case in cases}
    hangs: Counter[str] = Counter()
    child = lambda: RestartingChild(__name__, setup)  # noqa: E731
    results = farm(todo, jobs, child, lambda c, case: _run(c, case, timeout_s, hangs), until)
    try:
        for case, outcomes in results:
            waiting.discard(case.name)
            if not report(case, outcomes):
                break
    except KeyboardInterrupt:
        pass
    except NotStarted as error:
        if len(waiting) == len(cases):
            raise ConvDispatchError(f"no process could be started to verify in: {error}") from None
        for case in todo:  # For the remaining cases no child process was left.
            waiting.discard(case.name)
            report(case, [_failure(case, "", f"no process was left to run it: {error}")])
    finally:
        results.close()
    return [case.name for case in cases if case.name in waiting]


def _run(child: RestartingChild, case: Case, timeout_s: float, hangs: Counter[str]) -> list[Outcome]:
    """Run a case in a child process, and return an outcome for each solver; after a death in a new child process."""
    outcomes = [_failure(case, solver, HUNG) for solver, times in hangs.items() if times >= MAX_HANGS]
    while True:
        count_before = len(outcomes)
        skip = sorted(outcome.solver for outcome in outcomes)
        child.ask({**asdict(case), "problem": str(case.problem), "skip": skip})
        running = ""
        try:
            while "done" not in (message := child.hear(timeout_s)):
                if "lost" in message:
                    child.close()
                    break
                running = message.get("asked", "")
                if not running:
                    outcomes.append(_outcome(child, message))
            else:
                return outcomes
        except Died as died:
            words = str(died).replace("it gave no answer within", "it did not end within")
            if running:
                hangs[running] += words != str(died)
                outcomes.append(_failure(case, running, words))
            # The child died at the question itself, before any solver ran, and a new child would die there too.
            elif len(outcomes) == count_before:
                return [*outcomes, _failure(case, "", words)]


def _outcome(child: RestartingChild, message: dict[str, Any]) -> Outcome:
    """The outcome in a child's message. Raises Died if it is none, because another process writes to the pipe."""
    try:
        return Outcome(**message)
    except TypeError:
        child.close()
        raise Died(f"it answered what is no outcome: {str(message)[:80]}") from None


def _failure(case: Case, solver: str, words: str) -> Outcome:
    return Outcome(solver or "?", case.name, str(case.problem), case.level, "failed", words, "plan")


def _serve() -> None:
    """The child process: it reads a line of setup, then one case on each line."""
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
