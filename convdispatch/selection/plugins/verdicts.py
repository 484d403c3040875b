"""The faults and successes of plugins on this machine, stored across processes in one file in the folder of records.

Stored are the plugins that end the process that imports them; the solvers that ``find`` saw compute wrong results,
crash or hang; and the plugins that ``verify`` passed. Everything is keyed by the plugin's version and source hash, so a
new version starts without entries. Entries that cannot be written last for the process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError, ConvDispatchWarning
from ...api.problem import ConvProblem
from ...device import jsontext, plainfile
from ..records.perfdb import user_folder
from ..records.record import device_key

IMPORT_S = 60.0
"""Seconds that a plugin may take to import in a child, on a busy machine."""
_TABLE_TYPES = {"imports": dict, "trusted": dict, "solvers": dict, "answers": dict}
_HASHED_SUFFIXES = {".py", ".cl", ".mako", ".so", ".dll", ".pyd"}
_CHILD = "import sys; from convdispatch.selection.plugins.loader import load_alone; load_alone(sys.argv[1])"
_MAX_SURVIVED = 2000
"""The number of survived problems that are stored for each plugin, the latest ones."""
_BATCH_SIZE = 64
"""Survived problems are written to the file in batches of this size, because repeating a lost trial costs little."""
_lock = threading.RLock()
_tables_of_file: dict[Path, dict[str, Any]] = {}
_unwritten: dict[tuple[Path, str, str], list[str]] = {}
"""Survived problems that are not written to the file yet, by file, plugin and version."""


def _file() -> Path:
    return user_folder() / "verdicts.json"


def _tables() -> dict[str, Any]:
    """The file's content, which is read once a process and again after ``refresh``."""
    file = _file()
    with _lock:
        if file not in _tables_of_file:
            _tables_of_file[file] = _read(file)
        return _tables_of_file[file]


def _read(file: Path) -> dict[str, Any]:
    try:
        values = jsontext.loads(plainfile.read_text(file))
        if not isinstance(values, dict):
            raise ValueError("no table")
    except OSError:
        values = {}
    except ValueError as error:  # A damaged file is renamed and its content is lost, but no call fails.
        _set_aside(file, str(error))
        values = {}
    tables = {
        kind: values[kind] if isinstance(values.get(kind), type_) else type_() for kind, type_ in _TABLE_TYPES.items()
    }
    tables["solvers"] = {key: entry for key, entry in tables["solvers"].items() if _is_valid(key, entry)}
    return tables


def _is_valid(key: str, entry: Any) -> bool:
    """Whether an entry about a solver states its problem, and that is the problem of its key.

    Earlier versions did not state it, and blamed innocent solvers under a problem that a plugin had changed.
    """
    asked = entry.get("asked") if isinstance(entry, dict) else None
    if not isinstance(asked, str) or not key.startswith(asked + " "):
        return False
    try:
        return str(ConvProblem.parse(asked)) == asked
    except ConvDispatchError:
        return False


def _set_aside(file: Path, reason: str) -> None:
    """Rename a damaged file, so that it is reported once and can still be examined."""
    target = file.with_suffix(".damaged")
    words = f"{file} is damaged ({reason}) and moved to {target.name}: what plugins did here is forgotten"
    try:
        file.replace(target)
    except OSError:
        words = f"{file} is damaged ({reason}) and passed over"
    warnings.warn(words, ConvDispatchWarning, stacklevel=2)


def _set_entry(kind: str, key: str, value: Any) -> None:
    """Set one entry, or remove it if ``value`` is None; other processes' entries stay."""
    with _lock:
        values = _read(_file())
        for table in _TABLE_TYPES:  # Entries that could not be written to the file remain known in this process.
            values[table] = {**_tables()[table], **values[table]}
        values[kind].pop(key, None)
        if value is not None:
            values[kind][key] = value
        _tables_of_file[_file()] = values
        with contextlib.suppress(OSError):
            plainfile.publish(_file(), json.dumps(values, sort_keys=True, indent=1) + "\n", durable=True)


def refresh() -> None:
    """Drop the cached content, so that the next look-up reads the file again."""
    with _lock:
        _tables_of_file.clear()


def lift(problem: ConvProblem | None = None) -> None:
    """Remove the faults of solvers at a problem; without one, the faults of all solvers and imports."""
    with _lock:
        values = _read(_file())
        if problem is None:
            values["imports"] = values["solvers"] = values["answers"] = {}
            _unwritten.clear()
        else:
            values["solvers"] = {k: v for k, v in values["solvers"].items() if k.split(" ")[0] != str(problem)}
        _tables_of_file[_file()] = values
        with contextlib.suppress(OSError):
            plainfile.publish(_file(), json.dumps(values, sort_keys=True, indent=1) + "\n", durable=True)


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


def import_fault(plugin: str, version: str, *, untried: bool = False) -> str | None:
    """Return as text how this version of a plugin ended a process that imported it; None if it did not.

    A process that ended during an import left a marker file; then the import is first tried in a child process. With
    ``untried`` it is always tried there before the first import.
    """
    entry = _tables()["imports"].get(plugin)
    is_tried = isinstance(entry, dict) and entry.get("version") == version
    if is_tried and entry.get("how"):
        return str(entry["how"])
    markers = _left_markers(plugin, version)
    fault = try_import(plugin, version) if markers or (untried and not is_tried) else None
    for marker in markers:
        with contextlib.suppress(OSError):
            marker.unlink()
    return fault


def try_import(plugin: str, version: str) -> str | None:
    """Import a plugin in a child process; return how that ended the child, or None. The result is stored."""
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(Path(__file__).parents[3])]
    try:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _CHILD, plugin],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=IMPORT_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        how = f"it hangs as it is imported: not done within {IMPORT_S:g} s"
    except OSError:  # The operating system starts no process, so nothing is learnt of the plugin.
        return None
    else:
        if b"\x02survived" in child.stdout:
            how = ""
        elif child.returncode < 0:
            how = f"it crashes as it is imported ({signal.Signals(-child.returncode).name})"
        else:
            how = f"it ends the process as it is imported (exit {child.returncode})"
    if _tables()["imports"].get(plugin) != (entry := {"version": version, "how": how}):
        _set_entry("imports", plugin, entry)
    return how or None


@contextlib.contextmanager
def importing(plugin: str, version: str) -> Iterator[None]:
    """Inside the block a marker file exists beside the records; it stays behind if the import ends the process."""
    marker = _file().parent / f"importing-{_tag(plugin, version)}-{os.getpid()}"
    with contextlib.suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    try:
        yield
    # The user may have interrupted the import because it hung, so the marker file stays.
    except KeyboardInterrupt:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            marker.unlink()
        raise
    with contextlib.suppress(OSError):
        marker.unlink()


def _tag(plugin: str, version: str) -> str:
    return hashlib.sha256(f"{plugin}\0{version}".encode()).hexdigest()[:12]


def _left_markers(plugin: str, version: str) -> list[Path]:
    """The marker files of this process and of processes that have ended."""
    markers = []
    # A file whose name holds no process id is no marker file.
    with contextlib.suppress(OSError, ValueError, OverflowError):
        for marker in _file().parent.glob(f"importing-{_tag(plugin, version)}-*"):
            if not _alive(int(marker.name.rpartition("-")[2])):
                markers.append(marker)
    return markers


def _alive(process: int) -> bool:
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


# --- how asking solvers ended ----------------------------------------------------------------------------------------


def note(problem: ConvProblem, device: DeviceInfo, solver: str, version: str, what: str) -> None:
    """Store that a solver was wrong, crashed or hung at a problem on a device with its present driver."""
    entry = {"version": version, "what": what, "asked": str(problem)}
    _set_entry("solvers", _entry_key(problem, device, solver), entry)


def against(problem: ConvProblem, device: DeviceInfo, solver: str, version: str) -> str | None:
    """The stored fault of a solver at a problem on a device, as text, or None."""
    entries = _tables()["solvers"]
    if not entries:
        return None
    entry = entries.get(_entry_key(problem, device, solver))
    if not isinstance(entry, dict) or entry.get("version") != version:
        return None
    return f"{entry.get('what')}, seen earlier on this machine (convdispatch find --again tries it anew)"


def seen(device: DeviceInfo) -> Iterator[tuple[ConvProblem, str, str, str]]:
    """Problem, solver, plugin's version and fault, of each solver that failed on a device with its present driver."""
    for key, entry in _tables()["solvers"].items():
        problem, solver = ConvProblem.parse(entry["asked"]), key.rpartition(" ")[2]
        if key == _entry_key(problem, device, solver):
            yield problem, solver, str(entry.get("version")), str(entry.get("what"))


def _entry_key(problem: ConvProblem, device: DeviceInfo, solver: str) -> str:
    return f"{problem} {device_key(device)} {device.driver} {solver}"


def answers(plugin: str, version: str) -> dict[str, str]:
    """How querying this version of a plugin ended a child process, by solver."""
    faults = _answers(plugin, version).get("faults")
    return {str(solver): str(how) for solver, how in faults.items()} if isinstance(faults, dict) else {}


def survived(plugin: str, version: str, problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether this version of a plugin was queried about a problem in a child process before."""
    mark = _mark(problem, device)
    return mark in _unwritten.get((_file(), plugin, version), ()) or mark in _survived(plugin, version)


def note_answers(plugin: str, version: str, faults: dict[str, str]) -> None:
    """Store how querying this version of a plugin ended child processes, by solver."""
    fresh = _unwritten.pop((_file(), plugin, version), [])
    marks = [*_survived(plugin, version), *fresh][-_MAX_SURVIVED:]
    _set_entry("answers", plugin, {"version": version, "faults": faults, "survived": marks})


def note_survived(plugin: str, version: str, problem: ConvProblem, device: DeviceInfo) -> None:
    """Store that this version of a plugin was queried about a problem; written in batches, except the first one."""
    fresh = _unwritten.setdefault((_file(), plugin, version), [])
    fresh.append(_mark(problem, device))
    if len(fresh) >= _BATCH_SIZE or not _answers(plugin, version):
        note_answers(plugin, version, answers(plugin, version))


@atexit.register
def _write_fresh() -> None:
    for file, plugin, version in list(_unwritten):
        if file == _file():
            note_answers(plugin, version, answers(plugin, version))


def _answers(plugin: str, version: str) -> dict[str, Any]:
    entry = _tables()["answers"].get(plugin)
    return entry if isinstance(entry, dict) and entry.get("version") == version else {}


def _survived(plugin: str, version: str) -> list[str]:
    marks = _answers(plugin, version).get("survived")
    return [str(mark) for mark in marks] if isinstance(marks, list) else []


def _mark(problem: ConvProblem, device: DeviceInfo) -> str:
    return hashlib.sha256(f"{problem} {device_key(device)}".encode()).hexdigest()[:12]


# --- verified plugins ------------------------------------------------------------------------------------------------


def trust(plugin: str, version: str) -> None:
    """Store that this version of a plugin was verified on this machine."""
    _set_entry("trusted", plugin, version)


def trusted(plugin: str, version: str) -> bool:
    """Whether this version of a plugin was verified on this machine."""
    return _tables()["trusted"].get(plugin) == version
