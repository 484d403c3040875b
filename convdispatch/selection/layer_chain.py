"""Runs a plan through the layers that wrap it, and tells a layer's failure from a plan's.

The chain of hooks ends in the plan itself. What the plan raises is the solver's fault, and so is a PluginError, by
which a layer says what it found of the plan. Anything else that comes out is a layer's own failure: the layer is
switched off for the rest of the process, with a warning, and the convolution goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ..api.errors import ConvDispatchWarning, Frozen, PluginError
from ..api.fault_text import words
from ..api.hookspecs import hookimpl
from .defensive_copy import changed, copied
from .plugins.loader import plugins

_INNERMOST = "the plan itself"
_call = threading.local()


@contextlib.contextmanager
def unpacked_weights(weights: Any) -> Iterator[None]:
    """Layers see this memory as the weights of the plan that this thread enqueues inside, which reads a packed form."""
    before, _call.weights = getattr(_call, "weights", None), weights
    try:
        yield
    finally:
        _call.weights = before


def enqueue_plan(
    problem: Any, plan: Any, queue: Any, operands: Sequence[Any], workspace: Any, wait_for: Any = None
) -> Any:
    """Call a plan with the keywords it knows: of ``operands``, which are x, w, y, bias and residual, the last two only
    where the problem that it was made for has them."""
    x, w, y, bias, residual = operands
    extras = {"bias": bias} if problem.bias else {}
    if problem.residual:
        extras["residual"] = residual
    return plan.enqueue(queue, x, w, y, workspace, wait_for, **extras)


class _Innermost:
    """The last implementation of the hook: what the layers are round."""

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
        """Run the plan."""
        # The plan gets the problem it was made for, whatever a layer did to its copy of the problem.
        seen = getattr(plan, "_made_for", problem)
        return enqueue_plan(seen, plan, queue, (x, w, y, bias, residual), workspace, wait_for)


class _Watched:
    """A plan that notes what became of it, for layers to call in its place."""

    def __init__(self, plan: Any, problem: Any) -> None:
        self._plan, self._made_for = plan, problem
        self.outcome: Any = None
        """The event that the plan's last call returned."""
        self.operands: tuple[Any, ...] = ()
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def enqueue(self, queue: Any, x: Any, w: Any, y: Any, workspace: Any, wait_for: Any = None, **extras: Any) -> Any:
        """As the plan's."""
        try:
            self.outcome = self._plan.enqueue(queue, x, w, y, workspace, wait_for, **extras)
        except BaseException as error:
            self.error = error
            raise
        self.operands = x, w, y
        return self.outcome


def run_layered(problem: Any, solver: Any, plan: Any, queue: Any, operands: tuple[Any, ...], **rest: Any) -> Any:
    """The event of a plan that was run through the layers; ``operands`` are x, w, y, ``rest`` the hook's other ones."""
    manager = plugins().manager
    if not manager.has_plugin(_INNERMOST):
        manager.register(_Innermost(), name=_INNERMOST)
    watched, shown, values = _Watched(plan, problem), copied(problem), vars(problem).copy()
    x, w, y = operands
    packed = problem.constant_weights and getattr(plan, "packed_size", 0)
    try:
        event = manager.hook.convdispatch_enqueue(
            queue=queue,
            problem=shown,
            solver=solver,
            plan=watched,
            x=x,
            w=w,
            y=y,
            weights=getattr(_call, "weights", None) if packed else w,
            **rest,
        )
    except BaseException as error:
        ours = isinstance(error, KeyboardInterrupt | Frozen | PluginError)
        if error is watched.error or ours:
            raise
        _switch_off(_layer_of(error), f"it raised {words(error)}")
        if watched.error is not None:
            raise watched.error from None
    else:
        if what := changed(shown, values):
            _switch_off(None, f"the {what} was changed")
        elif hasattr(event, "wait") or not hasattr(watched.outcome, "wait"):
            return event
        else:
            _switch_off(None, f"they answered {type(event).__name__} where the plan's event was expected")
    same = watched.operands and all(one is other for one, other in zip(watched.operands, operands, strict=True))
    if same:  # The layers ran the plan on the caller's own memory, so it need not run again.
        return watched.outcome
    given = (*operands, rest.get("bias"), rest.get("residual"))
    return enqueue_plan(problem, plan, queue, given, rest.get("workspace"), rest.get("wait_for"))


def _layer_of(error: BaseException) -> str | None:
    """Return the innermost layer whose code an error passed through; None if that is unknown."""
    manager, found = plugins().manager, None
    modules = {getattr(manager.get_plugin(f"layer {name}"), "__name__", ""): name for name in plugins().layers}
    frame = error.__traceback__
    while frame is not None:
        found = modules.get(frame.tb_frame.f_globals.get("__name__", "?"), found)
        frame = frame.tb_next
    return found


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
