"""The child processes of a worker: one that measures, some that compile beside it. They start with the worker.

Loading plugins and opening a device takes seconds; the first task would wait for it, and with it a device.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import time
from typing import Any

from ..device.background import Threads
from ..measurement.farm import Died, NotStarted, RestartingChild, outlive
from ..measurement.search.precompile import MOST, compile_one, compiler
from .exclusive import exclusive
from .offers import Offer
from .steadiness import Steadiness

SILENT_S = 60.0
"""Seconds beside thrice a problem's budget after which a candidate that says nothing hangs."""
_log = logging.getLogger("distributed.worker")


class Children:
    """The children for what a worker offers. One thread may ``search`` and one ``compile`` at a time."""

    def __init__(self, offer: Offer) -> None:
        self._place, self._silicon = offer.place, offer.silicon
        self._steadiness, self._unsteady = Steadiness(), ""
        self._measurer = RestartingChild("convdispatch.cluster.measuring", {"device": offer.address})
        setup = {"device": offer.address, "cores": list(offer.cores)}
        self._compilers = [compiler(setup) for _ in range(offer.compilers)]
        starts = [self._start_measurer, *(child.start for child in self._compilers)]
        self._starting = [threading.Thread(target=_try, args=(start,), daemon=True) for start in starts]
        for thread in self._starting:
            thread.start()

    def _start_measurer(self) -> None:
        with exclusive(self._silicon):  # its device's rates are measured then, once a machine
            self._measurer.start()

    def search(self, problem: str, limits: dict[str, Any], again: bool) -> dict[str, Any]:
        """Search for a problem: ``results``, ``records`` and ``unsound`` solvers (``measuring``), or ``failure``.

        ``unsteady`` says what is wrong with the device's times; so does the worker's own terminal, once.
        """
        self._starting[0].join()
        silent_s = SILENT_S + 3e-3 * (limits["budget_ms"] or 60_000.0)

        def ask(without: dict[str, str]) -> dict[str, Any]:
            return self._measurer.answer({"problem": problem, "without": without, "lift": again, **limits}, silent_s)

        with exclusive(self._silicon):
            try:
                made = outlive(ask)
            except Died as died:
                names = ", ".join(died.without)
                made = {"failure": f"{f'{names} took the process; then ' if names else ''}it was lost: {died}"}
        before, self._unsteady = self._unsteady, self._steadiness.hear(made.get("records", ()))
        if self._unsteady and not before:
            _log.warning("%s: %s", self._place, self._unsteady)
        return {**made, "unsteady": self._unsteady}

    def compile(self, problem: str, seconds: float) -> int:
        """Compile a problem's most promising candidates, all children at once, for at most so long; how many."""
        for thread in self._starting[1:]:
            thread.join()
        places, until = itertools.count(), time.monotonic() + seconds

        def work(child: RestartingChild) -> int:
            compiled = 0
            with contextlib.suppress(NotStarted):  # the search will not start either, and says why
                for place in itertools.takewhile(lambda place: place < MOST, places):
                    made, last = compile_one(child, problem, place)
                    compiled += made
                    if last or time.monotonic() > until:
                        break
            return compiled

        threads = Threads(len(self._compilers), "convdispatch-compile")
        futures = [threads.submit(functools.partial(work, child)) for child in self._compilers]
        return sum(future.result() for future in futures)


def _try(start: Any) -> None:
    """What does not start now is tried again when it is asked, and then says why."""
    with contextlib.suppress(Died):
        start()
