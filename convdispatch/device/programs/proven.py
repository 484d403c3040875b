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
from ..background import unlocked
from ..cache import artifact_store
from ..cache.keys import identity
from ..cache.store import TEXTS
from ..commands.interface import thread
from .ptx_program import for_streams
from .template_cache import Subject

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
                _stored_answer(package, what, device, lambda: None)
        finally:
            lock.release()
    return _failures[check]


def _stored_answer(package: str, what: str, device: cl.Device, prove: Callable[[], str | None]) -> str | None:
    failure = None

    def passed() -> str | None:
        nonlocal failure
        with for_streams(launched_there=False):  # a probe launches on a queue of its own
            failure = prove()
        return _PASSED if failure is None else None

    values = {"device": identity(device), "header": ConvProblem}
    subject = Subject(package, f"proof of {what}", values)
    pack_key = subject.artifact_key() if artifact_store.wants_texts() else None
    TEXTS.cached(subject.text_key(), pack_key, passed, f"{package} passed {what}")
    return failure
