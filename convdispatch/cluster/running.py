"""Tasks out, answers in, while workers come and go.

Dask assigns tasks to workers, and runs again elsewhere what a dead one had. Only a few tasks a device are given to the
scheduler at a time, so it holds as many as there are devices, however many problems wait; the next ones go to whoever
ends first, and an interrupt has little to call back.
"""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..api.errors import ConvDispatchError
from .connecting import Kind, Workers
from .offers import to_compile
from .tasks import prepare

__all__ = ["Failed", "Job", "Run"]

QUEUED = 2
"""Tasks a device that are with the scheduler: the one at work, and the next."""
LOOK_S = 2.0
"""Seconds between looks at who is there."""
GONE_S = 120.0
"""Seconds for which a kind of device may be offered by nobody before its tasks are given up."""


class Failed(Exception):
    """A task has no answer: the message says why."""


@dataclass
class Job:
    """One task: ``work(*given)`` on a device of a kind, and what is compiled for it before, if anything."""

    words: str
    kind: str
    work: Callable[..., Any]
    given: tuple[Any, ...]
    compiles: str | None = None
    """The problem whose candidates are compiled beside what is measured then; ``work`` gets the outcome as the last."""
    places: Collection[str] | None = None
    """The devices that may run it; None for all of the kind."""
    about: Any = None
    """For the caller."""
    futures: list[Any] = field(default_factory=list)
    ended: bool = False


class Run:
    """Runs jobs by a client; ``compile_s`` is how long compiling for one may take while another is measured."""

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
        self._todo: dict[str, deque[Job]] = {}
        self._flying: dict[str, Job] = {}
        self._choosy: list[Job] = []
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._given: dict[str, int] = {}
        self._absent: dict[str, float] = {}
        self._looked = 0.0
        self.kinds: dict[str, Kind] = workers.first()

    def add(self, *jobs: Job) -> None:
        """Add jobs, also while others run."""
        self._choosy += [job for job in jobs if job.places is not None]
        for job in jobs:
            self._todo.setdefault(job.kind, deque()).append(job)

    def answers(self) -> Iterator[tuple[Job, Any]]:
        """Each job with its answer or Failed, as they end. Raises ConvDispatchError when the scheduler is gone.

        When the caller stops listening, what has not begun is called back.
        """
        try:
            while self._flying or any(self._todo.values()):
                if time.monotonic() - self._looked > LOOK_S:
                    yield from self._look()
                self._submit()
                ended = [(self._flying.pop(f.key), f) for f in self._just_ended() if f.key in self._flying]
                self._submit()  # before the answers are looked at, which may take a while
                for (job, _), answer in zip(ended, self._answers([future for _, future in ended])):
                    job.ended = True
                    job.futures.clear()
                    yield job, answer
        finally:
            futures = [future for job in self._flying.values() for future in job.futures]
            self._flying.clear()
            if futures:
                with contextlib.suppress(Exception):  # a scheduler that is gone holds none of them
                    self._client.cancel(futures, force=True)

    def _just_ended(self) -> list[Any]:
        """The tasks that ended; waits for one, but not for ever."""
        ended = []
        with contextlib.suppress(queue.Empty):
            ended.append(self._ended.get(timeout=LOOK_S))
            while True:
                ended.append(self._ended.get_nowait())
        return ended

    def _answers(self, futures: list[Any]) -> list[Any]:
        """What tasks that ended have answered, fetched at once, or Failed."""
        made = dict(zip((f.key for f in futures), map(self._fault, futures)))
        good = [future for future in futures if made[future.key] is None]
        made |= zip((future.key for future in good), self._client.gather(good) if good else ())
        return [made[future.key] for future in futures]

    def _fault(self, future: Any) -> Failed | None:
        if future.status == "finished":
            return None
        if future.status == "error":
            error = future.exception()
            if type(error).__name__ == "KilledWorker":
                return Failed("every worker that took it died")
            return Failed(f"{type(error).__name__}: {error}")
        raise ConvDispatchError("the scheduler is gone; what was measured is recorded: run again to go on")

    def _look(self) -> Iterable[tuple[Job, Failed]]:
        """Who is there now; answers the jobs that nobody is left for."""
        try:
            self.kinds = self._workers.look()
        except (OSError, TimeoutError) as error:
            raise ConvDispatchError(f"the scheduler is gone ({error}); run again to go on") from error
        self._looked = time.monotonic()
        lost: list[tuple[Job, Failed]] = []
        self._choosy = [job for job in self._choosy if not job.ended]
        for job in self._choosy:
            kind = self.kinds.get(job.kind)
            if not (kind and kind.places & set(job.places or ())):
                lost.append((job, Failed("the other devices of its kind are gone")))
        for key in set(self._todo) | {job.kind for job in self._flying.values()}:
            if key in self.kinds:
                self._absent.pop(key, None)
                continue
            since = self._absent.setdefault(key, self._looked)
            if since == self._looked:
                self._tell(f"no worker offers {key} any more: waiting {self._gone_s:.0f} s for one")
            elif self._looked - since > self._gone_s:
                mine = [job for job in self._flying.values() if job.kind == key] + list(self._todo.get(key, ()))
                lost += [(job, Failed(f"no worker offers {key} any more")) for job in mine]
        for job, _ in lost:
            self._drop(job)
        return lost

    def _drop(self, job: Job) -> None:
        job.ended = True
        for name in [name for name, each in self._flying.items() if each is job]:
            del self._flying[name]
        with contextlib.suppress(ValueError):
            self._todo.get(job.kind, deque()).remove(job)
        if job.futures:
            self._client.cancel(job.futures, force=True)

    def _submit(self) -> None:
        for key, todo in self._todo.items():
            kind = self.kinds.get(key)
            if kind is None:
                continue
            room = len(kind.workers) * (QUEUED + kind.compilers)
            flying = sum(job.kind == key for job in self._flying.values())
            while todo and flying < room:
                self._give(todo.popleft(), kind)
                flying += 1

    def _give(self, job: Job, kind: Kind) -> None:
        """Hand a job to the scheduler."""
        name = uuid.uuid4().hex
        given = job.given
        if job.compiles is not None and kind.compilers:
            # The first ones compile briefly, so that devices do not wait; from then on compilers keep pace with them.
            turn = self._given[job.kind] = self._given.get(job.kind, 0) + 1
            seconds = self._compile_s * min(kind.compilers, 1 + turn // max(1, len(kind.workers)))
            ahead = self._client.submit(
                prepare, job.compiles, seconds, key=f"prepare-{name}", resources={to_compile(job.kind): 1}, pure=False
            )
            job.futures.append(ahead)
            given = (*given, ahead)
        places = job.places
        only = None if places is None else [a for a, offer in kind.workers.items() if offer.place in places]
        future = self._client.submit(
            job.work, *given, key=f"{job.work.__name__}-{name}", resources={job.kind: 1}, workers=only, pure=False
        )
        job.futures.append(future)
        self._flying[future.key] = job
        future.add_done_callback(self._ended.put)
