"""The decisions of this machine, read before anything is ranked or timed, in whichever process it was decided.

A decision is stored under what it is about and under the *circumstances*, which are everything else that a decision
depends on: the device and its driver, the sources of this package and of the plugins, the registry, records, verdicts
and rates, and the environment variables of this library. If any of them differs, the decision is not found; nothing
else invalidates it. ``key`` makes the keys of the store's tables ``decisions`` (a problem and policy to the solver,
configuration, math and reason that ranking gave) and ``forms`` (a net and its purpose to the form that was fastest).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..api import settings
from ..api.device import DeviceInfo
from ..api.policy import Policy, current_policy
from ..api.problem import ConvProblem
from ..device import plainfile, rates
from ..device.cache import keys
from ..device.cache.store import DECISIONS, FORMS
from .choice import lockfile
from .choice.ranking import Candidate, Choices, set_aside_here
from .choice.set_aside import is_any_set_aside
from .derivation import named
from .plugins import errata
from .plugins.loader import plugins
from .plugins.registry import packaged_path, registry_path
from .plugins.verdicts import ANSWERS
from .records.perfdb import perfdb, scope_of, user_folder
from .solver_query import admits, query, serves

SOURCES = ("api", "device", "elementwise", "inference", "measurement", "nn", "selection")
"""The subpackages of convdispatch whose source code affects a decision."""
_DECISION_FIELDS = {"solver": str, "config": dict, "source": str, "math": str}
_circumstances: dict[DeviceInfo, tuple[Any, str]] = {}
"""For each device, the values that are compared at each look-up, and the digest of the circumstances."""


def key(device: DeviceInfo, subject: str) -> str:
    """The key of a decision about ``subject`` on a device under the present circumstances, which are determined again
    after ``forget``, new records and a change of this library's environment variables."""
    variables = sorted(settings.texts().items())
    compared = perfdb().generation, plugins(), keys.compiler_variables(), variables
    entry = _circumstances.get(device)
    if entry is None or entry[0] != compared:
        entry = _circumstances[device] = compared, _determined(device, variables)
    return keys.key_of(entry[1], subject)


def forget() -> None:
    """Drop what is cached in memory, so that the next look-up determines the circumstances and reads the disk again."""
    _circumstances.clear()
    DECISIONS.forget()
    FORMS.forget()


def _determined(device: DeviceInfo, variables: list[tuple[str, str]]) -> str:
    """A digest of everything that a decision depends on besides its subject."""
    package, loaded = __name__.partition(".")[0], plugins()
    # A CPU's number of compute units is that of the processors that this process may use.
    device_fields = {**dataclasses.asdict(device), "extensions": sorted(device.extensions)}
    parts = [json.dumps([device_fields, keys.compiler_variables(), loaded.fingerprints], sort_keys=True)]
    parts += [keys.stamp(f"{package}.{zone}") for zone in SOURCES]
    modules = [loaded.manager.get_plugin(name) for name in sorted(loaded.own)]
    parts += [keys.stamp(module.__name__) for module in modules if module is not None]
    files = [registry_path(), packaged_path(), *errata.files(), rates.place(device), settings.LOCK.value()]
    # Files of records and verdicts are added and removed, but never changed unless what they say changes.
    for source in sorted({*perfdb().folders.values(), user_folder()}):
        with contextlib.suppress(OSError):
            files += sorted(
                Path(entry) for entry in os.scandir(source) if not entry.name.endswith((ANSWERS.name, plainfile.DRAFT))
            )
    for path in files:
        with contextlib.suppress(OSError, AttributeError):
            stat = path.stat()  # type: ignore[union-attr]
            parts.append(f"{path} {stat.st_mtime_ns} {stat.st_size}")
    parts += [f"{name}={value}" for name, value in variables]
    return keys.key_of(*parts)


def choices(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> Choices:
    """The candidates for a problem as ``Choices`` ranks them; the first is not ranked if its decision is stored."""
    problem = policy.problem_of_choice(problem)
    if not _is_stored(problem, device, policy):
        return Choices(problem, device, policy)
    stored = stored_candidate(problem, device, DECISIONS.get(_key(problem, device, policy)))
    if stored is not None:
        return Choices(problem, device, policy, stored)
    ranked = Choices(problem, device, policy)
    # A choice that excludes solvers which this process set aside is not stored: the next process may have them.
    if not is_any_set_aside(problem, device):
        first = ranked.first
        math = first.math or query(first.solver, problem, device).shown(first.config).math
        remember(problem, device, policy, (first.solver.name, first.config, first.source, math))
    return ranked


def remembers(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> bool:
    """Whether the store has the decision for a problem, for other processes too."""
    problem = policy.problem_of_choice(problem)
    if not _is_stored(problem, device, policy):
        return False
    return DECISIONS.folder() is not None and _is_sound(DECISIONS.get(_key(problem, device, policy)), problem)


def remember(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, decision: tuple[str, Mapping[str, Any], str, str]
) -> None:
    """Store solver, configuration, source and math, unless the configuration is no JSON value."""
    solver, config, source, math = decision
    with contextlib.suppress(TypeError, ValueError):
        if json.loads(json.dumps(dict(config))) == dict(config):
            value = {"solver": solver, "config": dict(config), "source": source, "math": math}
            label = f"{keys.decision_key(problem, policy)} on {device.name.strip()}"
            DECISIONS.put(_key(problem, device, policy), value, label)


def _key(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> str:
    return key(device, keys.decision_key(problem, policy))


def _is_stored(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> bool:
    """Whether the choice depends on the circumstances alone: no lock file fixes it, every record is in a file, and
    every solver is a loaded plugin's."""
    loaded = plugins()
    return (
        not current_policy().frozen
        and lockfile.in_force(problem) is None
        and not perfdb().is_partly_in_memory(device, scope_of(policy))
        and all(id(solver) in loaded.loaded_as for solver in loaded.solvers.values())
    )


def _is_sound(decision: Mapping[str, Any] | None, problem: ConvProblem) -> bool:
    return (
        decision is not None
        and all(isinstance(decision.get(name), kind) for name, kind in _DECISION_FIELDS.items())
        and admits(problem, decision["math"])
    )


def stored_candidate(problem: ConvProblem, device: DeviceInfo, decision: Mapping[str, Any] | None) -> Candidate | None:
    """A stored decision as a candidate; None if there is none, or its solver has been set aside since."""
    if decision is None or not _is_sound(decision, problem):
        return None
    try:
        solver = named(decision["solver"], plugins().solvers)
    except KeyError:
        return None
    if not serves(solver, device) or set_aside_here(solver, problem, device) is not None:
        return None
    return Candidate(solver, decision["config"], decision["source"], math=decision["math"])
