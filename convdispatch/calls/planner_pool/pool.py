"""The child processes that plan problems for one device, and the artifacts that they built.

A request is answered by a ``Future``; the problem of the longest run time goes first. Children start while problems
wait: at most one a processor (as ``compile_pool.compilers`` counts them), on a GPU one for two processors, because
calls go on meanwhile. They end when nothing has been requested for a while, because on a GPU each holds a context. If a
child dies, another one takes its problems; if children cannot be started, or have other plugins than this process, the
caller plans by itself.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyopencl as cl

from ...api.policy import Policy
from ...api.problem import ConvProblem
from ...device import runtime
from ...device.cache import artifact_store, keys
from ...device.cache.store import DECISIONS
from ...device.child import FEW_THREADS, Answer, Child
from ...device.programs.compile_pool import compilers
from ...selection import decision_store, dispatch
from ...selection.planpack import from_environment
from ...selection.plugins.loader import plugins
from .progress_line import ProgressLine

IDLE_S = 20.0
"""Seconds without a problem after which a child process ends."""
MADE_BYTES = 16 << 20
"""The most bytes of children's texts and binaries that this process holds; older ones are read from disk."""
GPU_CHILD_THREADS = 2
"""Threads of a child that plans for a GPU: NVIDIA's OpenCL compiles one text at a time in a process (0.17 s), meanwhile
the other thread plans, or assembles machine code (0.12 s), which runs in parallel. Measured on an H200."""
_FEW_CHANNELS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""A variable by which CUDA creates a context with one channel to the device: 4 processes at once then take 0.14 s
instead of 0.6, and OpenCL's context 1.3 s instead of 1.65 (H200). Children launch nothing that more would speed up."""
_TRIES = 2
"""The number of child processes that may die while planning one problem."""


class NoHelp(Exception):
    """No child planned the problem, for the reason in the message. The caller plans it, and gets the same errors."""


@dataclass(order=True)
class _Task:
    order: tuple[float, int]
    problem: ConvProblem = field(compare=False)
    policy: Policy = field(compare=False)
    answer: Future[None] = field(compare=False, default_factory=Future)
    tries: int = field(compare=False, default=0)


class PlannerPool:
    """Child processes that plan problems for one device. Safe from several threads."""

    def __init__(self, device: cl.Device) -> None:
        self.device = device
        self.made = artifact_store.Gathered(keys.identity(device))
        """The artifacts that child processes built, until they end; ``lent`` puts them in force."""
        self.made.name = ""
        self._info = runtime.device_info(device)
        processes, is_gpu = compilers(device), self._info.type == "gpu"
        self._threads = GPU_CHILD_THREADS if is_gpu else 1
        self._max_children = max(1, (processes // 2 if is_gpu else processes) - 1)
        self._tasks: list[_Task] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._children = 0
        self._waiting = 0
        self._under_way = 0
        self.finished = 0
        """The number of problems answered so far."""
        self._epoch = 0
        self._progress: ProgressLine | None = None
        self._closed: str | None = None
        dispatch.on_forget(self._forget)

    def ask(self, problem: ConvProblem, policy: Policy, seconds: float) -> Future[None]:
        """Request a problem's plan under a policy. The Future is done when its decision is stored and ``lent`` provides
        its texts and binaries; it raises NoHelp if no child planned it.

        ``seconds`` is the problem's estimated run time; the longest is planned first.
        """
        task = _Task((-seconds, next(self._order)), problem, policy)
        # If the decision is stored on disk, the program texts and binaries are too.
        if decision_store.remembers(problem, self._info, policy):
            task.answer.set_result(None)
            return task.answer
        with self._changed:
            if self._closed is not None:
                task.answer.set_exception(NoHelp(self._closed))
                return task.answer
            heapq.heappush(self._tasks, task)
            self._show_progress()
            if self._waiting < len(self._tasks) and self._children < self._max_children:
                self._start_child()
            self._changed.notify()
        return task.answer

    def expect(self) -> None:
        """Start all children at once, for problems that will be requested, if nothing was decided on this machine yet.
        Otherwise what is on disk most often suffices."""
        from_environment()
        if not DECISIONS.is_empty() or artifact_store.in_force(self.device):
            return
        with self._changed:
            while self._closed is None and self._children < self._max_children:
                self._start_child()

    def _start_child(self) -> None:
        """Start the threads of a child process. The caller holds the lock."""
        self._children += 1
        threading.Thread(target=self._run_child, name="convdispatch-planner", daemon=True).start()

    def _show_progress(self) -> None:
        """Show a progress line on the terminal while many problems are left. The caller holds the lock."""
        if self._progress is None or self._progress.ended.is_set():
            before, what = self.finished, "compiling kernels in the background"
            self._progress = ProgressLine(
                what, lambda: (self.finished - before, self.left), self._max_children * self._threads
            )

    @property
    def left(self) -> int:
        """The number of problems that are requested and not answered yet."""
        return len(self._tasks) + self._under_way

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Inside the block the artifacts of child processes are in force, in all threads."""
        artifact_store.put_in_force(self.made)
        try:
            yield
        finally:
            artifact_store.take_out_of_force(self.made)

    def close(self, why: str = "planning aside has ended") -> None:
        """Refuse all requests; children end after the problems that they plan now."""
        with self._changed:
            self._closed = why
            tasks, self._tasks = self._tasks, []
            self._changed.notify_all()
        for task in tasks:
            task.answer.set_exception(NoHelp(why))

    def _forget(self) -> None:
        """Records, rules or plugins changed, so child processes must forget their choices too; texts and binaries stay
        valid."""
        self._epoch += 1

    # --- the threads of each child process, one for each thread in it -----------------------------------------------

    def _run_child(self) -> None:
        try:
            child = _Child(self.device, self._threads)
        except Exception as error:
            with self._changed:
                self._children -= 1
                is_last = not self._children
            if is_last:  # every waiting request fails, because no child process can be started
                self.close(f"a child that plans could not be started: {error}")
            return
        others = [threading.Thread(target=self._work, args=(child,), daemon=True) for _ in range(self._threads - 1)]
        for thread in others:
            thread.start()
        self._work(child)
        for thread in others:
            thread.join()
        child.close()
        with self._changed:
            self._children -= 1
            if self._tasks:  # those of a child that died, or that were requested as this one ended
                self._start_child()
            elif not self._children:
                for table in ("texts", "programs"):
                    self.made.tables[table].clear()

    def _work(self, child: _Child) -> None:
        while (task := self._next()) is not None:
            try:
                self._plan(child, task)
            except (OSError, EOFError, ValueError, KeyError) as error:
                # The child process has ended, or its answer is malformed.
                child.kill()
                self._retry(task, error)
                return

    def _next(self) -> _Task | None:
        with self._changed:
            self._waiting += 1
            try:
                while not self._tasks and self._closed is None:
                    if not self._changed.wait(IDLE_S):
                        break
                if not self._tasks:
                    return None
                self._under_way += 1
                return heapq.heappop(self._tasks)
            finally:
                self._waiting -= 1

    def _plan(self, child: _Child, task: _Task) -> None:
        epoch = self._epoch
        reply = child.plan(task.problem, task.policy, epoch)
        failure = reply.get("failed")
        if failure is None and epoch != self._epoch:  # records, rules or plugins changed while the child was planning
            with self._changed:
                self._under_way -= 1
                heapq.heappush(self._tasks, task)
                self._changed.notify()
            return
        if failure is None:
            tables, begin = self.made.tables, 0
            for key, size in reply["programs"]:
                tables["programs"][key] = reply.content[begin : begin + size]
                begin += size
            tables["texts"].update(reply["texts"])
            _shorten(tables, MADE_BYTES)
            decision = reply["solver"], reply["config"], reply["source"], reply["math"]
            decision_store.remember(task.problem, self._info, task.policy, decision)
        with self._changed:
            self._under_way -= 1
            self.finished += 1
        if failure is None:
            task.answer.set_result(None)
        else:
            task.answer.set_exception(NoHelp(failure))

    def _retry(self, task: _Task, error: Exception) -> None:
        task.tries += 1
        with self._changed:
            self._under_way -= 1
            retries = task.tries < _TRIES and self._closed is None
            if retries:
                heapq.heappush(self._tasks, task)
                self._changed.notify()
        if not retries:
            task.answer.set_exception(NoHelp(f"a child that planned {task.problem} ended: {error}"))


def _shorten(tables: dict[str, Any], most: int) -> None:
    """Drop the oldest texts and binaries beyond ``most`` bytes."""
    for name in ("texts", "programs"):
        table = tables[name]
        size = sum(map(len, list(table.values())))
        for key in list(table):
            if size <= most // 2:
                break
            size -= len(table.pop(key, ""))


class _Child(Child):
    """A child process that plans in several threads; ``plan`` may be called from as many."""

    def __init__(self, device: cl.Device, threads: int) -> None:
        for_cuda = runtime.device_info(device).vendor == "nvidia"
        setup = {"device": runtime.address(device), "threads": threads, "for_cuda": for_cuda}
        super().__init__(f"{__package__}.worker", setup, environment=FEW_THREADS | _FEW_CHANNELS)
        self._numbers, self._replies, self._lock = itertools.count(), dict[int, Future[Answer]](), threading.Lock()
        self._ended = False
        try:
            if self.heard().get("solvers") != sorted(plugins().solvers):
                raise RuntimeError("it has other solvers than this process, to which plugins were added since")
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._receive, name="convdispatch-planner-replies", daemon=True).start()

    def plan(self, problem: ConvProblem, policy: Policy, epoch: int) -> Answer:
        """The child's answer to a planning request. Raises EOFError for a child that has ended."""
        choices = {name: getattr(policy, name) for name in ("solver", "max_error", "workspace_limit")}
        choices |= policy.promises
        request = {"problem": str(problem), "policy": choices, "epoch": epoch}
        with self._lock:
            if self._ended:
                raise EOFError(self.how_it_ended())
            number = next(self._numbers)
            reply = self._replies[number] = Future()
            self.say({"number": number, **request})
        return reply.result()

    def _receive(self) -> None:
        """Pass each reply to the thread that waits for it, until the child has ended."""
        with contextlib.suppress(KeyError):  # a malformed reply: whoever waits gets the same error as at the end
            while (reply := self.hear()) is not None:
                with self._lock:
                    waiting = self._replies.pop(reply["number"])
                waiting.set_result(reply)
        with self._lock:
            self._ended = True
        for waiting in self._replies.values():
            waiting.set_exception(EOFError(self.how_it_ended()))


_pools: dict[cl.Device, PlannerPool] = {}


def pool_of(device: cl.Device) -> PlannerPool:
    """The PlannerPool of a device; the callers hold the lock of ``framework.tiers``, so that it is created once."""
    if device not in _pools:
        _pools[device] = PlannerPool(device)
    return _pools[device]
