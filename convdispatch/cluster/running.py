"""Runs tasks on a scheduler's workers and returns their results, while workers come and go.

Dask sends a task to a worker that offers its kind of device as a resource, and repeats the tasks of workers that die.
Only as many tasks are submitted as workers run at once, so that an interrupt has few to cancel.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gc
import itertools
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchError, NoDevice
from .offers import Offer
from .requirements import distributed, hint, why
from .serving import local_cluster
from .worker import offer_of_worker

CONNECT_S = 20.0
LOOK_S = 2.0
"""Seconds between two queries for the scheduler's workers."""
GONE_S = 120.0
"""Seconds without a worker for a task's kind of device, after which the task fails."""


class Failed(Exception):
    """The reason why a task has no result."""


@dataclass
class Kind:
    """One kind of device, and the workers that offer it: Dask's address to what each offers."""

    key: str
    device: DeviceInfo
    workers: dict[str, Offer] = field(default_factory=dict)


@dataclass(eq=False)
class Task:
    """One task: ``work(*arguments)`` on a device of a kind."""

    words: str
    """The task's name in messages."""
    kind: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    about: Any = None
    """An arbitrary value that the caller attaches to the task."""


@contextlib.contextmanager
def cluster_run(
    client: Any,
    devices: Sequence[str] | str | None = None,
    *,
    security: Any = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Iterator[Run]:
    """Inside the block a Run on the workers of a cluster; the arguments are those of ``find_many``."""
    with _connected(client, security) as connection:
        yield Run(connection, devices, tell=tell)


@contextlib.contextmanager
def _connected(client: Any, security: Any) -> Iterator[Any]:
    """Inside the block a ``distributed.Client``: the argument itself, a new one for a scheduler's address, or for None
    one for workers of this machine's devices, which end with the block. Raises ConvDispatchError."""
    package = distributed()
    if isinstance(client, package.Client):
        yield client
        return
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(local_cluster()) if client is None else str(client)
        try:
            with _without_garbage_collection():
                connection = package.Client(address, security=security, timeout=CONNECT_S, set_as_default=False)
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            message = f"no scheduler can be used at {address} ({why(error)}); {hint(address, security)}"
            raise ConvDispatchError(message) from error
        stack.callback(connection.close, timeout=2)
        yield connection


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect garbage before the block, and none inside it: the end of an earlier client that could not connect takes
    the lock that the start of the next one holds, and a collection within that start would wait for ever."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Run:
    """Runs tasks on the workers of a client. ``devices`` names kinds of device by globs or parts of their names.

    Raises NoDevice where no worker offers such a kind.
    """

    def __init__(
        self,
        client: Any,
        devices: Sequence[str] | str | None = None,
        *,
        tell: Callable[[str], None] = lambda words: None,
        gone_s: float = GONE_S,
    ) -> None:
        self._client, self._tell, self._gone_s = client, tell, gone_s
        self._chosen = None if devices in (None, "all") else [devices] if isinstance(devices, str) else list(devices)
        self._offers: dict[str, Offer | None] = {}
        self._waiting: deque[Task] = deque()
        self._in_flight: dict[str, tuple[Task, Any]] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._absent_since: dict[str, float] = {}
        self._serial = itertools.count()
        self.kinds: dict[str, Kind] = {}
        self.other_versions: set[str] = set()
        """A sentence for each worker of another version of this package, which gets no tasks."""
        self._look()
        if not self.kinds:
            offered = sorted({offer.key for offer in self._offers.values() if offer is not None})
            reason = "; ".join(sorted(self.other_versions)) or (f"offered are {', '.join(offered)}" if offered else "")
            condition = f" that {self._chosen} names" if self._chosen else ""
            raise NoDevice(
                f"no worker of the cluster offers a device{condition}{f': {reason}' if reason else ''}; "
                "`convdispatch worker ADDRESS` offers a machine's"
            )

    def add(self, *tasks: Task) -> None:
        """Add tasks, perhaps while others run."""
        self._waiting.extend(tasks)

    def called(self, tasks: Iterable[Task], hear: Callable[[Task, Any], None]) -> None:
        """Run tasks of ``worker.call``; ``hear`` is called with each task and its function's result.

        Failures are passed to ``tell``. An interrupt from the keyboard ends the run, and is not raised.
        """
        self.add(*tasks)
        with contextlib.suppress(KeyboardInterrupt):
            for task, answer in self.answers():
                if isinstance(answer, Failed) or "failure" in answer:
                    reason = answer if isinstance(answer, Failed) else answer["failure"]
                    self._tell(f"{task.words} on {task.kind}: {reason}")
                else:
                    hear(task, answer["made"])

    def answers(self) -> Iterator[tuple[Task, Any]]:
        """Each task with its result or Failed, as they end. Raises ConvDispatchError if the scheduler is gone.

        When the caller ends the iteration, all submitted tasks are cancelled.
        """
        try:
            while self._waiting or self._in_flight:
                if time.monotonic() - self._looked > LOOK_S:
                    self._look()
                    yield from self._without_worker()
                self._submit()
                try:
                    future = self._ended.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
                task, _ = self._in_flight.pop(future.key, (None, None))
                if task is not None:
                    # New tasks are submitted before the result is fetched, which may take seconds.
                    self._submit()
                    yield task, self._result(future)
        finally:
            futures = [future for _, future in self._in_flight.values()]
            self._in_flight.clear()
            with contextlib.suppress(Exception):  # The Dask scheduler may be gone.
                self._client.cancel(futures, force=True)

    def _submit(self) -> None:
        """Submit tasks until each kind's workers have as many as they run at once.

        A worker gets a second task only while more tasks wait than there are workers, so that the last tasks go to the
        devices that are free first.
        """
        waiting_of = Counter(task.kind for task in self._waiting)
        running_of = Counter(task.kind for task, _ in self._in_flight.values())
        for task in list(self._waiting):
            workers = self.kinds[task.kind].workers if task.kind in self.kinds else {}
            most = sum(offer.tasks for offer in workers.values())
            if running_of[task.kind] >= (most if waiting_of[task.kind] > len(workers) else len(workers)):
                continue
            self._waiting.remove(task)
            waiting_of[task.kind] -= 1
            running_of[task.kind] += 1
            future = self._client.submit(
                task.work,
                *task.arguments,
                key=f"{task.work.__name__}-{id(self)}-{next(self._serial)}",
                resources={next(iter(workers.values())).resource: 1},
                pure=False,
            )
            self._in_flight[future.key] = task, future
            future.add_done_callback(self._ended.put)

    def _result(self, future: Any) -> Any:
        """A task's result or Failed. Where the result died with its worker, Dask computes it again elsewhere."""
        try:
            return future.result(timeout=self._gone_s)
        except Exception as error:  # The error is the task's, or Dask's after several workers died at the task.
            if self._client.status != "running":
                message = "the scheduler is gone; what was measured is recorded: run again to go on"
                raise ConvDispatchError(message) from error
            return Failed(f"{type(error).__name__}: {why(error)}")

    def _look(self) -> None:
        """Update the workers, and the kinds of device that they offer and that are wanted."""
        from .. import __version__

        try:
            present = set(self._client.scheduler_info(n_workers=-1)["workers"])
            new = [address for address in present if address not in self._offers]
            found = self._client.run(offer_of_worker, workers=new, on_error="ignore") if new else {}
        except (OSError, TimeoutError) as error:
            raise ConvDispatchError(f"the scheduler is gone ({error}); run again to go on") from error
        self._looked = time.monotonic()
        self._offers = {a: offer for a, offer in {**self._offers, **found}.items() if a in present}
        self.kinds = {}
        for address, offer in self._offers.items():
            if offer is None or not self._is_wanted(offer):
                continue
            if offer.version != __version__:
                self.other_versions.add(f"{offer.place} runs convdispatch {offer.version}, this is {__version__}")
                continue
            self.kinds.setdefault(offer.key, Kind(offer.key, offer.device)).workers[address] = offer

    def _is_wanted(self, offer: Offer) -> bool:
        texts = (offer.key, offer.info["vendor"], offer.info["type"], offer.info["name"].lower())
        return self._chosen is None or any(
            fnmatch.fnmatchcase(text, choice.lower()) or choice.lower() in text
            for choice in self._chosen
            for text in texts
        )

    def _without_worker(self) -> Iterator[tuple[Task, Failed]]:
        """Failed for each task whose kind of device has had no worker for a while."""
        tasks = [*((task, future) for task, future in self._in_flight.values()), *((t, None) for t in self._waiting)]
        for key in {task.kind for task, _ in tasks}:
            if key in self.kinds:
                self._absent_since.pop(key, None)
            elif key not in self._absent_since:
                self._absent_since[key] = self._looked
                self._tell(f"no worker offers {key} any more: waiting {self._gone_s:.0f} s for one")
        for task, future in tasks:
            if self._looked - self._absent_since.get(task.kind, self._looked) <= self._gone_s:
                continue
            if future is None:
                self._waiting.remove(task)
            else:
                del self._in_flight[future.key]
                self._client.cancel([future], force=True)
            yield task, Failed(f"no worker offers {task.kind} any more")
