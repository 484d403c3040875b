"""What a module must provide to count as a plugin, and the attributes that its solvers were loaded with."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pluggy

from ...api import hookspecs
from ...api.declared import declared_dtypes
from ...api.problem import DIRECTIONS
from ...api.solver import PARTS, Solver

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class LoadedAs:
    """A solver's plugin, name and attributes when it was loaded; ``traits`` are those of ``traits_of``."""

    plugin: str
    name: str
    traits: tuple[Any, ...]
    own: bool = False
    """Whether the solver's plugin comes with this package."""


TRAITS = (
    "name", "deterministic", "batch_invariant", "exact", "spreads_nonfinite", "reproducible", "predicts", "dtypes",
    "fuses",
)  # fmt: skip
"""The attributes of a solver that the selection reads, and that must not change after loading."""


def traits_of(solver: Solver) -> tuple[Any, ...]:
    """A solver's values of the attributes TRAITS."""
    dtypes = {direction: declared_dtypes(solver, direction) for direction in DIRECTIONS}
    return *(getattr(solver, name) for name in TRAITS[:-2]), dtypes, frozenset(solver.fuses)


def register(manager: pluggy.PluginManager, module: Any, name: str) -> str | None:
    """Register a module, and return its fault as text, or None. A misspelt hook is a fault too."""
    try:
        manager.register(module, name=name)
    except (ValueError, pluggy.PluginValidationError) as error:
        if manager.has_plugin(name):
            manager.unregister(name=name)
        return str(error)
    unknown = [hook.name for hook in manager.get_hookcallers(module) or [] if not hook.has_spec()]
    if unknown:
        manager.unregister(module)
        known = ", ".join(name for name in sorted(vars(hookspecs)) if name.startswith("convdispatch_"))
        return f"implements unknown hook {', '.join(unknown)}; the hooks are {known}"
    if not manager.get_hookcallers(module):
        manager.unregister(module)
        return "implements no hook; mark convdispatch_solvers with convdispatch.api.hookimpl"
    return None


def solvers_of(manager: pluggy.PluginManager, module: Any) -> list[Solver]:
    implementations = [i for i in manager.hook.convdispatch_solvers.get_hookimpls() if i.plugin is module]
    solvers: list[Solver] = []
    for implementation in implementations:
        answer = implementation.function()
        if not isinstance(answer, (list, tuple)):
            raise TypeError(f"expected a list of Solver, got {type(answer).__name__}")
        for solver in answer:
            if not isinstance(solver, Solver):
                raise TypeError(f"expected Solver objects with a name, got {solver!r}")
            _check_attributes(solver)
            if any(solver.name == earlier_solver.name for earlier_solver in solvers):
                raise ValueError(f"two solvers are named {solver.name!r}")
            solvers.append(solver)
    return solvers


def _check_attributes(solver: Solver) -> None:
    """Raise TypeError if an attribute does not have the type that the header declares."""
    name, fuses = solver.name, solver.fuses
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TypeError(f"a solver's name is letters, digits and . _ -, got {name!r}")
    if not isinstance(fuses, set | frozenset) or not fuses <= set(PARTS):
        raise TypeError(f"{name}.fuses is a frozenset among {', '.join(PARTS)}, got {fuses!r}")
    if not _is_dtypes(solver.dtypes):
        raise TypeError(f"{name}.dtypes is a set of names such as 'float32', or one a direction, got {solver.dtypes!r}")
    for attribute in TRAITS[1:-2]:
        value = getattr(solver, attribute)
        if not isinstance(value, bool) and not (value is None and attribute == "spreads_nonfinite"):
            raise TypeError(f"{name}.{attribute} is True or False, got {value!r}")


def _is_dtypes(dtypes: Any) -> bool:
    if isinstance(dtypes, Mapping):
        return set(dtypes) <= set(DIRECTIONS) and not any(
            isinstance(value, Mapping) or not _is_dtypes(value) for value in dtypes.values()
        )
    return isinstance(dtypes, Collection) and not isinstance(dtypes, str) and all(isinstance(n, str) for n in dtypes)


_thread_forks = threading.local()


def fork_count() -> int:
    """The number of forks that this thread has made."""
    return getattr(_thread_forks, "count", 0)


def end_fork(process: int) -> None:
    """End this process if it is a fork: its id is not ``process``, the id from before the plugin's code ran.

    After a fork two processes would continue with the same work, on the same pipes and device. So the new process ends
    as soon as the plugin's code returns, and the old one reports the plugin. A ``subprocess`` is no fork of this kind.
    """
    if os.getpid() != process:
        os._exit(0)


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Runs plugin code inside the block; a process that it forks ends with the block, see ``end_fork``."""
    process = os.getpid()
    try:
        yield
    finally:
        end_fork(process)


def add_forks(forks: int) -> None:
    """Count forks of another thread, which ran plugin code for this one, for this thread."""
    _thread_forks.count = fork_count() + forks


def _count_fork() -> None:
    add_forks(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork)
