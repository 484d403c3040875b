"""Caches rendered templates on disk, so that a second process renders none and imports no template engine.

A file's name is a digest of what the text depends on: the template, its values, and the sources of the packages whose
functions and classes are among these values. Templates whose values cannot be pickled are rendered each time. The files
are in the folder of the compiled kernels (``binary_cache``), and share its size limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import binary_cache

_FILE_HEADER = b"convdispatch text 1\n"
_SOURCES = (".py", ".mako", ".cl")
_SETS = (set, frozenset)
_VERSIONED = ("numpy", "ml_dtypes")
"""Packages of many files, whose sources are identified by their version."""


class _Pickler(pickle.Pickler):
    """Notes the modules that values refer to. Of dataclasses it pickles only the fields, because other attributes are
    computed from them and may differ between processes, as a hash does."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.fast = True  # pickle without a memo, so that equal values give equal bytes, whichever objects they share
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        self.modules.update((kind.__module__, getattr(value, "__module__", None) or kind.__module__))
        if kind is value or not dataclasses.is_dataclass(value):
            return NotImplemented
        if not _is_immutable(value):
            return _constructor, (kind, _fields(value))
        cached = _pickled.get(id(value))  # cached, because the texts of one plan are rendered with the same objects
        if cached is None or cached[0] is not value:
            content, modules = _pickle(_fields(value))
            if len(_pickled) >= _MAX_PICKLED:
                _pickled.clear()
            cached = _pickled[id(value)] = value, content, modules
        self.modules |= cached[2]
        return _constructor, (kind, cached[1])


_MAX_PICKLED = 64
_pickled: dict[int, tuple[Any, bytes, set[str]]] = {}
"""Frozen dataclasses by their id, with the pickle of their fields and the modules that the fields refer to."""


def _is_immutable(value: Any) -> bool:
    try:
        return bool(value.__dataclass_params__.frozen) and hash(value) is not None
    except TypeError:
        return False


def _pickle(value: Any) -> tuple[bytes, set[str]]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.modules


def _fields(value: Any) -> list[tuple[str, Any]]:
    """A dataclass's fields, in the same order in each process."""
    fields = [(name, getattr(value, name)) for name in _names(type(value))]
    return [(n, sorted(each, key=repr) if isinstance(each, _SETS) else each) for n, each in fields]


@functools.lru_cache(maxsize=256)
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _constructor(*_: Any) -> None:
    """Replaces the constructor of a dataclass in a pickle that is never loaded."""


class Subject:
    """What a rendered text depends on: the template, its values, and the sources of the functions among these."""

    def __init__(self, package: str, template: str, values: Mapping[str, Any]) -> None:
        self._content: bytes | None = None
        # A local function, a device's object or a cycle cannot be pickled, so a text with such values has no key.
        with contextlib.suppress(Exception):
            content, modules = _pickle(dict(values))
            self._content = f"{len(template)}:{template}".encode() + content
            self._homes = sorted({_source_package(module) for module in {package, __name__, *modules}})

    def text_key(self) -> str | None:
        """The key under which this machine caches the text; None where the values cannot be pickled."""
        return self._key(stamp)

    def artifact_key(self) -> str | None:
        """The key in plan packs for other machines: it uses the sources' content, not their modification times."""
        return self._key(_content)

    def _key(self, stamp: Callable[[str], str]) -> str | None:
        if self._content is None:
            return None
        digest = hashlib.sha256(self._content)
        for home in self._homes:
            digest.update(stamp(home).encode())
        return digest.hexdigest()[:40]


def _source_package(module: str) -> str:
    """The package of a module's sources; for a module of convdispatch, its subpackage."""
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] == __name__.partition(".")[0] else parts[:1])


@functools.lru_cache(maxsize=64)
def stamp(home: str) -> str:
    """A digest of the modification times and sizes of a package's source files."""
    # os.stat is used, because Path.stat is slow for the hundreds of files of a package.
    statistics = ((name, os.stat(path)) for name, path in _sources(home))  # noqa: PTH116
    text = ";".join(f"{name} {status.st_mtime_ns} {status.st_size}" for name, status in statistics)
    return f"{home} {_version(home)} {hashlib.sha256(text.encode()).hexdigest()}"


@functools.lru_cache(maxsize=64)
def _content(home: str) -> str:
    """A digest of the content of a package's source files."""
    digest = hashlib.sha256()
    for name, path in _sources(home):
        digest.update(f"{name} {hashlib.sha256(Path(path).read_bytes()).hexdigest()};".encode())
    return f"{home} {_version(home)} {digest.hexdigest()}"


def _version(home: str) -> str:
    return getattr(sys.modules.get(home), "__version__", "")


def _sources(home: str) -> list[tuple[str, str]]:
    """The name and path of each source file of a package, sorted; empty where its version suffices."""
    if home.partition(".")[0] in sys.stdlib_module_names or home in _VERSIONED:
        return []
    module = sys.modules.get(home)
    file = getattr(module, "__file__", None)
    folders = list(getattr(module, "__path__", ())) or ([str(Path(file).parent)] if file else [])
    names = []
    for folder in folders:
        for place, _, files in os.walk(folder):
            relative = os.path.relpath(place, folder)
            names += [(f"{relative}/{n}", os.path.join(place, n)) for n in files if n.endswith(_SOURCES)]  # noqa:PTH118
    return sorted(names)


def load(key: str) -> str | None:
    """The text cached under a key; None where there is none, or a damaged one."""
    folder = binary_cache.folder()
    content = None if folder is None else binary_cache.read_file(folder / f"{key}.txt", _FILE_HEADER)
    try:
        return None if content is None else zlib.decompress(content).decode()
    except (zlib.error, UnicodeDecodeError):
        return None


def store(key: str, text: str) -> None:
    """Cache a text; does nothing where the folder cannot be written."""
    folder = binary_cache.folder()
    if folder is not None:
        binary_cache.write_file(folder / f"{key}.txt", _FILE_HEADER, zlib.compress(text.encode(), 1))
