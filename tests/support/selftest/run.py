"""Runs the self-test of one device in a child process, which a compiler or a kernel may end without harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from convdispatch.device.child import answer, questions
from convdispatch.measurement.farm import Died, NotStarted, RestartingChild

CASE_S = 60.0
"""Most seconds of one question; its compilations are the most of it."""


@dataclass
class Result:
    """What became of the questions that a device was asked."""

    right: int = 0
    refused: int = 0
    """Of solvers, in words."""
    wrong: list[str] = field(default_factory=list)
    """A sentence for each question that went wrong."""


def named(case: dict[str, Any]) -> str:
    """A question in words."""
    if "solver" in case:
        return f"{case['solver']} {case['problem']}"
    options = " ".join(f"{name}={value}" for name, value in case["options"].items())
    return f"{case['family']} width={case['width']} {options}".strip()


def run(device: str, cases: Sequence[dict[str, Any]]) -> Result:
    """Ask a device, by its address (``runtime.address``), one question after the other.

    A child that ends or hangs costs the question it was at, and another takes its place.
    """
    result, child = Result(), RestartingChild(__name__, {"device": device})
    try:
        for case in cases:
            try:
                said = child.answer(case, CASE_S)
            except NotStarted as died:
                result.wrong.append(f"no process could use the device: {died}")
                break
            except Died as died:
                said = {"wrong": [str(died)]}
            if "refused" in said:
                result.refused += 1
            elif said["wrong"]:
                result.wrong.append(f"{named(case)}: {said['wrong'][0]}")
            else:
                result.right += 1
    finally:
        child.close()
    return result


def _serve() -> None:
    """The child: the device, then a question a line."""
    import warnings

    warnings.simplefilter("ignore")
    lines = questions()
    try:
        from convdispatch.device import runtime

        device = runtime.find_device(next(lines)["device"])
        queue = runtime.queue(device)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    kits: dict[str, Any] = {}
    for case in lines:
        try:
            answer(_solver(kits, device, **case) if "solver" in case else _family(queue, **case))
        except Exception as error:
            answer({"wrong": [f"{type(error).__name__}: {error}"]})


def _family(queue: Any, family: str, options: dict[str, Any], width: int) -> dict[str, Any]:
    from .families import run as compute

    return {"wrong": list(compute(queue, family, options, width))}


def _solver(kits: dict[str, Any], device: Any, solver: str, problem: str) -> dict[str, Any]:
    from convdispatch.api.problem import ConvProblem
    from convdispatch.measurement.conformance.levels import Case
    from convdispatch.measurement.conformance.session import Kit
    from convdispatch.selection.plugins.loader import plugins

    if solver not in kits:
        kits[solver] = Kit(plugins().plugin_of[solver], device, solver, first=0)
    kit = kits[solver]
    outcome = kit.examine(kit.solvers[solver], Case(problem, ConvProblem.parse(problem), "own"))
    if outcome.status == "refused":
        return {"refused": outcome.reason}
    return {"wrong": [f"{outcome.check}: {outcome.reason}"] if outcome.status == "failed" else []}


if __name__ == "__main__":
    _serve()
