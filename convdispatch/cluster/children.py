"""The child processes of a worker: one that measures, some that compile.

They start with the worker, because loading plugins and opening a device takes seconds, for which the first task would
otherwise wait.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from typing import Any

from ..device.background import Threads
from ..measurement.farm import Died, NotStarted, RestartingChild, outlive
from ..measurement.search.precompile import MAX_CANDIDATES, compile_one, compiler
from .exclusive import exclusive
from .offers import Offer

SILENT_S = 60.0
"""Seconds, in addition to three times a problem's budget, after which a candidate without a message counts as hung."""
DEFAULT_BUDGET_MS = 10_000.0
"""The budget, in milliseconds, for compiling and waiting if a search has no budget of its own."""


class Children:
    """The child processes for a worker's offer. Two threads may ``search``: one compiles while the other measures."""

    def __init__(self, offer: Offer) -> None:
        self._silicon = offer.silicon
        self._measurer = RestartingChild("convdispatch.cluster.measuring", {"device": offer.address})
        setup = {"device": offer.address, "cores": list(offer.cores)}
        self._compilers = [compiler(setup) for _ in range(offer.compilers)]
        self._compiling, self._measuring = threading.Lock(), threading.Lock()
        starts = [self._start_measurer, *(child.start for child in self._compilers)]
        self._starting = [threading.Thread(target=_try, args=(start,), daemon=True) for start in starts]
        for thread in self._starting:
            thread.start()

    def _start_measurer(self) -> None:
        # Starting the process measures the device's rates, so it needs the device for itself.
        with exclusive(self._silicon):
            self._measurer.start()

    def search(self, problem: str, limits: dict[str, Any], again: bool) -> dict[str, Any]:
        """Search for a problem: ``results``, ``records`` and ``unsound`` solvers (``measuring``), or ``failure``.

        Its most promising candidates are compiled first, perhaps during another problem's search.
        """
        for thread in self._starting:
            thread.join()
        budget_s = (limits["budget_ms"] or DEFAULT_BUDGET_MS) / 1e3
        if self._compilers:
            with self._compiling:
                # An idle device waits for its next problem's compilation, which then gets less time.
                waits = not self._measuring.locked()
                self._compile(problem, budget_s / len(self._compilers) if waits else budget_s)

        def ask(without: dict[str, str]) -> dict[str, Any]:
            request = {"problem": problem, "without": without, "lift": again, **limits}
            return self._measurer.answer(request, SILENT_S + 3 * budget_s)

        with self._measuring, exclusive(self._silicon):
            try:
                return outlive(ask)
            except Died as died:
                names = ", ".join(died.without)
                return {"failure": f"{f'{names} took the process; then ' if names else ''}it was lost: {died}"}

    def _compile(self, problem: str, seconds: float) -> None:
        """Compile a problem's most promising candidates, all children at once, for at most ``seconds``."""
        indices, until = itertools.count(), time.monotonic() + seconds

        def work(child: RestartingChild) -> None:
            # Where no child process starts, the search will not start one either, and reports the reason.
            with contextlib.suppress(NotStarted):
                for index in itertools.takewhile(lambda place: place < MAX_CANDIDATES, indices):
                    _, is_last = compile_one(child, problem, index)
                    if is_last or time.monotonic() > until:
                        break

        threads = Threads(len(self._compilers), "convdispatch-compile")
        for future in [threads.submit(functools.partial(work, child)) for child in self._compilers]:
            future.result()


def _try(start: Any) -> None:
    """Try to start a child process; if that fails, it is tried again when it is needed, and then reports why."""
    with contextlib.suppress(Died):
        start()
