"""What a device has proved: a check that computes something on it, passed once, is not computed again.

A pass is kept beside the rendered texts, and in plan packs, under what it follows from: the device, its driver and how
that is told to compile, and the sources of the plugin, of the header and of this package. What fails is tried anew by
every process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...api.problem import ConvProblem
from ..cache import artifact_store
from ..commands.interface import thread
from ..planning_lock import unlocked
from . import template_cache

if TYPE_CHECKING:
    import pyopencl as cl

_PASSED = "passed"
_lock = threading.Lock()
_locks: dict[tuple[str, str, cl.Device], threading.RLock] = {}
_known: dict[tuple[str, str, cl.Device], str | None] = {}


def proven(package: str, what: str, device: cl.Device, prove: Callable[[], str | None]) -> str | None:
    """Why ``prove()`` finds that ``device`` fails at ``what``, or None; asked once a process, in one thread.

    ``package`` is the plugin's, whose sources decide. What ``prove`` raises is passed on, and it is asked again then.
    """
    if thread.texts is not None:  # program texts are only being rendered, perhaps for a device that is not there
        return None
    place = package, what, device
    if place not in _known or artifact_store.gathers():
        with _lock:
            lock = _locks.setdefault(place, threading.RLock())
        with unlocked():
            lock.acquire()
        try:
            if place not in _known:
                _known[place] = _stored_answer(package, what, device, prove)
            elif _known[place] is None:
                _note(_artifact_key(package, what, device))
        finally:
            lock.release()
    return _known[place]


def _subject(package: str, what: str, device: cl.Device) -> template_cache.Subject:
    """The Subject of a proof: what it depends on besides the plugin's sources, such as those of the header."""
    values = {"device": artifact_store.identity(device), "header": ConvProblem}
    return template_cache.Subject(package, f"proof of {what}", values)


def _artifact_key(package: str, what: str, device: cl.Device) -> str | None:
    """The key of a passed check in a plan pack."""
    return _subject(package, what, device).artifact_key()


def _stored_answer(package: str, what: str, device: cl.Device, prove: Callable[[], str | None]) -> str | None:
    carries = _artifact_key(package, what, device) if artifact_store.wants_texts() else None
    if carries is not None and artifact_store.find("texts", carries) is not None:
        return None
    key = _subject(package, what, device).text_key()
    if key is None or template_cache.load(key) != _PASSED:
        failure = prove()
        if failure is not None:
            return failure
        if key is not None:
            template_cache.store(key, _PASSED)
    _note(carries)
    return None


def _note(key: str | None) -> None:
    if key is not None:
        artifact_store.note("texts", key, lambda: _PASSED)
