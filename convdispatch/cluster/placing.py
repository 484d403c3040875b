"""Which task goes to which worker, and when, so that no device waits for a task that another one holds. Nothing of
Dask.

A task that is measured is compiled for first, by a worker of some machine: it is *ready* for that machine's devices,
and is given to one only as that one needs it. What a device has is at most the task at work and the next; the next is
held back while no more tasks are left than there are devices, for the last tasks belong to whoever ends first. A device
that has nothing, and for which nothing is on its way, takes what was compiled for another machine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .offers import Offer

QUEUED = 2
"""Tasks that a device has: the one at work, and the next."""
AHEAD = 3
"""Tasks a device that its machine compiles for, or has compiled for, before they are measured."""
DEATHS = 4
"""Workers that may die of one task, or by chance while they have it."""


@dataclass(eq=False)
class Task:
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
    """What to do now: compile for a task by a worker, ``seconds`` at most, or (None) work on it."""

    task: Task
    worker: str
    seconds: float | None = None


class Pool:
    """The tasks for one kind of device; ``compile_s`` is how long one may be compiled for while another is measured.

    Each is in one of four states: nothing has begun, it is compiled for, it is ready on a machine, a device has it.
    """

    def __init__(self, compile_s: float = 0.0) -> None:
        self._compile_s = compile_s
        self._todo: dict[bool, deque[Task]] = {True: deque(), False: deque()}  # by whether they are compiled for
        self._compiling: dict[Task, str] = {}
        self._ready: dict[str, deque[Task]] = {}
        self._working: dict[Task, str] = {}
        self._loads: dict[str, Counter[str]] = {"compiling": Counter(), "working": Counter(), "machine": Counter()}
        self._offers: Mapping[str, Offer] = {}
        self._hosts: dict[str, str] = {}
        self._beside: dict[str, list[str]] = {}
        self.choosy: set[Task] = set()
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

    def tasks(self) -> list[Task]:
        """All that have not ended."""
        ready = [task for tasks in self._ready.values() for task in tasks]
        return [*self._working, *ready, *self._compiling, *self._todo[False], *self._todo[True]]

    def add(self, task: Task) -> None:
        """A new one, which comes last."""
        self._todo[task.compiles is not None].append(task)
        if task.places is not None:
            self.choosy.add(task)

    def compiled(self, task: Task) -> None:
        """Compiling for it has ended, in whatever way: its search meets what does not compile, and says so."""
        host = self._leave(task)
        if host in self._beside:
            self._ready.setdefault(host, deque()).append(task)
        else:
            self._todo[True].appendleft(task)

    def ended(self, task: Task) -> None:
        """It has an answer, or is given up."""
        self._leave(task)
        self.choosy.discard(task)

    def again(self, task: Task) -> None:
        """Whoever had it has gone: it comes first."""
        self._leave(task)
        self._todo[task.compiles is not None].appendleft(task)
        if task.places is not None:
            self.choosy.add(task)

    def steps(self) -> Iterator[Step]:
        """What is to be done now; each counts as begun."""
        left = self._left()
        for depth in range(QUEUED):
            for worker in self._least("working", depth, self._offers):
                if left <= (len(self._offers) if depth else 0):
                    break
                task = self._next(worker, idle=not depth)
                if task is not None:
                    left -= 1
                    self._working[task] = worker
                    self._loads["working"][worker] += 1
                    yield Step(task, worker)
        for depth in range(QUEUED):
            behind = [host for host, workers in self._beside.items() if self._ahead(host) < AHEAD * len(workers)]
            for worker in self._least("compiling", depth, [worker for host in behind for worker in self._beside[host]]):
                task = self._to_compile(worker)
                if task is not None:
                    seconds = self._seconds(worker)
                    self._compiling[task] = worker
                    self._loads["compiling"][worker] += 1
                    self._loads["machine"][self._hosts[worker]] += 1
                    yield Step(task, worker, seconds)

    def _leave(self, task: Task) -> str | None:
        """Take a task out of its state; the machine that compiled for it just now, if one did."""
        if task in self._working:
            self._loads["working"][self._working.pop(task)] -= 1
        elif task in self._compiling:
            worker = self._compiling.pop(task)
            host = urlsplit(worker).hostname or worker
            self._loads["compiling"][worker] -= 1
            self._loads["machine"][host] -= 1
            return host
        else:
            for waiting in (*self._ready.values(), *self._todo.values()):
                if task in waiting:
                    waiting.remove(task)
        return None

    def _left(self) -> int:
        """Tasks that no device has."""
        return len(self._compiling) + sum(map(len, (*self._todo.values(), *self._ready.values())))

    def _least(self, state: str, most: int, workers: Iterable[str]) -> list[str]:
        """Those of some workers that have no more than so many tasks in a state, those with the fewest first."""
        loads = self._loads[state]
        return sorted((worker for worker in workers if loads[worker] <= most), key=loads.__getitem__)

    def _next(self, worker: str, idle: bool) -> Task | None:
        """Take the task that a worker's device works on next."""
        offer, host = self._offers[worker], self._hosts[worker]
        own = [self._ready.get(host, ()), self._todo[False], *([] if offer.compilers else [self._todo[True]])]
        task = _first(own, offer)
        if task or not idle or self._loads["machine"][host] or any(_may(task, offer) for task in self._todo[True]):
            return task
        return _first(self._ready.values(), offer)

    def _to_compile(self, worker: str) -> Task | None:
        """Take the task that a worker compiles for next; None while its machine is far enough ahead."""
        host = self._hosts[worker]
        if not self._offers[worker].compilers or self._ahead(host) >= AHEAD * len(self._beside[host]):
            return None
        return _first([self._todo[True]], *(self._offers[other] for other in self._beside[host]))

    def _ahead(self, host: str) -> int:
        """Tasks that a machine compiles for, or has compiled for."""
        return self._loads["machine"][host] + len(self._ready.get(host, ()))

    def _seconds(self, worker: str) -> float:
        """Briefly while a device of the machine waits for it: what is not compiled then, the search compiles itself."""
        host = self._hosts[worker]
        having = sum(self._loads["working"][each] for each in self._beside[host])
        waits = self._ahead(host) + having < len(self._beside[host])
        return self._compile_s / self._offers[worker].compilers if waits else self._compile_s


def _may(task: Task, offer: Offer) -> bool:
    return task.places is None or offer.place in task.places


def _first(waiting: Iterable[Any], *offers: Offer) -> Task | None:
    """Take out the first task, of several rows of them, that one of these devices may run."""
    for tasks in waiting:
        task = next((task for task in tasks if any(_may(task, offer) for offer in offers)), None)
        if task is not None:
            tasks.remove(task)
            return task
    return None
