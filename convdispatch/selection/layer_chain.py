"""Runs a plan through the layers that wrap it, and tells a layer's failure from a plan's.

The chain of hooks ends in the plan itself. An exception of the plan is the solver's fault, and so is a PluginError, by
which a layer reports a fault of the plan. Any other exception is a layer's own failure: the layer is switched off for
the rest of the process, with a warning, and the convolution goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..api.errors import ConvDispatchWarning, Frozen, PluginError
from ..api.fault_text import words
from ..api.hookspecs import hookimpl
from ..api.problem import EXTRAS
from .defensive_copy import changed, copied
from .plugins.loader import plugins

_INNERMOST = "the plan itself"
_thread_state = threading.local()


@contextlib.contextmanager
def unpacked_weights(weights: Any) -> Iterator[None]:
    """Inside the block, layers of this thread see ``weights`` as the weights of a plan that reads a packed form."""
    previous_weights, _thread_state.weights = getattr(_thread_state, "weights", None), weights
    try:
        yield
    finally:
        _thread_state.weights = previous_weights


def enqueue_plan(
    problem: Any, plan: Any, queue: Any, operands: Sequence[Any], workspace: Any, wait_for: Any = None
) -> Any:
    """Enqueue a plan on ``operands``: x, w, y, and those of EXTRAS that the problem that it was made for has."""
    x, w, y, *further = operands
    extras = {name: memory for name, memory in zip(EXTRAS, further) if name in problem.extras}
    return plan.enqueue(queue, x, w, y, workspace, wait_for, **extras)


class _Innermost:
    """The last implementation of the hook, which runs the plan inside all layers."""

    @hookimpl(trylast=True)
    def convdispatch_enqueue(
        self,
        queue: Any,
        problem: Any,
        plan: Any,
        x: Any,
        w: Any,
        y: Any,
        workspace: Any,
        wait_for: Any,
        bias: Any,
        residual: Any,
    ) -> Any:
        # The plan gets the problem it was made for, whatever a layer did to its copy of the problem.
        planned_problem = getattr(plan, "_made_for", problem)
        extras = {"bias": bias} if planned_problem.bias else {}
        extras |= {"residual": residual} if planned_problem.residual else {}
        return plan.enqueue(queue, x, w, y, workspace, wait_for, **extras)


class _WatchedPlan:
    """A wrapper that layers call instead of the plan, and that notes the plan's event or error.

    It adds the operands ``hidden``, which the layers' hook does not have.
    """

    def __init__(self, plan: Any, problem: Any, hidden: Mapping[str, Any]) -> None:
        self._plan, self._made_for, self._hidden = plan, problem, hidden
        self.outcome: Any = None
        """The event that the plan's last call returned."""
        self.operands: tuple[Any, ...] = ()
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def enqueue(self, queue: Any, x: Any, w: Any, y: Any, workspace: Any, wait_for: Any = None, **extras: Any) -> Any:
        try:
            self.outcome = self._plan.enqueue(queue, x, w, y, workspace, wait_for, **extras, **self._hidden)
        except BaseException as error:
            self.error = error
            raise
        self.operands = x, w, y
        return self.outcome


def run_layered(problem: Any, solver: Any, plan: Any, queue: Any, operands: tuple[Any, ...], **rest: Any) -> Any:
    """Run a plan through the layers, and return its event; ``operands`` are x, w, y and EXTRAS, ``rest`` the other
    arguments of the hook."""
    manager = plugins().manager
    if not manager.has_plugin(_INNERMOST):
        manager.register(_Innermost(), name=_INNERMOST)
    x, w, y, *extras = operands
    by_name = dict(zip(EXTRAS, extras))
    hidden = {name: by_name[name] for name in problem.extras if name not in ("bias", "residual")}
    watched, shown_problem, problem_fields = _WatchedPlan(plan, problem, hidden), copied(problem), vars(problem).copy()
    packed = problem.constant_weights and getattr(plan, "packed_size", 0)
    try:
        event = manager.hook.convdispatch_enqueue(
            queue=queue,
            problem=shown_problem,
            solver=solver,
            plan=watched,
            x=x,
            w=w,
            y=y,
            weights=getattr(_thread_state, "weights", None) if packed else w,
            bias=by_name["bias"],
            residual=by_name["residual"],
            **rest,
        )
    except BaseException as error:
        is_passed_on = isinstance(error, KeyboardInterrupt | Frozen | PluginError)
        if error is watched.error or is_passed_on:
            raise
        _switch_off(_layer_of(error), f"it raised {words(error)}")
        if watched.error is not None:
            raise watched.error from None
    else:
        if change := changed(shown_problem, problem_fields):
            _switch_off(None, f"the {change} was changed")
        elif hasattr(event, "wait") or not hasattr(watched.outcome, "wait"):
            return event
        else:
            _switch_off(None, f"they answered {type(event).__name__} where the plan's event was expected")
    is_own = watched.operands and all(a is b for a, b in zip(watched.operands, operands[:3], strict=True))
    if is_own:  # The layers ran the plan on the caller's own memory, so it need not run again.
        return watched.outcome
    return enqueue_plan(problem, plan, queue, operands, rest.get("workspace"), rest.get("wait_for"))


def _layer_of(error: BaseException) -> str | None:
    """Return the innermost layer whose code an error passed through; None if that is unknown."""
    manager, layer = plugins().manager, None
    modules = {getattr(manager.get_plugin(f"layer {name}"), "__name__", ""): name for name in plugins().layers}
    frame = error.__traceback__
    while frame is not None:
        layer = modules.get(frame.tb_frame.f_globals.get("__name__", "?"), layer)
        frame = frame.tb_next
    return layer


def _switch_off(layer: str | None, why: str) -> None:
    """Take a layer, or all of them, out of the chain."""
    loaded = plugins()
    names = [layer] if layer else list(loaded.layers)
    for name in names:
        if name in loaded.layers:  # Another thread may have removed the layer already.
            loaded.layers.remove(name)
            loaded.manager.unregister(name=f"layer {name}")
    warnings.warn(
        f"layer {', '.join(names)} is switched off for the rest of this process: {why}; the convolutions go on without "
        "it, and no solver is blamed",
        ConvDispatchWarning,
        stacklevel=3,
    )
