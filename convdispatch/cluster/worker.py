"""What runs in a Dask worker: the start of the worker, and the functions of its tasks.

A task that searches sends its problem to a child process (``measuring``), so that a candidate that crashes or hangs
costs one candidate. Functions are found by name, so workers need the same version of convdispatch as the client.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import click

from ..api.errors import ConvDispatchError
from ..api.problem import ConvProblem
from ..device.cache_home import temporary
from ..measurement.farm import Died, RestartingChild, outlive
from ..measurement.search.precompile import precompile
from .offers import Offer

try:
    import fcntl
except ImportError:  # Windows has no ``fcntl`` file locks, so only Dask's resources keep two tasks of a worker apart.
    fcntl = None  # type: ignore[assignment]

SILENT_S = 60.0
"""Seconds, in addition to three times a problem's budget, after which a candidate without a message counts as hung."""
DEFAULT_BUDGET_MS = 10_000.0
"""The budget, in milliseconds, for compiling and waiting if a search has no budget of its own."""
_CHILD_LOCK = threading.Lock()


@click.command()
@click.argument("offer")
def dask_setup(worker: Any, offer: str) -> None:
    """Dask calls this function, by its name, when a worker starts.

    SIGINT is ignored, because Ctrl-C reaches all processes of a terminal; the command that started the worker ends it.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.convdispatch_offer = Offer(**json.loads(offer))
    setup = {"device": worker.convdispatch_offer.address}
    worker.convdispatch_child = RestartingChild("convdispatch.cluster.measuring", setup)


def _worker() -> Any:
    from distributed import get_worker

    return get_worker()


@contextlib.contextmanager
def exclusive(silicon: str) -> Iterator[None]:
    """Hold the lock of a piece of silicon inside the block; waits while another process of this user holds it.

    Dask's resources keep two tasks of one worker apart. The lock keeps apart two workers that offer the same device,
    and two runtimes of one CPU, which share its processors. It is a lock of the system on a file, so it ends with its
    holder.
    """
    if fcntl is None:
        yield
        return
    name = re.sub(r"[^a-z0-9]+", "-", silicon.lower())
    with (temporary() / f"measuring-{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(problem: str, limits: dict[str, Any], again: bool = False) -> dict[str, Any]:
    """Search for a problem on this worker's device.

    Returns ``place``, and ``failure`` or the ``results``, ``records`` and ``unsound`` solvers. Processors that only
    compile do so before the device is locked, so while the worker's other task measures.
    """
    worker = _worker()
    offer, child = worker.convdispatch_offer, worker.convdispatch_child
    budget_s = (limits["budget_ms"] or DEFAULT_BUDGET_MS) / 1e3
    if offer.compilers:
        precompile([ConvProblem.parse(problem)], offer.address, offer.compilers, budget_s)

    def ask(without: dict[str, str]) -> dict[str, Any]:
        request = {"problem": problem, "without": without, "lift": again, **limits}
        return child.answer(request, SILENT_S + 3 * budget_s)

    with _CHILD_LOCK, exclusive(offer.silicon):
        try:
            reply = outlive(ask)
        except Died as died:
            names = ", ".join(died.without)
            reply = {"failure": f"{f'{names} took the process; then ' if names else ''}it was lost: {died}"}
    return {**reply, "place": offer.place}


def call(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """``place``, and ``made``, the result of ``function(address, **options)`` for this worker's device, or
    ``failure``."""
    offer = _worker().convdispatch_offer
    with exclusive(offer.silicon):
        try:
            return {"made": function(offer.address, **options), "place": offer.place}
        except (ConvDispatchError, MemoryError, OSError) as error:
            return {"failure": str(error) or type(error).__name__, "place": offer.place}


def offer_of_worker(dask_worker: Any = None) -> Offer | None:
    """The offer of the Dask worker that runs this function; None if this package did not start the worker."""
    return getattr(dask_worker, "convdispatch_offer", None)
