"""The decisions of this machine, stored across processes: one store that is read before anything is ranked or timed.

A store belongs to a device and to *circumstances*, which are everything that a decision depends on: the device and its
driver, the sources of this package and of the plugins, the registry, records, verdicts and rates, and the environment
variables of this library. If any of them differs, another file is read; nothing else invalidates a decision. Each table
maps texts to JSON mappings:

- ``decisions``: a problem and policy to the solver, configuration, math and reason that ranking gave;
- ``forms``: a net and its purpose to the form that was measured fastest.

The files are in the folder of the compiled kernels, whose total size is bounded. A file holds a JSON line for each
decision; lines are appended whole, and a damaged line is ignored. See docs/design/caches.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..api import settings
from ..api.device import DeviceInfo
from ..api.policy import Policy, current_policy
from ..api.problem import ConvProblem
from ..device import rates
from ..device.cache import artifact_store
from ..device.plainfile import publish
from ..device.programs import template_cache
from ..device.programs.binary_cache import folder
from .choice import lockfile
from .choice.ranking import Candidate, Choices, set_aside_here
from .choice.set_aside import is_any_set_aside
from .derivation import named
from .plugins import errata
from .plugins.loader import plugins
from .plugins.registry import packaged_path, registry_path
from .records.perfdb import perfdb, scope_of, user_folder
from .solver_query import admits, query, serves

SUFFIX = ".decisions"
MAX_FILE_BYTES = 8 << 20
"""The size in bytes of a decision file after which nothing is appended: some 30,000 decisions."""
SOURCES = ("api", "device", "elementwise", "inference", "measurement", "nn", "selection")
"""The subpackages of convdispatch whose source code affects a decision."""
_DECISION_FIELDS = {"solver": str, "config": dict, "source": str, "math": str}
_lock = threading.Lock()
_stores: dict[DeviceInfo, tuple[Any, DecisionStore]] = {}
"""For each device, the values that the store's key was computed from, and the store."""


class DecisionStore:
    """The decisions under one set of circumstances, read once. Unwritable ones last for the process."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        """The file to which decisions are written; None if the kernel cache is off."""
        self.tables: dict[str, dict[str, Any]] = {}
        """The stored decisions, by table and then by key."""
        lines = _lines(path)
        for table, key, value in lines:
            self.tables.setdefault(table, {})[key] = value
        live = [[table, key, value] for table, values in self.tables.items() for key, value in values.items()]
        # The file is rewritten when later lines have replaced most of its lines.
        if path is not None and len(lines) > 2 * len(live) + 64:
            with contextlib.suppress(OSError):
                publish(path, "".join(json.dumps(line) + "\n" for line in live))

    def get(self, table: str, key: str) -> dict[str, Any] | None:
        """Return the stored decision; None if there is none."""
        return self.tables.get(table, {}).get(key)

    def put(self, table: str, key: str, value: Mapping[str, Any]) -> None:
        """Store a decision for this process and for later ones."""
        values = self.tables.setdefault(table, {})
        if values.get(key) == value:
            return
        values[key] = dict(value)
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if os.fstat(file).st_size < MAX_FILE_BYTES:
                    os.write(file, json.dumps([table, key, value]).encode() + b"\n")
            finally:
                os.close(file)


def _lines(path: Path | None) -> list[tuple[str, str, Any]]:
    try:
        lines = [] if path is None else path.read_bytes().splitlines()
    except OSError:
        return []
    decisions = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            table, key, value = json.loads(line)
            if isinstance(table, str) and isinstance(key, str) and isinstance(value, dict):
                decisions.append((table, key, value))
    return decisions


def decision_store(device: DeviceInfo) -> DecisionStore:
    """The store of a device under the present circumstances, which are determined again after ``forget``, new records
    and a change of this library's environment variables."""
    variables = sorted(settings.texts().items())
    store_key = perfdb().generation, plugins(), artifact_store.compiler_variables(), variables
    entry = _stores.get(device)
    if entry is None or entry[0] != store_key:
        cache_folder = folder()
        path = None if cache_folder is None else cache_folder / f"{_circumstances(device, variables)[:40]}{SUFFIX}"
        with _lock:
            entry = _stores[device] = store_key, DecisionStore(path)
    return entry[1]


def decision_files() -> list[Path]:
    """The files of all circumstances that this machine decided under, the latest last."""
    cache_folder = folder()
    files = [] if cache_folder is None else cache_folder.glob(f"*{SUFFIX}")
    return sorted(files, key=lambda path: path.stat().st_mtime)


def forget() -> None:
    """Drop the loaded stores, so that the next look-up determines the circumstances and reads the file again."""
    _stores.clear()


def _circumstances(device: DeviceInfo, variables: list[tuple[str, str]]) -> str:
    """A hash of everything that a decision depends on."""
    package, loaded = __name__.partition(".")[0], plugins()
    # A CPU's number of compute units is that of the processors that this process may use.
    device_fields = {**dataclasses.asdict(device), "extensions": sorted(device.extensions)}
    parts = [json.dumps([device_fields, artifact_store.compiler_variables(), loaded.fingerprints], sort_keys=True)]
    parts += [template_cache.stamp(f"{package}.{zone}") for zone in SOURCES]
    modules = [loaded.manager.get_plugin(name) for name in sorted(loaded.own)]
    parts += [template_cache.stamp(module.__name__) for module in modules if module is not None]
    files = [registry_path(), packaged_path(), *errata.files(), rates.place(device), settings.LOCK.value()]
    # Files of records are added and removed, but never changed.
    for source in sorted({*perfdb().folders.values(), user_folder()}):
        with contextlib.suppress(OSError):
            files += sorted(Path(entry) for entry in os.scandir(source))
    for path in files:
        with contextlib.suppress(OSError, AttributeError):
            stat = path.stat()  # type: ignore[union-attr]
            parts.append(f"{path} {stat.st_mtime_ns} {stat.st_size}")
    parts += [f"{name}={value}" for name, value in variables]
    return artifact_store.key_of(*parts)


# --- the table of decisions about solvers ----------------------------------------------------------------------------


def choices(problem: ConvProblem, device: DeviceInfo, policy: Policy) -> Choices:
    """The candidates for a problem as ``Choices`` ranks them; the first is not ranked if its decision is stored."""
    problem = policy.problem_of_choice(problem)
    if not _is_stored(problem, device, policy):
        return Choices(problem, device, policy)
    key = artifact_store.decision_key(problem, policy)
    stored = _stored_candidate(problem, device, decision_store(device).get("decisions", key))
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
    """Whether a file holds the decision for a problem."""
    problem = policy.problem_of_choice(problem)
    if not _is_stored(problem, device, policy):
        return False
    store = decision_store(device)
    return store.path is not None and _is_sound(
        store.get("decisions", artifact_store.decision_key(problem, policy)), problem
    )


def remember(
    problem: ConvProblem, device: DeviceInfo, policy: Policy, decision: tuple[str, Mapping[str, Any], str, str]
) -> None:
    """Store solver, configuration, source and math, unless the configuration is no JSON value."""
    solver, config, source, math = decision
    with contextlib.suppress(TypeError, ValueError):
        if json.loads(json.dumps(dict(config))) == dict(config):
            value = {"solver": solver, "config": dict(config), "source": source, "math": math}
            decision_store(device).put("decisions", artifact_store.decision_key(problem, policy), value)


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


def _stored_candidate(problem: ConvProblem, device: DeviceInfo, decision: Mapping[str, Any] | None) -> Candidate | None:
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
