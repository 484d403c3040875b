"""The store on disk: what this machine decided and made, in tables, for all processes of the user.

A table maps keys to values. A key is a digest of all that its value follows from (``keys``), so nothing else has to
invalidate a value. Each value is a file ``KEY.TABLE`` in one folder, written under another name and then renamed, and
never locked: readers and writers do not wait for each other. ``claimed`` is for work that one of several processes does
for all. A file that is damaged or of another version counts as missing. Beyond ``MAX_BYTES`` the least recently used
files are removed.

``CONVDISPATCH_KERNEL_CACHE`` names another folder; with ``off`` a value lasts for the process at most. Plan packs
(``artifact_store``) have tables of the same names, which come first. See docs/design/caches.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...api import settings
from .. import jsontext, plainfile
from ..cache_home import user_folder
from . import artifact_store

try:
    import fcntl
except ImportError:  # Windows has no ``fcntl`` file locks, so nobody leaves work to another process.
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import pyopencl as cl

_HEADER = b"convdispatch store 1\n"
MAX_BYTES = 1 << 30
"""The most bytes of all files; a file counts as a block of the disk at least."""
_BLOCK_BYTES = 4096
_SWEEPS = 64
"""The mean number of sweeps over all files while ``MAX_BYTES`` bytes are written."""
_MAX_LABEL_BYTES = 1024
_MAX_IN_MEMORY = 1 << 16
"""The most values that a table of JSON caches in memory."""
_sweep_draws = random.Random()
"""Decides which writes sweep; separate from Python's global random numbers, which belong to the user's program."""
_lock = threading.Lock()


def folder() -> Path | None:
    """The folder of the store; None where it is off."""
    chosen = settings.KERNEL_CACHE.value()
    return None if chosen == settings.OFF else chosen or default_folder()


def default_folder() -> Path:
    """The folder of the store where no variable names another."""
    return user_folder("cache") / "kernels"


@contextlib.contextmanager
def claimed(name: str, wait: bool = True) -> Iterator[bool]:
    """Claims a name for the block among the processes that share the folder; False, without ``wait``, where another
    process holds it. True at once where nothing can be locked. The claim of a process that dies ends."""
    with contextlib.ExitStack() as opened:
        is_claimed, place = True, folder()
        if place is not None and fcntl is not None:
            with contextlib.suppress(OSError):  # a folder that cannot be written, or whose file system has no locks
                place.mkdir(parents=True, exist_ok=True)
                path = place / f"{name[:40]}.claim"
                file = opened.enter_context(path.open("wb"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                    opened.callback(path.unlink, missing_ok=True)
                except BlockingIOError:
                    is_claimed = False
        yield is_claimed


class Form(NamedTuple):
    """How the values of a table become bytes and are read back, which raises ValueError for bytes of another form."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    in_memory: bool = False
    """Whether values are also cached in memory: without a folder they last for the process."""


def _text(data: bytes) -> str:
    try:
        return zlib.decompress(data).decode()
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _mapping(data: bytes) -> dict[str, Any]:
    value = jsontext.loads(data)
    if not isinstance(value, dict):
        raise ValueError("it is no mapping")
    return value


BYTES = Form(bytes, bytes)
TEXT = Form(lambda text: zlib.compress(text.encode(), 1), _text)
JSON = Form(lambda value: json.dumps(value).encode(), _mapping, in_memory=True)


@dataclass(frozen=True)
class Entry:
    """A stored value as ``convdispatch cache show`` lists it."""

    label: str
    """What the value is of: a problem, a net, a kernel."""
    value: Any
    """The value of a table of JSON; else None."""
    nbytes: int
    used: float
    """When the value was last read or written, in seconds since 1970."""


class Table:
    """One table, in the store's folder or in another; ``what`` says what its values are."""

    def __init__(self, name: str, what: str, form: Form, place: Callable[[], Path | None] | None = None) -> None:
        self.name, self.what, self._form, self.folder = name, what, form, place or folder
        self._memory: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """The value that was stored under a key; None if there is none."""
        path = self._path(key)
        value = self._memory.get(path)
        if value is not None or path == key:
            return value
        value = self._read(path)[1]
        if value is not None:
            with contextlib.suppress(OSError):
                os.utime(path)  # the file's time is that of its last use, by which _sweep removes files
            self._cache(path, value)
        return value

    def put(self, key: str, value: Any, label: str = "") -> None:
        """Store a value; without effect on other processes where the folder cannot be written or the disk is full."""
        path = self._path(key)
        if self._form.in_memory and self._memory.get(path) == value:
            return
        self._cache(path, value)
        if path == key:
            return
        content = self._form.encode(value)
        words = " ".join(label.split()).encode()[:_MAX_LABEL_BYTES].decode(errors="ignore").encode() + b"\n"
        with contextlib.suppress(OSError):
            plainfile.publish(path, _HEADER + hashlib.sha256(words + content).digest() + words + content)
            if _sweep_draws.random() * MAX_BYTES < max(len(content), _BLOCK_BYTES) * _SWEEPS:
                self._sweep(Path(path).parent)

    def cached(
        self,
        key: str | None,
        pack_key: str | None,
        make: Callable[[], Any],
        label: str = "",
        device: cl.Device | None = None,
    ) -> Any:
        """The value from a plan pack in force, from the disk, or made now, stored, and added to packs being gathered.

        ``key`` is the one on this machine's disk; with None for one of the keys that place is passed over. A made value
        of None is not stored.
        """
        packed = pack_key and artifact_store.find(self.name, pack_key, device)
        value = packed[0] if packed else key and self.get(key)
        if value is None:
            value = make()
            if value is not None and key is not None:
                self.put(key, value, label)
        if value is not None and pack_key is not None:
            artifact_store.note(self.name, pack_key, lambda: value, device)
        return value

    def entries(self) -> Iterator[Entry]:
        """The stored values, the least recently used first."""
        for status, path in _listed(self.folder(), self._is_own):
            label, value = self._read(path)
            if label is not None:
                yield Entry(label, value if self._form.in_memory else None, status.st_size, status.st_mtime)

    def size(self) -> tuple[int, int]:
        """The number of the table's files, and their bytes."""
        sizes = [status.st_size for status, _ in _listed(self.folder(), self._is_own)]
        return len(sizes), sum(sizes)

    def is_empty(self) -> bool:
        """Whether no value is on disk; cheaper than ``size``, because it ends at the first file."""
        with contextlib.suppress(OSError), os.scandir(self.folder() or os.devnull) as files:
            return not any(self._is_own(file.name) for file in files)
        return True

    def clear(self) -> int:
        """Remove every value; returns the bytes of the files that were removed."""
        self.forget()
        return sum(_removed(status, path) for status, path in _listed(self.folder(), self._is_own))

    def remove(self, key: str) -> None:
        """Remove the value of a key, if there is one."""
        path = self._path(key)
        self._memory.pop(path, None)
        with contextlib.suppress(OSError):
            Path(path).unlink()

    def forget(self) -> None:
        """Drop what is cached in memory, so that the next look-up reads the disk."""
        self._memory.clear()

    def _path(self, key: str) -> str:
        """The path of a key's file; the key itself where nothing is stored."""
        place = self.folder()
        return key if place is None else f"{place}/{key[:40]}.{self.name}"

    def _sweep(self, place: Path) -> None:
        """Remove the least recently used files of a folder, this table's and those of the store, beyond the limit."""
        tables = {self, *TABLES.values()}
        files = _listed(place, lambda name: any(table._is_own(name) for table in tables))
        total = sum(max(status.st_size, _BLOCK_BYTES) for status, _ in files)
        for status, path in files:
            if total <= MAX_BYTES:
                return
            if _removed(status, path):
                total -= max(status.st_size, _BLOCK_BYTES)

    def _is_own(self, name: str) -> bool:
        return name.endswith(f".{self.name}") or (name.endswith(plainfile.DRAFT) and f".{self.name}." in name)

    def _read(self, path: str) -> tuple[str | None, Any]:
        """The label and the value of a file; None for both of one that is missing or damaged."""
        with contextlib.suppress(OSError, ValueError):
            content = plainfile.read_bytes(path)
            start = len(_HEADER) + hashlib.sha256().digest_size
            body = memoryview(content)[start:]
            if content.startswith(_HEADER) and hashlib.sha256(body).digest() == content[len(_HEADER) : start]:
                end = content.index(b"\n", start)
                return content[start:end].decode(), self._form.decode(content[end + 1 :])
        return None, None

    def _cache(self, path: str, value: Any) -> None:
        if self._form.in_memory:
            with _lock:
                self._memory[path] = value
                while len(self._memory) > _MAX_IN_MEMORY:
                    del self._memory[next(iter(self._memory))]


DECISIONS = Table("decisions", "the solver and configuration that run a problem", JSON)
FORMS = Table("forms", "the layout or engine that runs a net", JSON)
TEXTS = Table("texts", "texts of kernels, and checks that a device passed", TEXT)
PROGRAMS = Table("programs", "compiled kernels, and machine code of CUDA's driver", BYTES)
TRIALS = Table("trials", "what libraries did in child processes", JSON, lambda: folder() or default_folder())
TARGETS = Table("targets", "what kernels take on the devices of `convdispatch targets`", JSON)
TABLES = {table.name: table for table in (DECISIONS, FORMS, TEXTS, PROGRAMS, TRIALS, TARGETS)}


def _listed(place: Path | None, which: Callable[[str], bool]) -> list[tuple[os.stat_result, str]]:
    """State and path of the files in a folder whose names satisfy ``which``, the least recently used first."""
    files = []
    with contextlib.suppress(OSError), os.scandir(place or os.devnull) as entries:
        for entry in entries:  # Path objects of tens of thousands of files would take most of the time
            with contextlib.suppress(OSError):
                if which(entry.name):
                    files.append((entry.stat(), entry.path))
    return sorted(files, key=lambda file: file[0].st_mtime)


def _removed(status: os.stat_result, path: str) -> int:
    """Remove a file; returns its bytes, 0 if it could not be removed."""
    with contextlib.suppress(OSError):
        Path(path).unlink()
        return status.st_size
    return 0
