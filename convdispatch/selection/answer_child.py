"""The child process of ``plugins.answer_trial``: it queries the solvers of one plugin, and reports each query before it
starts."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from typing import Any

from ..api.device import DeviceInfo
from ..api.problem import ConvProblem
from ..device.child import answer, questions
from .derivation import derived
from .plugins import answer_trial
from .plugins.loader import plugins
from .visible_problem import visible_problem


def _serve() -> None:
    """For each problem that the parent sends, query every solver of the one loaded plugin, reporting each query."""
    # This process is itself the trial child, so that it starts no trial children of its own.
    answer_trial.LIMIT_S = None
    warnings.simplefilter("ignore")
    requests = questions(answer_trial.IDLE_S)
    next(requests)
    for request in requests:
        info = request["device"]
        sizes, extensions = tuple(info.pop("max_work_item_sizes")), frozenset(info.pop("extensions"))
        device = DeviceInfo(**info, max_work_item_sizes=sizes, extensions=extensions)
        problem = ConvProblem.parse(request["problem"])
        for name, solver in plugins().solvers.items():
            if name not in request["without"]:
                # The process that asks a solver later handles its exceptions; this trial is about crashes and hangs.
                with contextlib.suppress(Exception):
                    _ask(name, solver, problem, device)
        answer({"done": True})


def _ask(name: str, solver: Any, problem: ConvProblem, device: DeviceInfo) -> None:
    """Make every query that a choice makes of one solver: for the problem itself, then for its rewritings."""
    seen = visible_problem(solver, problem)
    answer({"at": f"{name} serves"})
    solver.serves(device)
    answer({"at": f"{name} rejects"})
    if solver.rejects(seen, device) is not None:
        answer({"at": f"{name} rejects"})
        derived(problem, device, {"": {name: solver}})
        return
    answer({"at": f"{name} configs"})
    for config in list(itertools.islice(iter(solver.configs(seen, device)), 1)):
        answer({"at": f"{name} cost"})
        solver.cost(seen, device, config)
        answer({"at": f"{name} workspace"})
        solver.workspace(seen, device, config)


if __name__ == "__main__":
    _serve()
    os._exit(0)
