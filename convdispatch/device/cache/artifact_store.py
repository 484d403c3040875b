"""Artifacts that travel between machines of one kind: programs, texts, decisions, packed weights, forms of nets.

``gathering`` collects the artifacts that are built inside it; ``put_in_force`` makes ``find`` search a collection that
was read from a file. Code that builds such artifacts calls ``find`` before and ``note`` after. ``selection.planpack``
writes collections to files, and checks those that it reads.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ...api.policy import forbid_when_frozen
from .keys import identity

if TYPE_CHECKING:
    import pyopencl as cl

TABLES = ("decisions", "forms", "texts", "programs", "weights")
"""Keys and values of the tables: problem to solver and configuration; net to layout; a text's sources to the
text; text to binary; weights and the key of their packed form to the packed form."""


class Collection(Protocol):
    """The artifacts that one file holds for one kind of device."""

    name: str
    identity: dict[str, str]

    def get(self, table: str, key: str) -> Any:
        """The stored value, or None."""

    def holds(self, table: str) -> bool:
        """Whether the collection has any value in a table."""


class Gathered:
    """The artifacts that were built for one kind of device inside ``gathering``."""

    def __init__(self, identity: dict[str, str], all_weights: bool = False) -> None:
        self.name, self.identity, self.all_weights = "what was just made", identity, all_weights
        self.tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}

    def get(self, table: str, key: str) -> Any:
        return self.tables[table].get(key)

    def holds(self, table: str) -> bool:
        return bool(self.tables[table])


_lock = threading.Lock()
_gathering: list[Gathered] = []
_in_force: list[Collection] = []


@functools.lru_cache(maxsize=64)
def _is_for(collection: Collection, device: cl.Device) -> bool:
    """Whether a collection is for devices like this one; cached until a collection is closed or taken out of force."""
    return collection.identity == identity(device)


def in_force(device: cl.Device | None = None) -> bool:
    """Whether any collection is in force for a device, or for any device."""
    return any(device is None or _is_for(collection, device) for collection in _in_force)


def wants_texts() -> bool:
    """Whether texts are being gathered, or a collection in force has any; computing a text's key costs more than this
    check."""
    return bool(_gathering) or any(collection.holds("texts") for collection in _in_force)


def gathers() -> bool:
    """Whether artifacts are being gathered now."""
    return bool(_gathering)


def all_weights() -> bool:
    """Whether every packed form of weights is to be gathered."""
    return any(gathered.all_weights for gathered in _gathering)


def find(table: str, key: str, device: cl.Device | None = None) -> tuple[Any, str] | None:
    """A value and the name of the collection that holds it; None if no collection in force for the device does."""
    for collection in _in_force:
        if device is None or _is_for(collection, device):
            value = collection.get(table, key)
            if value is not None:
                return value, collection.name
    return None


def note(table: str, key: str, value: Callable[[], Any], device: cl.Device | None = None) -> None:
    """Add a value to the collections that are gathering; it is computed only if a collection lacks it."""
    for gathered in list(_gathering):
        if key not in gathered.tables[table] and (device is None or _is_for(gathered, device)):
            gathered.tables[table][key] = value()


@contextlib.contextmanager
def gathering(device: cl.Device, all_weights: bool = False) -> Iterator[Gathered]:
    """Collect the artifacts that all threads build for devices of this kind inside the block; ``all_weights``: also
    packed forms that take longer to read than to build."""
    gathered = Gathered(identity(device), all_weights)
    with _lock:
        _gathering.append(gathered)
    try:
        yield gathered
    finally:
        with _lock:
            _gathering[:] = [other for other in _gathering if other is not gathered]
            _is_for.cache_clear()


def put_in_force(collection: Collection) -> None:
    """From now on ``find`` searches this collection, before those that are in force already."""
    with _lock:
        _in_force.insert(0, collection)


def take_out_of_force(collection: Collection) -> None:
    """``find`` no longer searches this collection; programs and plans made from it stay."""
    with _lock:
        _in_force[:] = [active for active in _in_force if active is not collection]
        _is_for.cache_clear()


def forbid_unstored(what: str, device: cl.Device) -> None:
    """Raise Frozen inside ``frozen()``, unless a collection in force serves the device, which ``what`` then uses."""
    if not in_force(device):
        forbid_when_frozen(what)
