"""Remembers the checks that a device has passed, so that each is computed on the device only once.

A passed check is cached beside the rendered texts, and in plan packs. Its key is a digest of the device, its driver and
the driver's compiler variables, and of the sources of the plugin, the header and this package. A failed check is
repeated by every process. Processes that plan at the same time can leave a check to the first of them (``assuming``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyopencl as cl

from ...api.problem import ConvProblem
from ..background import unlocked
from ..cache import artifact_store
from ..cache.keys import identity
from ..cache.store import TEXTS, claimed
from ..commands.interface import thread
from .ptx_program import for_streams
from .template_cache import Subject

_PASSED = "passed"
_lock = threading.Lock()
_locks: dict[tuple[str, str, cl.Device], threading.RLock] = {}
_failures: dict[tuple[str, str, cl.Device], str | None] = {}


class _Check(NamedTuple):
    package: str
    what: str
    device: cl.Device
    prove: Callable[[], str | None]
    claim: str
    """The name that the process which computes the check has claimed."""


class _ThreadState(threading.local):
    assumed: list[_Check] | None = None


_thread = _ThreadState()


class _UnderWay(Exception):
    """Another process computes the check; the argument is the name that it has claimed."""


@contextlib.contextmanager
def assuming() -> Iterator[list[_Check]]:
    """Inside the block a check that another process computes now counts as passed in this thread. What is done there
    is used only after ``has_failed`` of the list that the block gets."""
    outer, _thread.assumed = _thread.assumed, []
    try:
        yield _thread.assumed
    finally:
        _thread.assumed = outer


def has_failed(assumed: list[_Check]) -> bool:
    """Whether a check that ``assuming`` counted as passed fails; waits for the processes that compute them."""
    for check in assumed:
        with claimed(check.claim):
            pass
    return any(proven(check.package, check.what, check.device, check.prove) is not None for check in assumed)


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
                try:
                    _failures[check] = _stored_answer(package, what, device, prove)
                except _UnderWay as elsewhere:
                    assert _thread.assumed is not None
                    _thread.assumed.append(_Check(*check, prove, elsewhere.args[0]))
                    return None
            elif _failures[check] is None:
                _stored_answer(package, what, device, lambda: None)
        finally:
            lock.release()
    return _failures[check]


def _stored_answer(package: str, what: str, device: cl.Device, prove: Callable[[], str | None]) -> str | None:
    failure = None
    values = {"device": identity(device), "header": ConvProblem}
    subject = Subject(package, f"proof of {what}", values)
    text_key = subject.text_key()

    def passed() -> str | None:
        nonlocal failure
        is_shared = _thread.assumed is not None and text_key is not None
        if is_shared and not until_stored.enter_context(claimed(str(text_key), wait=False)):
            raise _UnderWay(text_key)
        with for_streams(launched_there=False):  # a probe launches on a queue of its own
            failure = prove()
        return _PASSED if failure is None else None

    pack_key = subject.artifact_key() if artifact_store.wants_texts() else None
    with contextlib.ExitStack() as until_stored:
        TEXTS.cached(text_key, pack_key, passed, f"{package} passed {what}")
    return failure
