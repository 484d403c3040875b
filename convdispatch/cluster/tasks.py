"""The tasks that run in a Dask worker: they send requests to child processes and return the replies.

The worker's own process opens no device and does not hold Python's lock while others measure. Tasks are found by name,
so workers need the same version of convdispatch as the client.
"""

from __future__ import annotations

from typing import Any

from ..measurement.farm import Died, RestartingChild
from .exclusive import exclusive


def _worker() -> Any:
    """The Dask worker that runs this task; ``preload`` gave it its offer and its child processes."""
    from distributed import get_worker

    return get_worker()


def measure(problem: str, limits: dict[str, Any], again: bool = False) -> dict[str, Any]:
    """Search for a problem on this worker's device.

    Returns ``place``, and ``failure`` or the ``results``, ``records`` and ``unsound`` solvers.
    """
    worker = _worker()
    return {**worker.convdispatch_children.search(problem, limits, again), "place": worker.convdispatch_offer.place}


def call(function: str, given: dict[str, Any], silent_s: float) -> dict[str, Any]:
    """Call ``module:name`` on this worker's device in a child process, which is killed if silent for ``silent_s``.

    Returns ``place``, and ``made`` or ``failure``.
    """
    offer = _worker().convdispatch_offer
    child = RestartingChild("convdispatch.cluster.calling", {"device": offer.address})
    try:
        with exclusive(offer.silicon):
            reply = child.answer({"function": function, "given": given}, silent_s)
    except Died as died:
        reply = {"failure": f"it was lost{f' at {died.at}' if died.at else ''}: {died}"}
    finally:
        child.close()
    return {**reply, "place": offer.place}


def idle(number: int) -> int:
    """A task without work, to measure the overhead of a task."""
    return number
