"""Tasks out, answers in, while workers come and go.

Which worker a task goes to is decided here (``placing``), as late as it can be; Dask carries it there, keeps what one
device measures apart by its resources, also against other clients, and says who has gone. What those had is given to
others. The scheduler holds a few tasks a device, however many problems wait, and an interrupt has little to call back.
"""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from ..api.errors import ConvDispatchError
from .connecting import Kind, Workers
from .offers import to_compile
from .placing import DEATHS, Pool, Step, Task
from .tasks import prepare

LOOK_S = 2.0
"""Seconds between looks at who is there."""
GONE_S = 120.0
"""Seconds for which a kind of device may be offered by nobody before its tasks are given up."""
FETCH_S = 5.0
"""Seconds after which an answer that does not arrive is asked for anew: whoever has it may have gone meanwhile."""


class Failed(Exception):
    """A task has no answer: the message says why."""


@dataclass
class _Flight:
    """A step that is with the scheduler."""

    step: Step
    future: Any


class Run:
    """Runs tasks by a client; ``compile_s`` is how long compiling for one may take while another is measured."""

    def __init__(
        self,
        client: Any,
        workers: Workers,
        *,
        compile_s: float = 0.0,
        tell: Callable[[str], None] = lambda words: None,
        gone_s: float = GONE_S,
    ) -> None:
        self._client, self._workers, self._tell, self._gone_s = client, workers, tell, gone_s
        self._compile_s = compile_s
        self._pools: dict[str, Pool] = {}
        self._flying: dict[str, _Flight] = {}
        self._late: list[_Flight] = []
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._absent: dict[str, float] = {}
        self._looked = 0.0
        self.kinds: dict[str, Kind] = workers.first()

    def add(self, *tasks: Task) -> None:
        """Add tasks, also while others run."""
        for task in tasks:
            self._pools.setdefault(task.kind, Pool(self._compile_s)).add(task)

    def answers(self) -> Iterator[tuple[Task, Any]]:
        """Each task with its answer or Failed, as they end. Raises ConvDispatchError when the scheduler is gone.

        When the caller stops listening, what has not begun is called back.
        """
        try:
            while self._late or any(self._pools.values()):
                if time.monotonic() - self._looked > LOOK_S:
                    yield from self._look()
                self._submit()
                worked, self._late = self._late, []
                for future in self._just_ended():
                    flight = self._flying.pop(future.key, None)
                    if flight is None:
                        continue
                    if flight.step.seconds is None:
                        worked.append(flight)
                        self._pool(flight).ended(flight.step.task)
                    else:
                        self._pool(flight).compiled(flight.step.task)
                self._submit()  # before the answers are looked at, which may take a while
                yield from self._answers(worked)
        finally:
            futures = [flight.future for flight in self._flying.values()]
            self._flying.clear()
            if futures:
                with contextlib.suppress(Exception):  # a scheduler that is gone holds none of them
                    self._client.cancel(futures, force=True)

    def _pool(self, flight: _Flight) -> Pool:
        return self._pools[flight.step.task.kind]

    def _just_ended(self) -> list[Any]:
        """The tasks that ended; waits for one, but not for ever."""
        ended = []
        with contextlib.suppress(queue.Empty):
            ended.append(self._ended.get(timeout=LOOK_S))
            while True:
                ended.append(self._ended.get_nowait())
        return ended

    def _answers(self, flights: list[_Flight]) -> Iterator[tuple[Task, Any]]:
        """What tasks that ended have answered, fetched at once. A task whose answer is lost is done again."""
        good = [flight for flight in flights if flight.future.status == "finished"]
        made = dict(zip((flight.future.key for flight in good), self._fetched([flight.future for flight in good])))
        if len(made) < len(good):
            yield from self._look()
        for flight in flights:
            task, status = flight.step.task, flight.future.status
            if flight.future.key in made:
                yield task, made[flight.future.key]
            elif status == "error":
                error = flight.future.exception()
                yield task, Failed(f"{type(error).__name__}: {error}")
            elif self._client.status != "running":
                raise ConvDispatchError("the scheduler is gone; what was measured is recorded: run again to go on")
            elif status == "finished" and flight.step.worker in self._pool(flight).workers:
                self._late.append(flight)
            else:
                yield from self._lost(flight)

    def _fetched(self, futures: list[Any]) -> list[Any]:
        """The answers of tasks that ended well; none of them where one has gone with its worker.

        Dask would wait for that one until somebody has done the task again, but nobody else may.
        """
        if not futures:
            return []

        try:
            return self._client.sync(lambda: self._client.gather(futures, asynchronous=True), callback_timeout=FETCH_S)
        except (TimeoutError, CancelledError):
            return []

    def _lost(self, flight: _Flight) -> Iterator[tuple[Task, Failed]]:
        """A worker has gone with what it had: others do that, unless too many went so."""
        with contextlib.suppress(Exception):
            self._client.cancel([flight.future], force=True)
        task, pool = flight.step.task, self._pool(flight)
        task.deaths += flight.step.seconds is None
        pool.again(task)
        if task.deaths >= DEATHS:
            pool.ended(task)
            yield task, Failed(f"each of the {task.deaths} workers that took it died")

    def _look(self) -> Iterator[tuple[Task, Failed]]:
        """Who is there now; answers the tasks that nobody is left for."""
        try:
            self.kinds = self._workers.look()
        except (OSError, TimeoutError) as error:
            raise ConvDispatchError(f"the scheduler is gone ({error}); run again to go on") from error
        self._looked = time.monotonic()
        for key, pool in list(self._pools.items()):
            kind = self.kinds.get(key)
            pool.workers = kind.workers if kind else {}
            places = kind.places if kind else set()
            for task in list(pool.choosy):
                if not places & set(task.places or ()):
                    yield from self._given_up(task, "the other devices of its kind are gone")
            if kind or not pool:
                self._absent.pop(key, None)
                continue
            since = self._absent.setdefault(key, self._looked)
            if since == self._looked:
                self._tell(f"no worker offers {key} any more: waiting {self._gone_s:.0f} s for one")
            elif self._looked - since > self._gone_s:
                for task in pool.tasks():
                    yield from self._given_up(task, f"no worker offers {key} any more")
        for name, flight in list(self._flying.items()):
            if flight.step.worker not in self._pool(flight).workers:
                del self._flying[name]
                yield from self._lost(flight)

    def _given_up(self, task: Task, why: str) -> Iterator[tuple[Task, Failed]]:
        mine = [name for name, flight in self._flying.items() if flight.step.task is task]
        futures = [self._flying.pop(name).future for name in mine]
        if futures:
            self._client.cancel(futures, force=True)
        self._pools[task.kind].ended(task)
        yield task, Failed(why)

    def _submit(self) -> None:
        """Hand to the scheduler what is to be done now."""
        for key, pool in self._pools.items():
            for step in pool.steps():
                task, name = step.task, uuid.uuid4().hex
                if step.seconds is None:
                    work, needs = (task.work, *task.given), key
                else:
                    work, needs = (prepare, task.compiles, step.seconds), to_compile(key)
                future = self._client.submit(
                    *work, key=f"{work[0].__name__}-{name}", resources={needs: 1}, workers=[step.worker], pure=False
                )
                self._flying[future.key] = _Flight(step, future)
                future.add_done_callback(self._ended.put)
