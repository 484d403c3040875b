"""Checks what a solver returns before anything is compiled: refusals, configurations, cost, workspace."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

from ...api.declared import declared_dtypes, outside_declaration
from ...api.device import DeviceInfo
from ...api.dtypes import ALL_DTYPES
from ...api.fault_text import words
from ...api.problem import DIRECTIONS, ConvProblem
from ...api.solver import PARTS, Solver
from ...selection.defensive_copy import MOST_CONFIGS, ask
from ...selection.solver_query import checked_cost, checked_size
from ...selection.visible_problem import visible_problem
from .memory import Fault

CHEAP_S = 0.05
"""The most processor seconds that one call of ``rejects`` may take, because dispatch calls it for every solver and new
problem."""


def answer(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why the solver refuses the problem, or None. Raises Fault for a reply that breaks the contract."""
    undeclared = outside_declaration(solver, problem, device)
    if undeclared is not None:
        return undeclared
    visible = visible_problem(solver, problem)
    try:
        refusal = ask(solver, "rejects", visible, device)
        seconds = min(_time(solver, visible, device) for _ in range(2))
        repeated = ask(solver, "rejects", visible, device)
    except Exception as error:
        raise Fault("words", f"rejects raised {words(error)}") from error
    if refusal != repeated:
        raise Fault("words", f"rejects answered {refusal!r}, then {repeated!r}: it must be pure")
    if seconds > CHEAP_S:
        raise Fault(
            "words", f"rejects took {seconds * 1e3:.0f} ms of processor time, at most {CHEAP_S * 1e3:.0f} are cheap"
        )
    if refusal is not None:
        _check_words(refusal)
        return refusal
    unfused = sorted(part for part in PARTS if getattr(problem, part) and not getattr(visible, part))
    is_bare = not any(getattr(visible, part) for part in PARTS)
    return f"does not fuse {', '.join(unfused)}: the host adds it" if unfused and is_bare else None


def _time(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> float:
    began = time.thread_time()
    ask(solver, "rejects", problem, device)
    return time.thread_time() - began


def _check_words(reason: Any) -> None:
    if not isinstance(reason, str):
        raise Fault("words", f"rejects must answer a sentence or None, got {reason!r}")
    if not reason.strip() or "\n" in reason:
        raise Fault("words", f"a refusal is one line of words, got {reason!r}")
    if reason.endswith("."):
        raise Fault("words", f"a refusal has no full stop, got {reason!r}")


def configurations(solver: Solver, problem: ConvProblem, device: DeviceInfo) -> list[Mapping[str, Any]]:
    """The solver's configurations for an accepted problem. Raises Fault for none, impure or no JSON."""
    try:
        offered, repeated = (
            [dict(config) for config in itertools.islice(ask(solver, "configs", problem, device), MOST_CONFIGS + 1)]
            for _ in range(2)
        )
        if json.loads(json.dumps(offered)) != offered:
            raise Fault("configurations", f"configurations must survive JSON, got {offered[0]!r}")
    except Fault:
        raise
    except Exception as error:
        raise Fault("configurations", f"configs raised {words(error)}") from error
    if len(offered) > MOST_CONFIGS:
        raise Fault("configurations", f"configs must end, after {MOST_CONFIGS} at most: dispatch refuses more")
    if not offered:
        raise Fault("configurations", "an accepted problem has at least one configuration, got none")
    if offered != repeated:
        raise Fault("configurations", "configs answered two lists, one after the other: it must be pure")
    return offered


def statements(solver: Solver, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
    """The bytes of workspace that the solver states without compiling; None if it states none. Raises Fault."""
    unknown = frozenset().union(*(declared_dtypes(solver, each) for each in DIRECTIONS)) - set(ALL_DTYPES)
    if unknown:
        raise Fault("words", f"dtypes holds names among {', '.join(ALL_DTYPES)}, got {', '.join(sorted(unknown))}")
    try:
        checked_cost(ask(solver, "cost", problem, device, config))
        return checked_size(ask(solver, "workspace", problem, device, config))
    except Exception as error:
        raise Fault("workspace", f"cost or workspace: {words(error)}") from error
