"""Queries plugins with copies of the problem, the device and the policy, and checks the copies after each query.

A plugin that changes a copy affects nobody, but its reply is discarded, and the plugin is reported once and set aside
for the process. A warm call makes no query and costs nothing. The solvers of this package get the values themselves; a
test checks that they change none.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import itertools
import os
import reprlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchWarning, Frozen, PluginError
from ..api.policy import Policy, current_policy
from ..api.policy import _current as in_force
from ..api.problem import ConvProblem
from ..api.solver import Solver
from .plugins import answer_trial, contract
from .plugins.contract import TRAITS, LoadedAs, traits_of
from .plugins.loader import plugins

MOST_CONFIGS = 1000
"""The most configurations that a solver may offer for a problem; longer lists are endless, or too long to search."""
_COPIED_TYPES = (ConvProblem, DeviceInfo, Policy)
_TYPE_NAMES = {ConvProblem: "problem", DeviceInfo: "device", Policy: "policy"}
_IMMUTABLE_TYPES = (str, int, float, bool, type(None))
_ban_callbacks: list[Callable[[], None]] = []


class ArgumentsChanged(PluginError):
    """A plugin changed a value that it was handed, or its solver, or forked: it is set aside for the process."""


def ask(solver: Solver, method: str, *arguments: Any) -> Any:
    """Return what ``solver.method`` returns for copies of the arguments; an iterator of configurations becomes a list.

    Raises what the solver raises, and ArgumentsChanged if it changed a problem, device, policy or its own attributes;
    its plugin is then set aside.
    """
    loaded = plugins().loaded_as.get(id(solver))
    # Solvers of this package are trusted, and a derived solver queries its plugin's solver through this function.
    if (loaded is not None and loaded.own) or "chain" in vars(solver):
        return getattr(solver, method)(*arguments)
    own = [value if isinstance(value, _COPIED_TYPES) else None for value in arguments]
    # The attributes are copied, because another thread may add cached attributes to the same value meanwhile.
    fields = [vars(value).copy() if value is not None else {} for value in own]
    copies = [copied(value) for value in arguments]
    policy = current_policy()
    lent, left = copied(policy), list[Policy]()
    error: BaseException | None = None
    answer, process, forked = None, os.getpid(), contract.fork_count()
    try:
        # The call has a context of its own, because a plugin may enter a policy there and never exit it.
        call = lambda: contextvars.copy_context().run(_answered, solver, method, copies, lent, left)  # noqa: E731
        # No time limit watches ``plan``, because it may compile for long.
        answer = call() if method == "plan" else answer_trial.watched(solver.name, call)
    except (KeyboardInterrupt, Frozen):
        raise
    except BaseException as raised:
        error = raised
    finally:
        contract.end_fork(process)
    change = "policy in force" if left and left[0] is not lent else changed(lent, vars(policy))
    for value, values in zip(copies, fields, strict=True):
        change = change or (changed(value, values) if values else "")
    change = change or _changed_traits(solver, loaded)
    change = f"changed the {change}" if change else "forked the process" if contract.fork_count() > forked else ""
    if change:
        raise _set_aside_for(loaded, method, change) from error
    if error is not None:
        raise error
    return answer


def _answered(solver: Solver, method: str, copies: list[Any], lent: Policy, left: list[Policy]) -> Any:
    """The solver's reply under the policy ``lent``; the policy in force afterwards is appended to ``left``."""
    in_force.set(lent)
    try:
        answer = getattr(solver, method)(*copies)
        if method == "configs" and hasattr(answer, "__iter__") and not isinstance(answer, list | tuple | str | Mapping):
            # The number of configurations is bounded, because a plugin's iterator may never end.
            return list(itertools.islice(answer, MOST_CONFIGS + 1))
        return answer
    finally:
        left.append(current_policy())


def copied(value: Any) -> Any:
    """A copy of a problem, a device, a policy or a configuration; any other value itself."""
    if isinstance(value, _COPIED_TYPES):
        copy_of_value = object.__new__(type(value))
        vars(copy_of_value).update(vars(value))  # Attributes that were derived and cached are copied too.
        return copy_of_value
    if isinstance(value, Mapping):
        return {key: _copied_value(item) for key, item in value.items()}
    return value


def _copied_value(value: Any) -> Any:
    if type(value) in _IMMUTABLE_TYPES:
        return value
    if type(value) is dict:
        return {key: _copied_value(item) for key, item in value.items()}
    return copy.deepcopy(value)


def changed(handed: Any, values: Mapping[str, Any]) -> str:
    """Return as text what differs between a copy that a plugin got and its original; empty if nothing differs."""
    fields = vars(handed)
    try:
        if type(handed) in _COPIED_TYPES and fields | values == fields:
            return ""
        names = [name for name, value in values.items() if name not in fields or fields[name] is not value]
        diffs = [f"{name} from {values[name]!r} to {reprlib.repr(fields.get(name))}" for name in names[:2]]
    except Exception:  # The plugin put in values whose comparison or ``repr`` raises.
        diffs = []
    kind = _TYPE_NAMES.get(type(handed), "kind of what")
    return f"{kind} that it was handed" + (f", {', '.join(diffs)}" if diffs else "")


def _changed_traits(solver: Solver, loaded: LoadedAs | None) -> str:
    if loaded is None:
        return ""
    try:
        if traits_of(solver) == loaded.traits:
            return ""
    except Exception:  # The plugin set attributes whose comparison raises.
        pass
    # The solver's attributes are restored, because a changed name would pass for another solver's.
    with contextlib.suppress(Exception):
        vars(solver).update(zip(TRAITS, loaded.traits, strict=True))
    return "name, fuses or another attribute of its own solver"


def _set_aside_for(loaded: LoadedAs | None, method: str, what: str) -> ArgumentsChanged:
    reason = f"its {method}() {what}"
    if loaded is not None:
        reason = f"{loaded.name}: {reason}"
        set_plugin_aside(loaded.plugin, reason)
    return ArgumentsChanged(reason)


def set_plugin_aside(plugin: str, reason: str) -> None:
    """Refuse all solvers of a plugin for the rest of this process, and warn of it once."""
    banned = plugins().banned
    if plugin in banned:
        return
    banned[plugin] = reason
    for callback in _ban_callbacks:
        callback()
    warnings.warn(
        f"plugin {plugin} is set aside for the rest of this process: {reason}; nobody else saw that, and its answers "
        f"count for nothing; tell the plugin's author, or shut it out with CONVDISPATCH_BLOCK={plugin}",
        ConvDispatchWarning,
        stacklevel=6,
    )


def banned(solver: Solver) -> str | None:
    """Return why the solver's whole plugin is set aside for this process, or None."""
    loaded = plugins()
    if not loaded.banned:
        return None
    loaded_solver = loaded.loaded_as.get(id(vars(solver).get("root", solver)))
    return loaded.banned.get(loaded_solver.plugin) if loaded_solver is not None else None


def on_ban(callback: Callable[[], None]) -> None:
    """Call ``callback()`` whenever a plugin is set aside; for caches that hold its plans."""
    _ban_callbacks.append(callback)
