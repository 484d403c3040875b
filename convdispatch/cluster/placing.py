"""Which task goes to which worker, and when, so that no device waits for a task that another one has.

A worker has at most the running task and the next one. If no more tasks are left than there are devices, no next task
is submitted, so that the last tasks go to the devices that are free first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .offers import QUEUED, Offer

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
    """The tasks for one kind of device: those that wait, and those that workers run."""

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
