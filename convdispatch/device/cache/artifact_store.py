"""What travels between machines of a kind: programs, texts, decisions, packed weights, forms.

``gathering`` collects what is made inside it; ``put_in_force`` makes a collection that was read from a file answer for
devices of its kind. Those who make such things ask ``find`` before and tell ``note`` after. How a collection becomes a
file, and what of a file may be believed, stands in ``selection.planpack``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ...api.policy import Policy, forbid_when_frozen
from ...api.problem import ConvProblem

if TYPE_CHECKING:
    import pyopencl as cl

TABLES = ("decisions", "forms", "texts", "programs", "weights")
"""Problem to solver and configuration; net to layout and queues; what a text follows from to the text; text to binary;
weights and their packed form's key to the packed form."""
_COMPILERS = ("CL_CONFIG_", "POCL_", "IGC_")
"""Prefixes of the environment variables that change how a driver compiles, or its target."""


class Collection(Protocol):
    """The artifacts that one file holds for one kind of device."""

    name: str
    identity: dict[str, str]

    def get(self, table: str, key: str) -> Any:
        """The stored value, or None."""

    def holds(self, table: str) -> bool:
        """Whether the collection has any value in a table."""


class Gathered:
    """The artifacts that were made for one kind of device."""

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


def identity(device: cl.Device) -> dict[str, str]:
    """What a compiled kernel depends on besides its text: the device, its driver, and the variables that tell it how to
    compile."""
    return {**_fixed(device), "compiler variables": compiler_variables()}


def compiler_variables() -> str:
    """The variables that tell drivers how to compile, and their values."""
    return ";".join(f"{k}={os.environ.get(k)}" for k in sorted(k for k in os.environ if k.startswith(_COMPILERS)))


@functools.lru_cache(maxsize=64)
def _fixed(device: cl.Device) -> dict[str, str]:
    platform = device.platform
    return {
        "device": device.name,
        "OpenCL version": device.version,
        "driver": device.driver_version,
        "platform": f"{platform.name} {platform.version}",
        # Devices of one name may have different processors, for example where machines share a cache folder.
        "vector width": str(device.native_vector_width_float),
        "extensions": hashlib.sha256(device.extensions.encode()).hexdigest()[:16],
    }


def decision_key(problem: ConvProblem, policy: Policy) -> str:
    """The key of a decision for a problem; files hold decisions of the default policy only."""
    selection = policy.selection
    return str(problem) if selection == Policy() else f"{problem} under {selection}"


def key_of(*parts: str | bytes) -> str:
    """A digest of ``parts``, as the key of an artifact that follows from them."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _is_for(collection: Collection, device: cl.Device) -> bool:
    """Whether a collection is for devices like this one; checked once while it gathers or is in force."""
    return collection.identity == identity(device)


def in_force(device: cl.Device | None = None) -> bool:
    """Whether any collection is in force for a device, or for any device."""
    return any(device is None or _is_for(one, device) for one in _in_force)


def wanted(device: cl.Device | None = None) -> bool:
    """Whether artifacts are being gathered, or any collection is in force."""
    return bool(_gathering) or (bool(_in_force) and in_force(device))


def wants_texts() -> bool:
    """Whether texts are being gathered, or a collection in force has any; computing a text's key costs more than this
    check."""
    return bool(_gathering) or any(one.holds("texts") for one in _in_force)


def gathers() -> bool:
    """Whether artifacts are being gathered now."""
    return bool(_gathering)


def all_weights() -> bool:
    """Whether every packed form of weights is to be gathered."""
    return any(one.all_weights for one in _gathering)


def find(table: str, key: str, device: cl.Device | None = None) -> tuple[Any, str] | None:
    """Returns a value and the name of the collection that holds it; None where no collection in force for the device
    does."""
    for one in _in_force:
        if device is None or _is_for(one, device):
            value = one.get(table, key)
            if value is not None:
                return value, one.name
    return None


def note(table: str, key: str, value: Callable[[], Any], device: cl.Device | None = None) -> None:
    """Add a value to the collections that are gathering; it is computed only if a collection lacks it."""
    for one in list(_gathering):
        if key not in one.tables[table] and (device is None or _is_for(one, device)):
            one.tables[table][key] = value()


@contextlib.contextmanager
def gathering(device: cl.Device, all_weights: bool = False) -> Iterator[Gathered]:
    """Collect what all threads make for devices of this kind inside the block; ``all_weights``: also packed forms that
    take longer to read than to make."""
    gathered = Gathered(identity(device), all_weights)
    with _lock:
        _gathering.append(gathered)
    try:
        yield gathered
    finally:
        with _lock:
            _gathering[:] = [one for one in _gathering if one is not gathered]
            _is_for.cache_clear()


def put_in_force(collection: Collection) -> None:
    """From now on ``find`` searches this collection, before those that are in force already."""
    with _lock:
        _in_force.insert(0, collection)


def take_out_of_force(collection: Collection) -> None:
    """``find`` no longer searches this collection; programs and plans made from it stay."""
    with _lock:
        _in_force[:] = [one for one in _in_force if one is not collection]
        _is_for.cache_clear()


def forbid_unstored(what: str, device: cl.Device) -> None:
    """Raise Frozen inside ``frozen()``, unless a collection answers for the device: ``what`` makes use of it then."""
    if not in_force(device):
        forbid_when_frozen(what)
