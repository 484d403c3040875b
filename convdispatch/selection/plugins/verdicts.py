"""The faults and successes of plugins on this machine, stored across processes in two tables beside the records.

``verdicts`` are the solvers that ``find`` saw compute wrong results, crash or hang, and the plugins that ``verify``
passed; a choice depends on them. ``answers`` say how importing plugins and asking their solvers ended child processes.
Everything holds for the plugin's version and source hash, so a new version starts without entries. Both are evidence:
clearing the store does not clear them. Entries that cannot be written last for the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError
from ...api.problem import ConvProblem
from ...device import plainfile
from ...device.cache.keys import key_of
from ...device.cache.store import JSON, Table
from ...device.child import is_child, trial
from ..records.perfdb import user_folder
from ..records.record import device_key

TRIES_FIRST = True
"""Whether a plugin that did not come with this package is imported in a child process before it is imported here."""
IMPORT_S = 60.0
"""Seconds that a plugin may take to import in a child, on a busy machine."""
_HASHED_SUFFIXES = {".py", ".cl", ".mako", ".so", ".dll", ".pyd"}
_CHILD = "import sys; from convdispatch.selection.plugins.loader import load_alone; load_alone(sys.argv[1])"
VERDICTS = Table("verdicts", "faults of solvers, and verified plugins", JSON, user_folder)
ANSWERS = Table("answers", "what plugins did in child processes", JSON, user_folder)
_VERIFIED = "verified "
"""The beginning of the subject of a verified plugin's entry."""
_lock = threading.Lock()
_loaded: dict[Path, dict[str, dict[str, Any]]] = {}
"""The entries of the table of verdicts by their subject, for each folder of records."""


def verdicts() -> dict[str, dict[str, Any]]:
    """The verdicts by what they are about, which are read once a process and again after ``refresh``."""
    folder = user_folder()
    with _lock:
        if folder not in _loaded:
            values = (entry.value for entry in VERDICTS.entries())
            _loaded[folder] = {value["of"]: value for value in values if _is_valid(value.get("of"), value)}
        return _loaded[folder]


def _is_valid(subject: Any, value: dict[str, Any]) -> bool:
    """Whether an entry is a verified plugin's, or about a solver and the problem that it was asked about."""
    asked = value.get("asked")
    if not isinstance(asked, str) or not isinstance(subject, str):
        return asked is None and str(subject).startswith(_VERIFIED)
    try:
        return subject.startswith(asked + " ") and str(ConvProblem.parse(asked)) == asked
    except ConvDispatchError:
        return False


def _store(subject: str, value: dict[str, Any]) -> None:
    value = {"of": subject, **value}
    verdicts()[subject] = value
    VERDICTS.put(key_of(subject), value, subject)


def refresh() -> None:
    """Drop what is cached in memory, so that the next look-up reads the disk again."""
    with _lock:
        _loaded.clear()
    VERDICTS.forget()
    ANSWERS.forget()


def lift(problem: ConvProblem | None = None) -> None:
    """Remove the faults of solvers at a problem; without one, the faults of all solvers, and what child processes
    said."""
    for subject in list(verdicts()):
        if not subject.startswith(_VERIFIED) if problem is None else subject.startswith(f"{problem} "):
            verdicts().pop(subject, None)
            VERDICTS.remove(key_of(subject))
    if problem is None:
        ANSWERS.clear()


def fingerprint(version: str, places: Iterable[Path]) -> str:
    """A plugin's version and source hash: of the Python files, kernels and libraries in its files and folders."""
    digest = hashlib.sha256()
    for root in places:
        paths = sorted(p for p in root.rglob("*") if p.suffix in _HASHED_SUFFIXES) if root.is_dir() else [root]
        for path in paths:
            with contextlib.suppress(OSError):
                digest.update(path.name.encode() + b"\0" + plainfile.read_bytes(path))
    return f"{version} {digest.hexdigest()[:16]}".strip()


# --- how importing plugins ended -------------------------------------------------------------------------------------


def import_fault(plugin: str, version: str) -> str | None:
    """Return as text how this version of a plugin ended a process that imported it; None if it did not.

    It is imported in a child process first, once a machine; this process itself may be such a child.
    """
    how = how_import_ended(plugin, version)
    if how is None and TRIES_FIRST and not is_child():
        how = try_import(plugin, version)
    return how or None


def how_import_ended(plugin: str, version: str) -> str | None:
    """How a child process ended that imported this version of a plugin; empty if it survived, None if none did."""
    entry = ANSWERS.get(key_of("import", plugin, version))
    return None if entry is None else str(entry.get("how") or "")


def try_import(plugin: str, version: str) -> str | None:
    """Import a plugin in a child process; return how that ended the child, empty if it survived, and store it. None:
    the operating system starts no process."""
    how = trial(["-W", "ignore", "-c", _CHILD, plugin], "is imported", IMPORT_S)
    if how is not None:
        ANSWERS.put(key_of("import", plugin, version), {"how": how}, f"importing {plugin} {version}")
    return how


# --- how asking solvers ended ----------------------------------------------------------------------------------------


def note(problem: ConvProblem, device: DeviceInfo, solver: str, version: str, what: str) -> None:
    """Store that a solver was wrong, crashed or hung at a problem on a device with its present driver."""
    entry = {"version": version, "what": what, "asked": str(problem)}
    _store(_subject(problem, device, solver), entry)


def against(problem: ConvProblem, device: DeviceInfo, solver: str, version: str) -> str | None:
    """The stored fault of a solver at a problem on a device, as text, or None."""
    entries = verdicts()
    entry = entries.get(_subject(problem, device, solver)) if entries else None
    if entry is None or entry.get("version") != version:
        return None
    return f"{entry.get('what')}, seen earlier on this machine (convdispatch find --again tries it anew)"


def seen(device: DeviceInfo) -> Iterator[tuple[ConvProblem, str, str, str]]:
    """Problem, solver, plugin's version and fault, of each solver that failed on a device with its present driver."""
    for subject, entry in list(verdicts().items()):
        if subject.startswith(_VERIFIED):
            continue
        problem, solver = ConvProblem.parse(entry["asked"]), subject.rpartition(" ")[2]
        if subject == _subject(problem, device, solver):
            yield problem, solver, str(entry.get("version")), str(entry.get("what"))


def _subject(problem: ConvProblem, device: DeviceInfo, solver: str) -> str:
    return f"{problem} {device_key(device)} {device.driver} {solver}"


def answers(plugin: str, version: str) -> dict[str, str]:
    """How querying this version of a plugin ended child processes, by solver."""
    faults = (ANSWERS.get(key_of("answers", plugin, version)) or {}).get("faults")
    return {str(solver): str(how) for solver, how in faults.items()} if isinstance(faults, dict) else {}


def note_answers(plugin: str, version: str, faults: dict[str, str]) -> None:
    """Store how querying this version of a plugin ended child processes, by solver."""
    ANSWERS.put(key_of("answers", plugin, version), {"faults": faults}, f"asking {plugin} {version}")


def survival(plugin: str, version: str, problem: ConvProblem, device: DeviceInfo) -> str:
    """The key in ANSWERS under which it is stored that a child process survived queries about a problem."""
    return key_of("survived", plugin, version, str(problem), device_key(device))


# --- verified plugins ------------------------------------------------------------------------------------------------


def trust(plugin: str, version: str) -> None:
    """Store that this version of a plugin was verified on this machine."""
    _store(_VERIFIED + plugin, {"version": version})


def trusted(plugin: str, version: str) -> bool:
    """Whether this version of a plugin was verified on this machine."""
    return verdicts().get(_VERIFIED + plugin, {}).get("version") == version
