"""Remembers the checks that a device has passed, so that each is computed on the device only once.

A passed check is cached beside the rendered texts, and in plan packs. Its key is a digest of the device, its driver and
the driver's compiler variables, and of the sources of the plugin, the header and this package. A failed check is
repeated by every process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyopencl as cl

from ...api.problem import ConvProblem
from ..cache import artifact_store
from ..commands.interface import thread
from ..planning_lock import unlocked
from . import template_cache

_PASSED = "passed"
_lock = threading.Lock()
_locks: dict[tuple[str, str, cl.Device], threading.RLock] = {}
_failures: dict[tuple[str, str, cl.Device], str | None] = {}


def proven(package: str, what: str, device: cl.Device, prove: Callable[[], str | None]) -> str | None:
    """The reason that ``prove()`` returns why ``device`` fails at ``what``, or None; called once a process, in one
    thread. ``package`` is the plugin's. If ``prove`` raises, nothing is cached.
    """
    if thread.texts is not None:  # program texts are only being rendered, perhaps for a device that is not present
        return None
    check = package, what, device
    if check not in _failures or artifact_store.gathers():
        with _lock:
            lock = _locks.setdefault(check, threading.RLock())
        with unlocked():
            lock.acquire()
        try:
            if check not in _failures:
                _failures[check] = _stored_answer(package, what, device, prove)
            elif _failures[check] is None:
                _note(_artifact_key(package, what, device))
        finally:
            lock.release()
    return _failures[check]


def _subject(package: str, what: str, device: cl.Device) -> template_cache.Subject:
    """The Subject of a check: everything that its result depends on."""
    values = {"device": artifact_store.identity(device), "header": ConvProblem}
    return template_cache.Subject(package, f"proof of {what}", values)


def _artifact_key(package: str, what: str, device: cl.Device) -> str | None:
    """The key of a passed check in a plan pack."""
    return _subject(package, what, device).artifact_key()


def _stored_answer(package: str, what: str, device: cl.Device, prove: Callable[[], str | None]) -> str | None:
    pack_key = _artifact_key(package, what, device) if artifact_store.wants_texts() else None
    if pack_key is not None and artifact_store.find("texts", pack_key) is not None:
        return None
    key = _subject(package, what, device).text_key()
    if key is None or template_cache.load(key) != _PASSED:
        failure = prove()
        if failure is not None:
            return failure
        if key is not None:
            template_cache.store(key, _PASSED)
    _note(pack_key)
    return None


def _note(key: str | None) -> None:
    if key is not None:
        artifact_store.note("texts", key, lambda: _PASSED)
