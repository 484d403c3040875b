"""What dispatch's choice costs where it cannot look the answer up: without any record, and with half of the list known.

Regret is the time of what was chosen over the best time found by searching; both run in the same rounds. Half of the
list: one half is known and the other asked, then the other way round, so that each problem is asked once. Only problems
count of which enough candidates were measured to know the best. It is shuffled before (always alike): nets alternate
kinds of layer, and then every second one is of one kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .report import Choice, Measured, Report
from .summary import geomean


class Judge(Protocol):
    """What a Session, here or in a child process, can say of choices."""

    def choices(self, problems: Sequence[str], known: Sequence[Measured]) -> dict[str, Choice]: ...

    def cost(self, found: Measured, choice: Choice) -> float | None: ...


def regret_report(session: Judge, report: Report, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """``immediate`` and ``neighbours``, each with ``geomean``, ``worst``, ``count`` and ``problems``."""
    measured = [found for found in report.measured.values() if found.best_ms and found.sure]
    say("regret without records")
    immediate = _regret(session, measured, [], say)
    say("regret with half of the list known")
    shuffled = sorted(measured, key=lambda found: found.problem)
    random.Random(0).shuffle(shuffled)
    halves = shuffled[::2], shuffled[1::2]
    neighbours = _regret(session, halves[1], halves[0], say) | _regret(session, halves[0], halves[1], say)
    return {"immediate": _sum_up(immediate, measured), "neighbours": _sum_up(neighbours, measured)}


def _regret(
    session: Judge, queried: Sequence[Measured], known: Sequence[Measured], say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """By problem what dispatch chooses when only ``known`` is on record, and what that costs."""
    first = session.choices([found.problem for found in queried], known)
    answers = {}
    for found in queried:
        choice = first.get(found.problem)
        if choice is not None:
            say(f"regret of {found.problem}")
            cost = session.cost(found, choice)
            answers[found.problem] = {"chosen": choice.solver, "source": choice.source, "regret": cost}
    return answers


def _sum_up(answers: dict[str, dict[str, Any]], measured: list[Measured]) -> dict[str, Any]:
    known = {problem: answer["regret"] for problem, answer in answers.items() if answer["regret"]}
    worst = max(known, key=lambda problem: known[problem], default=None)
    best = {found.problem: found.best.solver for found in measured if found.best}
    return {
        "geomean": geomean(known.values()),
        "worst": known[worst] if worst else None,
        "worst_problem": worst,
        "count": len(known),
        "problems": {problem: {**answer, "best": best.get(problem, "")} for problem, answer in answers.items()},
    }
