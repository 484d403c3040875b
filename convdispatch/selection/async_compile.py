"""The tier "ready" of ``conv()``: a general plan computes until the chosen one is compiled.

Under ``policy(tier="ready")`` a first call waits ``WAIT_S`` for its plan, which suffices if its programs are cached.
After that the general plan runs, and later calls use the chosen plan as soon as it is compiled.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from ..api.policy import Policy
from ..api.problem import ConvProblem
from ..device import background, runtime
from ..device.commands.interface import thread
from ..device.programs.kernels import Programs, without_numbers
from .choice.ranking import Candidate
from .generic_solver import GenericSolver, generic_s
from .prepared import Prepared

if TYPE_CHECKING:
    from concurrent.futures import Future


WAIT_S = 0.1
"""Seconds that the first call of a problem waits for its chosen plan before it runs the general one."""
LONGEST_S = 0.5
"""A call whose general plan would run longer than these seconds waits for its chosen plan, which compiles in less."""
_GENERAL = GenericSolver()
_plans = Programs(family=without_numbers)
_lock = threading.Lock()
_under_way: dict[Any, Future[Prepared]] = {}


def is_enabled(policy: Policy) -> bool:
    """Whether a call under a policy may run the general plan while its chosen plan compiles."""
    # A graph capture waits for the chosen plan, because the recording would replay the general plan for good.
    if policy.tier != "ready" or thread.capturing is not None:
        return False
    return not (policy.frozen or policy.repeats or policy.solver)


def ready_first(
    problem: ConvProblem,
    context: cl.Context,
    key: Any,
    make: Callable[[], Prepared],
    arrived: Callable[[], Any],
) -> Prepared:
    """Return the plan of ``make()`` if it is ready within ``WAIT_S``, else the general plan; ``arrived()`` is called
    when the chosen plan is ready. Raises what ``make`` raises while the caller waits."""
    from concurrent.futures import Future, wait

    info = runtime.device_info(context.devices[0])
    if _GENERAL.rejects(problem, info) or generic_s(problem, info) > LONGEST_S:
        return make()
    with _lock:
        compiling = _under_way.get(key)
        if compiling is None:
            compiling = _under_way[key] = Future()
            work = contextvars.copy_context()
            background.start(lambda: work.run(_make, compiling, key, make, arrived), "convdispatch-tier")
    if wait([compiling], WAIT_S).done:
        return compiling.result()
    return _plans.make((context, problem), lambda: _meanwhile(context, problem))


def _meanwhile(context: cl.Context, problem: ConvProblem) -> Prepared:
    plan = _GENERAL.plan(context, problem, {})
    return Prepared(context, problem, problem, Candidate(_GENERAL, {}, "until the chosen plan is compiled"), plan)


def _make(compiling: Future[Prepared], key: Any, make: Callable[[], Prepared], arrived: Callable[[], Any]) -> None:
    try:
        prepared = make()
    except BaseException as error:  # The next call that asks for the plan raises the error of this background thread.
        compiling.set_exception(error)
    else:
        compiling.set_result(prepared)
    finally:
        with _lock:
            _under_way.pop(key, None)
        arrived()


def forget() -> None:
    """Drop the general plans."""
    _plans.drop()
