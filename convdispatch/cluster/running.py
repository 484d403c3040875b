"""Submits tasks to workers and collects their results, while workers come and go.

This module decides (by ``placing``), as late as possible, which worker gets a task; Dask sends it there, runs no more
tasks on a worker than it offers, and reports lost workers, whose tasks go to others. The scheduler holds only a few
tasks for each device, however many wait, so that an interrupt has few to cancel.
"""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from ..api.errors import ConvDispatchError
from .connecting import Kind, Workers, connected
from .offers import QUEUED, Offer

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
    """Inside the block a Run on the workers of a cluster; the arguments are those of ``find_many``."""
    with connected(client, security) as connection:
        yield Run(connection, Workers(connection, devices), tell=tell)


@dataclass
class _Flight:
    """A task that was submitted to the scheduler, with its worker and its future."""

    task: Task
    worker: str
    future: Any


class Run:
    """Runs tasks on the workers of a client."""

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
        self._in_flight: dict[str, _Flight] = {}
        self._late: list[_Flight] = []
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._absent_since: dict[str, float] = {}
        self._looked = 0.0
        self.kinds: dict[str, Kind] = workers.first()

    @property
    def other_versions(self) -> set[str]:
        """A sentence for each worker of another version of this package, which gets no tasks."""
        return self._workers.other_versions

    def add(self, *tasks: Task) -> None:
        """Add tasks, perhaps while others run."""
        for task in tasks:
            self._pools.setdefault(task.kind, Pool()).add(task)

    def called(self, tasks: Iterable[Task], hear: Callable[[Task, Any], None]) -> None:
        """Run tasks of ``tasks.call``; ``hear`` is called with each task and its function's result.

        Failures are passed to ``tell``. An interrupt from the keyboard ends the run, and is not raised.
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
        """Each task with its result or Failed, as they end. Raises ConvDispatchError if the scheduler is gone.

        When the caller ends the iteration, all submitted tasks are cancelled.
        """
        try:
            while self._late or any(self._pools.values()):
                if time.monotonic() - self._looked > LOOK_S:
                    yield from self._look()
                self._submit()
                flights, self._late = self._late, []
                for future in self._just_ended():
                    flight = self._in_flight.pop(future.key, None)
                    if flight is not None:
                        flights.append(flight)
                        self._pools[flight.task.kind].ended(flight.task)
                # New tasks are submitted before answers are fetched, which may take seconds.
                self._submit()
                yield from self._answers(flights)
        finally:
            futures = [flight.future for flight in self._in_flight.values()]
            self._in_flight.clear()
            if futures:
                with contextlib.suppress(Exception):  # The Dask scheduler may be gone.
                    self._client.cancel(futures, force=True)

    def _just_ended(self) -> list[Any]:
        """The futures that have ended; waits up to LOOK_S for the first one."""
        futures = []
        with contextlib.suppress(queue.Empty):
            futures.append(self._ended.get(timeout=LOOK_S))
            while True:
                futures.append(self._ended.get_nowait())
        return futures

    def _answers(self, flights: list[_Flight]) -> Iterator[tuple[Task, Any]]:
        """The results of tasks that ended. A task whose result is lost is repeated."""
        finished = [flight for flight in flights if flight.future.status == "finished"]
        futures = [flight.future for flight in finished]
        fetched = dict(zip((future.key for future in futures), self._fetched(futures)))
        if len(fetched) < len(finished):
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
        """The results of finished tasks; an empty list if one result was lost with its worker.

        For a lost result Dask would wait until another worker repeats the task, which no other worker may do.
        """
        if not futures:
            return []
        try:
            return self._client.sync(lambda: self._client.gather(futures, asynchronous=True), callback_timeout=FETCH_S)
        except (TimeoutError, CancelledError):
            return []

    def _lost(self, flight: _Flight) -> Iterator[tuple[Task, Failed]]:
        """Return the task of a lost worker to its pool; yields Failed if the task has lost too many workers."""
        with contextlib.suppress(Exception):
            self._client.cancel([flight.future], force=True)
        task, pool = flight.task, self._pools[flight.task.kind]
        task.deaths += 1
        pool.again(task)
        if task.deaths >= MAX_DEATHS:
            pool.ended(task)
            yield task, Failed(f"each of the {task.deaths} workers that took it died")

    def _look(self) -> Iterator[tuple[Task, Failed]]:
        """Update the workers. Yields Failed for each task for which no worker is left."""
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
                    yield from self._give_up(task, "the other devices of its kind are gone")
            if kind or not pool:
                self._absent_since.pop(key, None)
                continue
            absent_since = self._absent_since.setdefault(key, self._looked)
            if absent_since == self._looked:
                self._tell(f"no worker offers {key} any more: waiting {self._gone_s:.0f} s for one")
            elif self._looked - absent_since > self._gone_s:
                for task in pool.tasks():
                    yield from self._give_up(task, f"no worker offers {key} any more")
        for name, flight in list(self._in_flight.items()):
            if flight.worker not in self._pools[flight.task.kind].workers:
                del self._in_flight[name]
                yield from self._lost(flight)

    def _give_up(self, task: Task, why: str) -> Iterator[tuple[Task, Failed]]:
        names = [name for name, flight in self._in_flight.items() if flight.task is task]
        futures = [self._in_flight.pop(name).future for name in names]
        if futures:
            self._client.cancel(futures, force=True)
        self._pools[task.kind].ended(task)
        yield task, Failed(why)

    def _submit(self) -> None:
        """Submit the tasks that ``Pool.steps`` assigns now."""
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
                self._in_flight[future.key] = _Flight(task, worker, future)
                future.add_done_callback(self._ended.put)


MAX_DEATHS = 4
"""A task fails when this many workers have died while they worked on it."""


@dataclass(eq=False)
class Task:
    """One task: ``work(*arguments)`` on a device of a kind."""

    words: str
    """The task's name in messages."""
    kind: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    places: Collection[str] | None = None
    """The devices that may run the task; None for all devices of the task's kind."""
    about: Any = None
    """An arbitrary value that the caller attaches to the task."""
    deaths: int = 0

    def may_run(self, offer: Offer) -> bool:
        """Whether the device of an offer may run the task."""
        return self.places is None or offer.place in self.places


class Pool:
    """The tasks for one kind of device: those that wait, and those that workers run.

    A worker has at most the running task and the next one. If no more tasks are left than there are devices, no next
    task is submitted, so that the last tasks go to the devices that are free first.
    """

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._working: dict[Task, str] = {}
        self.workers: Mapping[str, Offer] = {}
        """The offers of the workers, by their Dask address; ``again`` takes tasks back from workers that are gone."""

    def __bool__(self) -> bool:
        return bool(self._working or self._waiting)

    def tasks(self) -> list[Task]:
        """All tasks that have not ended."""
        return [*self._working, *self._waiting]

    def add(self, task: Task) -> None:
        """Append a task to the queue."""
        self._waiting.append(task)

    def ended(self, task: Task) -> None:
        """Remove a task that has an answer or has failed."""
        if self._working.pop(task, None) is None and task in self._waiting:
            self._waiting.remove(task)

    def again(self, task: Task) -> None:
        """Put a task of a worker that is gone at the head of the queue."""
        self.ended(task)
        self._waiting.appendleft(task)

    def steps(self) -> Iterator[tuple[Task, str]]:
        """Each task to submit now, with its worker, to which it is assigned from then on."""
        loads = Counter(self._working.values())
        for depth in range(QUEUED):
            free = (address for address in self.workers if loads[address] <= depth)
            for worker in sorted(free, key=loads.__getitem__):
                if depth and len(self._waiting) <= len(self.workers):
                    return
                offer = self.workers[worker]
                task = next((task for task in self._waiting if task.may_run(offer)), None)
                if task is not None:
                    self._waiting.remove(task)
                    self._working[task] = worker
                    loads[worker] += 1
                    yield task, worker
