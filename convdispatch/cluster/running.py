"""Submits tasks to workers and collects their results, while workers come and go.

Which worker a task goes to is decided here (``placing``), as late as it can be; Dask carries it there, runs no more on
a worker than it offers, and says who is gone. Tasks of workers that are gone go to others. The scheduler holds a few
tasks a device, however many problems wait, so an interrupt has little to call back.
"""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from ..api.errors import ConvDispatchError
from .connecting import Kind, Workers, connected
from .placing import DEATHS, Pool, Task

LOOK_S = 2.0
"""Seconds between two queries for the scheduler's workers."""
GONE_S = 120.0
"""Seconds without a worker for a task's kind of device, after which the task fails."""
FETCH_S = 5.0
"""Seconds after which a result that does not arrive is fetched again, because its worker may be gone."""


class Failed(Exception):
    """The reason why a task has no result."""


@contextlib.contextmanager
def cluster_run(
    client: Any,
    devices: Sequence[str] | str | None = None,
    *,
    security: Any = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Iterator[Run]:
    """Inside the block a Run on the workers of a cluster; the arguments are as ``find_many``'s."""
    with connected(client, security) as connection:
        yield Run(connection, Workers(connection, devices), tell=tell)


@dataclass
class _Flight:
    """A task that is with the scheduler."""

    task: Task
    worker: str
    future: Any


class Run:
    """Runs tasks by a client on its workers."""

    def __init__(
        self,
        client: Any,
        workers: Workers,
        *,
        tell: Callable[[str], None] = lambda words: None,
        gone_s: float = GONE_S,
    ) -> None:
        self._client, self._workers, self._tell, self._gone_s = client, workers, tell, gone_s
        self._pools: dict[str, Pool] = {}
        self._flying: dict[str, _Flight] = {}
        self._late: list[_Flight] = []
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._absent_since: dict[str, float] = {}
        self._looked = 0.0
        self.kinds: dict[str, Kind] = workers.first()

    @property
    def other_versions(self) -> set[str]:
        """Workers of another version of this package, in sentences: they get no tasks."""
        return self._workers.other_versions

    def add(self, *tasks: Task) -> None:
        """Add tasks, also while others run."""
        for task in tasks:
            self._pools.setdefault(task.kind, Pool()).add(task)

    def called(self, tasks: Iterable[Task], hear: Callable[[Task, Any], None]) -> None:
        """Run tasks of ``tasks.call``; ``hear`` gets each with what its function returned.

        Failures are told. An interrupt from the keyboard ends the run, not the caller.
        """
        self.add(*tasks)
        with contextlib.suppress(KeyboardInterrupt):
            for task, answer in self.answers():
                if isinstance(answer, Failed) or "failure" in answer:
                    why = answer if isinstance(answer, Failed) else answer["failure"]
                    self._tell(f"{task.words} on {task.kind}: {why}")
                else:
                    hear(task, answer["made"])

    def answers(self) -> Iterator[tuple[Task, Any]]:
        """Each task with its answer or Failed, as they end. Raises ConvDispatchError when the scheduler is gone.

        When the caller stops listening, what has not begun is called back.
        """
        try:
            while self._late or any(self._pools.values()):
                if time.monotonic() - self._looked > LOOK_S:
                    yield from self._look()
                self._submit()
                ended, self._late = self._late, []
                for future in self._just_ended():
                    flight = self._flying.pop(future.key, None)
                    if flight is not None:
                        ended.append(flight)
                        self._pools[flight.task.kind].ended(flight.task)
                # New tasks are submitted before answers are fetched, which may take seconds.
                self._submit()
                yield from self._answers(ended)
        finally:
            futures = [flight.future for flight in self._flying.values()]
            self._flying.clear()
            if futures:
                with contextlib.suppress(Exception):  # The Dask scheduler may be gone.
                    self._client.cancel(futures, force=True)

    def _just_ended(self) -> list[Any]:
        """The futures that ended; waits for one, but not for ever."""
        ended = []
        with contextlib.suppress(queue.Empty):
            ended.append(self._ended.get(timeout=LOOK_S))
            while True:
                ended.append(self._ended.get_nowait())
        return ended

    def _answers(self, flights: list[_Flight]) -> Iterator[tuple[Task, Any]]:
        """The answers of tasks that ended. A task whose answer is lost is repeated."""
        good = [flight for flight in flights if flight.future.status == "finished"]
        fetched = dict(zip((flight.future.key for flight in good), self._fetched([flight.future for flight in good])))
        if len(fetched) < len(good):
            yield from self._look()
        for flight in flights:
            task, status = flight.task, flight.future.status
            if flight.future.key in fetched:
                yield task, fetched[flight.future.key]
            elif status == "error":
                error = flight.future.exception()
                yield task, Failed(f"{type(error).__name__}: {error}")
            elif self._client.status != "running":
                raise ConvDispatchError("the scheduler is gone; what was measured is recorded: run again to go on")
            elif status == "finished" and flight.worker in self._pools[task.kind].workers:
                self._late.append(flight)
            else:
                yield from self._lost(flight)

    def _fetched(self, futures: list[Any]) -> list[Any]:
        """The answers of tasks that ended well; none of them where one is gone with its worker.

        Dask would wait for that one until somebody has done the task again, but nobody else may.
        """
        if not futures:
            return []
        try:
            return self._client.sync(lambda: self._client.gather(futures, asynchronous=True), callback_timeout=FETCH_S)
        except (TimeoutError, CancelledError):
            return []

    def _lost(self, flight: _Flight) -> Iterator[tuple[Task, Failed]]:
        """A worker is gone with its task: others do that, unless too many went so."""
        with contextlib.suppress(Exception):
            self._client.cancel([flight.future], force=True)
        task, pool = flight.task, self._pools[flight.task.kind]
        task.deaths += 1
        pool.again(task)
        if task.deaths >= DEATHS:
            pool.ended(task)
            yield task, Failed(f"each of the {task.deaths} workers that took it died")

    def _look(self) -> Iterator[tuple[Task, Failed]]:
        """Query which workers there are. Yields Failed for each task that no worker is left for."""
        try:
            self.kinds = self._workers.look()
        except (OSError, TimeoutError) as error:
            raise ConvDispatchError(f"the scheduler is gone ({error}); run again to go on") from error
        self._looked = time.monotonic()
        for key, pool in list(self._pools.items()):
            kind = self.kinds.get(key)
            pool.workers = kind.workers if kind else {}
            for task in pool.tasks():
                if task.places is not None and not (kind and kind.places & set(task.places)):
                    yield from self._given_up(task, "the other devices of its kind are gone")
            if kind or not pool:
                self._absent_since.pop(key, None)
                continue
            since = self._absent_since.setdefault(key, self._looked)
            if since == self._looked:
                self._tell(f"no worker offers {key} any more: waiting {self._gone_s:.0f} s for one")
            elif self._looked - since > self._gone_s:
                for task in pool.tasks():
                    yield from self._given_up(task, f"no worker offers {key} any more")
        for name, flight in list(self._flying.items()):
            if flight.worker not in self._pools[flight.task.kind].workers:
                del self._flying[name]
                yield from self._lost(flight)

    def _given_up(self, task: Task, why: str) -> Iterator[tuple[Task, Failed]]:
        names = [name for name, flight in self._flying.items() if flight.task is task]
        futures = [self._flying.pop(name).future for name in names]
        if futures:
            self._client.cancel(futures, force=True)
        self._pools[task.kind].ended(task)
        yield task, Failed(why)

    def _submit(self) -> None:
        """Hand to the scheduler what is to be done now."""
        for key, pool in self._pools.items():
            for task, worker in pool.steps():
                future = self._client.submit(
                    task.work,
                    *task.arguments,
                    key=f"{task.work.__name__}-{uuid.uuid4().hex}",
                    resources={key: 1},
                    workers=[worker],
                    pure=False,
                )
                self._flying[future.key] = _Flight(task, worker, future)
                future.add_done_callback(self._ended.put)
