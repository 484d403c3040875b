"""Tasks over several processes, of which any may die or hang: what is lost is said, and the rest goes on.

A kernel that faults or never ends takes its process with it; ``multiprocessing.Pool`` then waits for ever.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Lost", "farm"]


@dataclass
class Lost:
    """A task without a result, and why."""

    task: Any
    why: str


def _serve(pipe: Any, begin: Callable[..., None], given: tuple, work: Callable[[Any], Any]) -> None:
    begin(*given)
    pipe.send(None)
    while True:
        pipe.send(work(pipe.recv()))


class _Worker:
    def __init__(self, target: tuple) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs, *target), daemon=True)
        self.process.start()
        theirs.close()
        self.task: Any = None
        self.ready, self.since = False, time.monotonic()

    def give(self, task: Any) -> None:
        self.task, self.since = task, time.monotonic()
        self.pipe.send(task)


def farm(
    jobs: int,
    begin: Callable[..., None],
    given: tuple,
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    until: float,
    task_s: float = 60.0,
) -> Iterator[Any]:
    """Results of ``work(task)`` as they come, a ``Lost`` for each task without one.

    ``begin(*given)`` runs once in each process. After ``until`` (``time.monotonic``) no result is awaited; a task of
    more than ``task_s`` seconds is given up with its process.
    """
    target, waiting = (begin, given, work), list(reversed(tasks))
    workers = [_Worker(target) for _ in range(min(jobs, len(tasks)))]
    try:
        while workers and time.monotonic() < until:
            multiprocessing.connection.wait([worker.pipe for worker in workers], timeout=1.0)
            for place, worker in enumerate(list(workers)):
                why = None
                try:
                    if worker.pipe.poll():
                        result = worker.pipe.recv()
                        if worker.task is not None:
                            yield result
                        worker.ready, worker.task = True, None
                except (EOFError, ConnectionError):
                    worker.process.join(5.0)
                    why = f"its process died, exit code {worker.process.exitcode}"
                if why is None and time.monotonic() - worker.since > task_s and not (worker.ready and not worker.task):
                    worker.process.kill()
                    why = f"no result within {task_s:.0f} s"
                if why is not None:
                    yield Lost(worker.task, why)
                    worker = workers[place] = _Worker(target)
                if worker.ready and worker.task is None and waiting:
                    worker.give(waiting.pop())
            if not waiting:
                for worker in [w for w in workers if w.task is None]:
                    worker.process.kill()
                    workers.remove(worker)
        for task in [w.task for w in workers if w.task is not None] + waiting[::-1]:
            yield Lost(task, "out of time")
    finally:
        for worker in workers:
            worker.process.kill()
