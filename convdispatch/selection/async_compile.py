"""The tier "ready" of ``conv()``: a general plan computes until the chosen one is compiled.

Under ``policy(tier="ready")`` a first call waits ``WAIT_S`` for its plan, which suffices if its programs are cached.
After that the general plan runs, and later calls use the chosen plan as soon as it is compiled.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ..api.activations import activation_macro
from ..api.declared import outside_declaration
from ..api.device import DeviceInfo
from ..api.dtypes import DTYPES, storage_macros
from ..api.policy import Policy
from ..api.problem import ConvProblem
from ..api.solver import EPILOGUE, Solver
from ..device import background, runtime
from ..device.plans.steps import StepPlan
from ..device.programs.kernels import OPERANDS, Launch, Programs, build, define, kernel_text, without_numbers
from .choice.ranking import Candidate
from .derivation.rewriting import axes_of
from .prepared import Prepared

if TYPE_CHECKING:
    from concurrent.futures import Future


WAIT_S = 0.1
"""Seconds that the first call of a problem waits for its chosen plan before it runs the general one."""
LONGEST_S = 0.5
"""A call whose general plan would run longer than these seconds waits for its chosen plan, which compiles in less."""
_plans = Programs(family=without_numbers)
_lock = threading.Lock()
_under_way: dict[Any, Future[Prepared]] = {}


def is_enabled(policy: Policy) -> bool:
    """Whether a call under a policy may run the general plan while its chosen plan compiles."""
    return policy.tier == "ready" and not (policy.frozen or policy.repeats or policy.solver)


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
    if GENERAL.rejects(problem, info) or generic_s(problem, info) > LONGEST_S:
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
    plan = GENERAL.plan(context, problem, {})
    return Prepared(context, problem, problem, Candidate(GENERAL, {}, "until the chosen plan is compiled"), plan)


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


_LETTERS = [
    *("mb", "ic", "oc", "g", "id", "ih", "iw", "od", "oh", "ow", "kd", "kh", "kw"),
    *("sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw"),
]
_STRIDES = [f"{tensor}{axis}" for tensor, axes in (("X", "NC"), ("Y", "NC"), ("W", "OC")) for axis in f"{axes}DHW"]
_LEAST_FLOPS_PER_S = {"cpu": 3e8, "gpu": 3e10}
"""The least speed of the generic kernel in operations per second: of one compute unit of a CPU, and of a whole GPU."""


def generic_s(problem: ConvProblem, device: DeviceInfo) -> float:
    """The estimated time of the plan, in seconds."""
    units = device.compute_units if device.type == "cpu" else 1
    return problem.flops / (_LEAST_FLOPS_PER_S.get(device.type, _LEAST_FLOPS_PER_S["gpu"]) * units)


class GenericSolver(Solver):
    """Every problem on every device whose dtype it supports, slowly, by one program for each dtype and epilogue, which
    takes the geometry as arguments. It is never a candidate."""

    name = "general"
    exact = True
    spreads_nonfinite = False
    fuses = EPILOGUE
    dtypes = tuple(DTYPES)

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """An unsupported dtype, or no images."""
        if problem.mb < 1:
            return f"1 image or more, got {problem.mb}"
        return outside_declaration(self, problem, device)

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> StepPlan:
        """A plan of one launch, with one work item for each element of the written tensor."""
        flags = {name.upper(): int(getattr(problem, name)) for name in ("bias", "residual", "accumulate")}
        names = [letter.upper() for letter in _LETTERS] + _STRIDES
        text = storage_macros(problem.dtype) + activation_macro(problem.activation) + define(**flags)
        text += "#define GEOMETRY " + ", ".join(f"long {name}" for name in names) + "\n"
        program = build(context, text + kernel_text(__package__, "general.cl"))
        numbers = [getattr(problem, letter) for letter in _LETTERS]
        for name in "xyw":
            axes = axes_of(problem, name)
            numbers += [axes[axis][1] for axis in "ncdhw"]
        operands = {"fwd": "x w y", "bwd_data": "y w x", "bwd_weights": "x y w"}[problem.direction].split()
        written = operands[-1]
        extras = [name if getattr(problem, name) else written for name in ("bias", "residual")]
        arguments = [*operands, *extras, *map(np.int64, numbers)]
        sizes = (math.prod(problem.out_shape),)
        return StepPlan(0, [Launch(program, problem.direction, sizes, None, arguments, names=OPERANDS)])


GENERAL = GenericSolver()
