"""Which job goes to which worker, and when, so that no device waits for a job that another one holds. Nothing of Dask.

A job that is measured is compiled for first, by a worker of some machine: it is *ready* for that machine's devices, and
is given to one only as that one needs it. What a device has is at most the job at work and the next; the next is held
back while no more jobs are left than there are devices, for the last jobs belong to whoever ends first. A device that
has nothing, and for which nothing is on its way, takes what was compiled for another machine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .offers import Offer

__all__ = ["DEATHS", "Job", "Pool", "Step"]

QUEUED = 2
"""Jobs that a device has: the one at work, and the next."""
AHEAD = 3
"""Jobs a device that its machine compiles for, or has compiled for, before they are measured."""
DEATHS = 4
"""Workers that may die of one job, or by chance while they have it."""


@dataclass(eq=False)
class Job:
    """One task: ``work(*given)`` on a device of a kind, and what is compiled for it before, if anything."""

    words: str
    kind: str
    work: Callable[..., Any]
    given: tuple[Any, ...]
    compiles: str | None = None
    """The problem whose candidates are compiled while another is measured."""
    places: Collection[str] | None = None
    """The devices that may run it; None for all of the kind."""
    about: Any = None
    """For the caller."""
    deaths: int = 0


@dataclass(frozen=True)
class Step:
    """What to do now: compile for a job by a worker, ``seconds`` at most, or (None) work on it."""

    job: Job
    worker: str
    seconds: float | None = None


class Pool:
    """The jobs for one kind of device; ``compile_s`` is how long one may be compiled for while another is measured.

    Each is in one of four states: nothing has begun, it is compiled for, it is ready on a machine, a device has it.
    """

    def __init__(self, compile_s: float = 0.0) -> None:
        self._compile_s = compile_s
        self._todo: dict[bool, deque[Job]] = {True: deque(), False: deque()}  # by whether they are compiled for
        self._compiling: dict[Job, str] = {}
        self._ready: dict[str, deque[Job]] = {}
        self._working: dict[Job, str] = {}
        self._loads: dict[str, Counter[str]] = {"compiling": Counter(), "working": Counter(), "machine": Counter()}
        self._offers: Mapping[str, Offer] = {}
        self._hosts: dict[str, str] = {}
        self._beside: dict[str, list[str]] = {}
        self.choosy: set[Job] = set()
        """Those that not every device may run."""

    def __bool__(self) -> bool:
        return bool(self._working or self._left())

    @property
    def workers(self) -> Mapping[str, Offer]:
        """Who offers the kind, by Dask's address. What those have who are there no more, ``again`` gives to others."""
        return self._offers

    @workers.setter
    def workers(self, offers: Mapping[str, Offer]) -> None:
        self._offers = offers
        # A machine is an address: workers there share the cache of what is compiled.
        self._hosts = {worker: urlsplit(worker).hostname or worker for worker in offers}
        self._beside = {}
        for worker, host in self._hosts.items():
            self._beside.setdefault(host, []).append(worker)
        for host in self._ready.keys() - self._beside.keys():
            self._todo[True].extendleft(reversed(self._ready.pop(host)))

    def jobs(self) -> list[Job]:
        """All that have not ended."""
        ready = [job for jobs in self._ready.values() for job in jobs]
        return [*self._working, *ready, *self._compiling, *self._todo[False], *self._todo[True]]

    def add(self, job: Job) -> None:
        """A new one, which comes last."""
        self._todo[job.compiles is not None].append(job)
        if job.places is not None:
            self.choosy.add(job)

    def compiled(self, job: Job) -> None:
        """Compiling for it has ended, in whatever way: its search meets what does not compile, and says so."""
        host = self._leave(job)
        if host in self._beside:
            self._ready.setdefault(host, deque()).append(job)
        else:
            self._todo[True].appendleft(job)

    def ended(self, job: Job) -> None:
        """It has an answer, or is given up."""
        self._leave(job)
        self.choosy.discard(job)

    def again(self, job: Job) -> None:
        """Whoever had it has gone: it comes first."""
        self._leave(job)
        self._todo[job.compiles is not None].appendleft(job)
        if job.places is not None:
            self.choosy.add(job)

    def steps(self) -> Iterator[Step]:
        """What is to be done now; each counts as begun."""
        left = self._left()
        for depth in range(QUEUED):
            for worker in self._least("working", depth, self._offers):
                if left <= (len(self._offers) if depth else 0):
                    break
                job = self._next(worker, idle=not depth)
                if job is not None:
                    left -= 1
                    self._working[job] = worker
                    self._loads["working"][worker] += 1
                    yield Step(job, worker)
        for depth in range(QUEUED):
            behind = [host for host, workers in self._beside.items() if self._ahead(host) < AHEAD * len(workers)]
            for worker in self._least("compiling", depth, [worker for host in behind for worker in self._beside[host]]):
                job = self._to_compile(worker)
                if job is not None:
                    seconds = self._seconds(worker)
                    self._compiling[job] = worker
                    self._loads["compiling"][worker] += 1
                    self._loads["machine"][self._hosts[worker]] += 1
                    yield Step(job, worker, seconds)

    def _leave(self, job: Job) -> str | None:
        """Take a job out of its state; the machine that compiled for it just now, if one did."""
        if job in self._working:
            self._loads["working"][self._working.pop(job)] -= 1
        elif job in self._compiling:
            worker = self._compiling.pop(job)
            host = urlsplit(worker).hostname or worker
            self._loads["compiling"][worker] -= 1
            self._loads["machine"][host] -= 1
            return host
        else:
            for waiting in (*self._ready.values(), *self._todo.values()):
                if job in waiting:
                    waiting.remove(job)
        return None

    def _left(self) -> int:
        """Jobs that no device has."""
        return len(self._compiling) + sum(map(len, (*self._todo.values(), *self._ready.values())))

    def _least(self, state: str, most: int, workers: Iterable[str]) -> list[str]:
        """Those of some workers that have no more than so many jobs in a state, those with the fewest first."""
        loads = self._loads[state]
        return sorted((worker for worker in workers if loads[worker] <= most), key=loads.__getitem__)

    def _next(self, worker: str, idle: bool) -> Job | None:
        """Take the job that a worker's device works on next."""
        offer, host = self._offers[worker], self._hosts[worker]
        own = [self._ready.get(host, ()), self._todo[False], *([] if offer.compilers else [self._todo[True]])]
        job = _first(own, offer)
        if job or not idle or self._loads["machine"][host] or any(_may(job, offer) for job in self._todo[True]):
            return job
        return _first(self._ready.values(), offer)

    def _to_compile(self, worker: str) -> Job | None:
        """Take the job that a worker compiles for next; None while its machine is far enough ahead."""
        host = self._hosts[worker]
        if not self._offers[worker].compilers or self._ahead(host) >= AHEAD * len(self._beside[host]):
            return None
        return _first([self._todo[True]], *(self._offers[other] for other in self._beside[host]))

    def _ahead(self, host: str) -> int:
        """Jobs that a machine compiles for, or has compiled for."""
        return self._loads["machine"][host] + len(self._ready.get(host, ()))

    def _seconds(self, worker: str) -> float:
        """Briefly while a device of the machine waits for it: what is not compiled then, the search compiles itself."""
        host = self._hosts[worker]
        having = sum(self._loads["working"][each] for each in self._beside[host])
        waits = self._ahead(host) + having < len(self._beside[host])
        return self._compile_s / self._offers[worker].compilers if waits else self._compile_s


def _may(job: Job, offer: Offer) -> bool:
    return job.places is None or offer.place in job.places


def _first(waiting: Iterable[Any], *offers: Offer) -> Job | None:
    """Take out the first job, of several rows of them, that one of these devices may run."""
    for jobs in waiting:
        job = next((job for job in jobs if any(_may(job, offer) for offer in offers)), None)
        if job is not None:
            jobs.remove(job)
            return job
    return None
