"""The faults and successes of plugins on this machine, stored across processes in one file in the folder of records.

Which plugins end the process that imports them; which solvers ``find`` saw compute wrong results, crash or hang; which
plugins ``verify`` passed. All of it by the plugin's version and text: another version begins anew. What cannot be
written lasts for the process.
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
from ..records.record_files import publish

IMPORT_S = 60.0
"""Seconds that a plugin may take to import in a child, on a busy machine."""
_KINDS = {"imports": dict, "trusted": dict, "solvers": dict, "answers": dict}
_TEXTS = {".py", ".cl", ".mako", ".so", ".dll", ".pyd"}
_CHILD = "import sys; from convdispatch.selection.plugins.loader import load_alone; load_alone(sys.argv[1])"
_MOST_SURVIVED = 2000
"""The number of survived problems that are stored for each plugin, the latest ones."""
_TOGETHER = 64
"""Survived problems are written to the file in batches of this size, because repeating a lost trial costs little."""
_lock = threading.RLock()
_known: dict[Path, dict[str, Any]] = {}
_fresh: dict[tuple[Path, str, str], list[str]] = {}
"""Survived problems that are not written to the file yet, by file, plugin and version."""


def _file() -> Path:
    return user_folder() / "verdicts.json"


def _held() -> dict[str, Any]:
    """The file's content, which is read once a process and again after ``refresh``."""
    file = _file()
    with _lock:
        if file not in _known:
            _known[file] = _read(file)
        return _known[file]


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
    found = {kind: values[kind] if isinstance(values.get(kind), like) else like() for kind, like in _KINDS.items()}
    found["solvers"] = {place: held for place, held in found["solvers"].items() if _sound(place, held)}
    return found


def _sound(place: str, held: Any) -> bool:
    """Whether an entry about a solver is of the problem that was asked: it says which, and that one reads back as it.

    Earlier versions noted no such thing, and under a problem that a plugin had changed they blamed innocent solvers.
    """
    queried = held.get("asked") if isinstance(held, dict) else None
    if not isinstance(queried, str) or not place.startswith(queried + " "):
        return False
    try:
        return str(ConvProblem.parse(queried)) == queried
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


def _change(kind: str, key: str, value: Any) -> None:
    """Set one entry, or remove it for None; other processes' entries stay."""
    with _lock:
        values = _read(_file())
        for each in _KINDS:  # Entries that could not be written to the file remain known in this process.
            values[each] = {**_held()[each], **values[each]}
        values[kind].pop(key, None)
        if value is not None:
            values[kind][key] = value
        _known[_file()] = values
        with contextlib.suppress(OSError):
            publish(_file(), json.dumps(values, sort_keys=True, indent=1) + "\n")


def refresh() -> None:
    """Have the file read again at the next look-up."""
    with _lock:
        _known.clear()


def lift(problem: ConvProblem | None = None) -> None:
    """Forget what was seen of solvers at a problem; without one, of all solvers, and of imports too."""
    with _lock:
        values = _read(_file())
        if problem is None:
            values["imports"] = values["solvers"] = values["answers"] = {}
            _fresh.clear()
        else:
            values["solvers"] = {k: v for k, v in values["solvers"].items() if k.split(" ")[0] != str(problem)}
        _known[_file()] = values
        with contextlib.suppress(OSError):
            publish(_file(), json.dumps(values, sort_keys=True, indent=1) + "\n")


def fingerprint(version: str, places: Iterable[Path]) -> str:
    """A plugin's version and the hash of its text: Python, kernels and libraries below its files and folders."""
    digest = hashlib.sha256()
    for place in places:
        paths = sorted(p for p in place.rglob("*") if p.suffix in _TEXTS) if place.is_dir() else [place]
        for path in paths:
            with contextlib.suppress(OSError):
                digest.update(path.name.encode() + b"\0" + plainfile.read_bytes(path))
    return f"{version} {digest.hexdigest()[:16]}".strip()


# --- how importing plugins ended -------------------------------------------------------------------------------------


def import_fault(plugin: str, version: str, *, untried: bool = False) -> str | None:
    """Return as text how this version of a plugin ended a process that imported it; None if it did not.

    A process that ended in the middle of an import left a note of it: then the import is tried in a child first. With
    ``untried`` it is tried there before the first import anyway.
    """
    held = _held()["imports"].get(plugin)
    known = isinstance(held, dict) and held.get("version") == version
    if known and held.get("how"):
        return str(held["how"])
    notes = _left(plugin, version)
    fault = try_import(plugin, version) if notes or (untried and not known) else None
    for note in notes:
        with contextlib.suppress(OSError):
            note.unlink()
    return fault


def try_import(plugin: str, version: str) -> str | None:
    """Import a plugin in a child; how that ended the child, or None, which is remembered either way."""
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
    if _held()["imports"].get(plugin) != (entry := {"version": version, "how": how}):
        _change("imports", plugin, entry)
    return how or None


@contextlib.contextmanager
def importing(plugin: str, version: str) -> Iterator[None]:
    """Inside the block a marker file exists beside the records; it stays behind if the import ends the process."""
    note = _file().parent / f"importing-{_tag(plugin, version)}-{os.getpid()}"
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    try:
        yield
    # The user may have interrupted the import because it hung, so the marker file stays.
    except KeyboardInterrupt:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            note.unlink()
        raise
    with contextlib.suppress(OSError):
        note.unlink()


def _tag(plugin: str, version: str) -> str:
    return hashlib.sha256(f"{plugin}\0{version}".encode()).hexdigest()[:12]


def _left(plugin: str, version: str) -> list[Path]:
    """The marker files of processes that have ended, and of this one."""
    found = []
    # A file whose name holds no process id is no marker file.
    with contextlib.suppress(OSError, ValueError, OverflowError):
        for note in _file().parent.glob(f"importing-{_tag(plugin, version)}-*"):
            if not _alive(int(note.name.rpartition("-")[2])):
                found.append(note)
    return found


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
    """Store that a solver was seen wrong, crashing or hanging at a problem on a device with its present driver."""
    held = {"version": version, "what": what, "asked": str(problem)}
    _change("solvers", _place(problem, device, solver), held)


def against(problem: ConvProblem, device: DeviceInfo, solver: str, version: str) -> str | None:
    """Return as text what is stored against this version of a solver's plugin, or None."""
    held = _held()["solvers"]
    if not held:
        return None
    found = held.get(_place(problem, device, solver))
    if not isinstance(found, dict) or found.get("version") != version:
        return None
    return f"{found.get('what')}, seen earlier on this machine (convdispatch find --again tries it anew)"


def seen(device: DeviceInfo) -> Iterator[tuple[ConvProblem, str, str, str]]:
    """Problem, solver, plugin's version and what was seen, of each solver that failed on a device with its driver."""
    for place, held in _held()["solvers"].items():
        problem, solver = ConvProblem.parse(held["asked"]), place.rpartition(" ")[2]
        if place == _place(problem, device, solver):
            yield problem, solver, str(held.get("version")), str(held.get("what"))


def _place(problem: ConvProblem, device: DeviceInfo, solver: str) -> str:
    return f"{problem} {device_key(device)} {device.driver} {solver}"


def answers(plugin: str, version: str) -> dict[str, str]:
    """Return how querying this version of a plugin ended a process, by solver."""
    faults = _answers(plugin, version).get("faults")
    return {str(solver): str(how) for solver, how in faults.items()} if isinstance(faults, dict) else {}


def survived(plugin: str, version: str, problem: ConvProblem, device: DeviceInfo) -> bool:
    """Whether a child process in which this version of a plugin was asked about a problem came back, but for faults."""
    mark = _mark(problem, device)
    return mark in _fresh.get((_file(), plugin, version), ()) or mark in _survived(plugin, version)


def note_answers(plugin: str, version: str, faults: dict[str, str]) -> None:
    """Store how asking this version of a plugin ended."""
    fresh = _fresh.pop((_file(), plugin, version), [])
    marks = [*_survived(plugin, version), *fresh][-_MOST_SURVIVED:]
    _change("answers", plugin, {"version": version, "faults": faults, "survived": marks})


def note_survived(plugin: str, version: str, problem: ConvProblem, device: DeviceInfo) -> None:
    """Store that this version of a plugin was asked about a problem: the first at once, later ones several together."""
    fresh = _fresh.setdefault((_file(), plugin, version), [])
    fresh.append(_mark(problem, device))
    if len(fresh) >= _TOGETHER or not _answers(plugin, version):
        note_answers(plugin, version, answers(plugin, version))


@atexit.register
def _write_fresh() -> None:
    for file, plugin, version in list(_fresh):
        if file == _file():
            note_answers(plugin, version, answers(plugin, version))


def _answers(plugin: str, version: str) -> dict[str, Any]:
    held = _held()["answers"].get(plugin)
    return held if isinstance(held, dict) and held.get("version") == version else {}


def _survived(plugin: str, version: str) -> list[str]:
    held = _answers(plugin, version).get("survived")
    return [str(mark) for mark in held] if isinstance(held, list) else []


def _mark(problem: ConvProblem, device: DeviceInfo) -> str:
    return hashlib.sha256(f"{problem} {device_key(device)}".encode()).hexdigest()[:12]


# --- verified plugins ------------------------------------------------------------------------------------------------


def trust(plugin: str, version: str) -> None:
    """Store that this version of a plugin was verified on this machine."""
    _change("trusted", plugin, version)


def trusted(plugin: str, version: str) -> bool:
    """Whether this version of a plugin was verified on this machine."""
    return _held()["trusted"].get(plugin) == version
