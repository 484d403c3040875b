"""Checks problems one after another in this process, naming each before it runs: a crash shows its culprit.

    CONVDISPATCH_DEVICE=pocl python tests/support/sweep.py --table near_miss --solver 'im2col*' [problem ...]

Solvers that refuse a problem are passed over. Exit status 1 when a check failed; the last line counts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

import checking
import shape_tables

import convdispatch
from convdispatch import ConvProblem
from convdispatch.api.problem import DIRECTIONS, LAYOUTS
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins


def main() -> int:
    """Parse the command line and sweep; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", help="ConvProblem texts")
    parser.add_argument("--table", action="append", default=[], help="shape table; may repeat")
    parser.add_argument("--solver", action="append", help="name or glob; may repeat: one sweep after another")
    parser.add_argument("--every", type=int, default=1, help="only every n-th problem")
    parser.add_argument("--no-guards", action="store_true", help="exact buffers, so that a simulator sees any overrun")
    choices = parser.parse_args()
    checking.GUARD = 0 if choices.no_guards else checking.GUARD
    listed = [entry.problem for table in choices.table for entry in shape_tables.load(table)]
    problems = [ConvProblem.parse(text) for text in choices.problems]
    problems += [
        problem.replace(direction=direction, layout=layout)
        for problem, direction, layout in itertools.product(listed, DIRECTIONS, LAYOUTS)
    ]
    counts = {"passed": 0, "refused": 0, "failed": 0}
    for solver, problem in itertools.product(choices.solver or [None], problems[:: choices.every]):
        print(*filter(None, (solver, str(problem))), end=" ", flush=True)
        start = time.perf_counter()
        outcome = sweep_one(problem, solver)
        counts[outcome] += 1
        print(f"{outcome} {time.perf_counter() - start:.2f} s", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), flush=True)
    return int(counts["failed"] > 0 or counts["passed"] == 0)


def sweep_one(problem: ConvProblem, solver: str | None) -> str:
    """Check one problem; ``passed``, ``refused`` or ``failed``, the latter with its reason printed."""
    try:
        pinned = plugins().solvers.get(solver)
        if pinned and pinned.rejects(problem, runtime.device_info(runtime.default_device())):
            return "refused"  # a choice among none would ask every solver for its reason
        with convdispatch.policy(solver=solver):
            if checking.first_choice(problem, runtime.default_device()) is None:
                return "refused"
        checking.check(problem, solver=solver)
    except Exception as error:
        print(f"\n  {type(error).__name__}: {error}")
        return "failed"
    return "passed"


if __name__ == "__main__":
    sys.exit(main())
