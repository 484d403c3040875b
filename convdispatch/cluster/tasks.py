"""What runs in a Dask worker: it hands questions to child processes and carries their answers back.

The worker's own process opens no device and holds no lock of Python's while others measure. Tasks are found by name, so
workers need the same convdispatch as who asks.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from typing import Any

from ..measurement.farm import Died, NotStarted, RestartingChild, outlive
from ..measurement.search.ahead import MOST, compile_one, compiler
from .exclusive import exclusive
from .offers import Offer
from .steadiness import Steadiness

__all__ = ["call", "idle", "measure", "offer_here", "prepare"]

SILENT_S = 60.0
"""Seconds beside thrice a problem's budget after which a candidate that says nothing hangs."""
_log = logging.getLogger("distributed.worker")
_threads = threading.local()
_here: dict[str, Any] = {}
_lock = threading.Lock()


def offer_here() -> Offer:
    """What this worker offers."""
    from distributed import get_worker

    return get_worker().convdispatch_offer


def measure(problem: str, limits: dict[str, Any], again: bool = False, prepared: Any = None) -> dict[str, Any]:
    """Search for a problem on this worker's device; ``prepared`` is what it waits for.

    Answers ``place`` and ``unsteady``, and ``failure`` or the ``results``, ``records`` and ``unsound`` solvers.
    """
    offer, child = offer_here(), _measurer()
    silent_s = SILENT_S + 3e-3 * (limits["budget_ms"] or 60_000.0)

    def ask(without: dict[str, str]) -> dict[str, Any]:
        return child.answer({"problem": problem, "without": without, "lift": again, **limits}, silent_s)

    with exclusive(offer.silicon):
        try:
            made = outlive(ask)
        except Died as died:
            names = ", ".join(died.without)
            made = {"failure": f"{f'{names} took the process; then ' if names else ''}it was lost: {died}"}
    unsteady = _here["steady"].hear(made.get("records", ()))
    if unsteady and unsteady != _here.get("said"):
        _log.warning("%s: %s", offer.place, unsteady)
    _here["said"] = unsteady
    return {**made, "place": offer.place, "unsteady": unsteady}


def prepare(problem: str, seconds: float) -> int:
    """Compile a problem's most promising candidates for at most so long, beside what is measured; how many."""
    offer, compiled = offer_here(), 0
    child = getattr(_threads, "compiler", None)
    if child is None:
        child = _threads.compiler = compiler({"device": offer.address, "cores": list(offer.cores)})
    until = time.monotonic() + seconds
    for place in range(MOST):
        try:
            made, last = compile_one(child, problem, place)
        except NotStarted:  # the search will not start either, and says why
            break
        compiled += made
        if last or time.monotonic() > until:
            break
    return compiled


def call(function: str, given: dict[str, Any], silent_s: float) -> dict[str, Any]:
    """Call ``module:name`` on this worker's device in a child process (see ``calling``), which may be silent so long.

    Answers ``place``, and ``made`` or ``failure``.
    """
    offer = offer_here()
    child = RestartingChild("convdispatch.cluster.calling", {"device": offer.address})
    try:
        with exclusive(offer.silicon):
            made = child.answer({"function": function, "given": given}, silent_s)
    except Died as died:
        made = {"failure": f"it was lost{f' at {died.at}' if died.at else ''}: {died}"}
    finally:
        child.close()
    return {**made, "place": offer.place}


def idle(number: int) -> int:
    """No work, for what a task costs beside its work."""
    return number


def _measurer() -> RestartingChild:
    """The child that measures, one a worker."""
    with _lock:
        if "child" not in _here:
            _here["child"] = RestartingChild("convdispatch.cluster.measuring", {"device": offer_here().address})
            _here["steady"] = Steadiness()
            atexit.register(_here["child"].close)
        return _here["child"]
