"""In a child process of ``plugins.answer_trial``: asks the solvers of one plugin, and says where it is."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import sys
import threading
from typing import Any

from ..api.device import DeviceInfo
from ..api.problem import ConvProblem
from .derivation import derived
from .plugins import answer_trial
from .plugins.loader import plugins
from .visible_problem import visible_problem


def serve() -> None:
    """Ask each solver of the one plugin that loads here everything about a problem, and say where this is; then the
    next."""
    answer_trial.LIMIT_S = None  # this is the trial
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        try:
            request = json.loads(lines.get(timeout=answer_trial.IDLE_S))
        except queue.Empty:
            os._exit(0)
        info = request["device"]
        sizes, extensions = tuple(info.pop("max_work_item_sizes")), frozenset(info.pop("extensions"))
        device = DeviceInfo(**info, max_work_item_sizes=sizes, extensions=extensions)
        problem = ConvProblem.parse(request["problem"])
        for name, solver in plugins().solvers.items():
            if name not in request["without"]:
                with contextlib.suppress(Exception):  # what it raises is contained where it is asked, too
                    _ask(name, solver, problem, device)
        _say("done")


def _ask(name: str, solver: Any, problem: ConvProblem, device: DeviceInfo) -> None:
    """All that a choice among solvers asks of one: of the problem, then of what rewritings make of it."""
    seen = visible_problem(solver, problem)
    _say(f"{name} serves")
    solver.serves(device)
    _say(f"{name} rejects")
    if solver.rejects(seen, device) is not None:
        _say(f"{name} rejects")
        derived(problem, device, {"": {name: solver}})
        return
    _say(f"{name} configs")
    for config in list(itertools.islice(iter(solver.configs(seen, device)), 1)):
        _say(f"{name} cost")
        solver.cost(seen, device, config)
        _say(f"{name} workspace")
        solver.workspace(seen, device, config)


def _say(word: str) -> None:
    sys.stdout.write(f"\n{answer_trial.MARK}{word}\n")
    sys.stdout.flush()


def _read(lines: queue.Queue[str]) -> None:
    """Until the parent is gone."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)
