"""The keys of rendered texts: digests of all that a text depends on, so that a second process renders none.

These are the template, its values, and the sources of the packages whose functions and classes are among these values.
Templates whose values cannot be pickled have no key and are rendered each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from ..cache import keys

_SETS = (set, frozenset)


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
        """The text's key in this machine's store; None where the values cannot be pickled."""
        return self._key(keys.stamp)

    def artifact_key(self) -> str | None:
        """The key in plan packs for other machines: it uses the sources' content, not their modification times."""
        return self._key(keys.content)

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
