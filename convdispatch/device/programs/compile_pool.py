"""Compiles in parallel, the longest texts first: one compiler in this process, the others in child processes.

Compilers hold locks of their own: on Intel's runtime two threads of a process are a fifth faster than one, two
processes nearly twice as fast. Inside ``side_by_side`` the threads that ``run`` starts put their texts into a queue,
from which the compilers take them. If a child dies or cannot be started, the other compilers do its work.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyopencl as cl

from ...api.errors import BuildFailed
from .. import background
from ..background import locked, unlocked
from ..child import FEW_THREADS, Child
from ..commands.interface import thread
from ..opencl.platforms import address
from ..startup_profile import current_layer, layer, phase

MAX_COMPILERS = 16
"""The most compilers that run in parallel: more hardly speed up a net of a hundred programs, each of which compiles
faster than a child process starts."""
_HOST_BYTES = 1 << 30
"""Bytes of free host memory that each compiler requires."""
_DEVICE_BYTES = 4 << 30
"""Bytes of a GPU's memory per compiler: its context takes half a gigabyte, and the net needs the rest later."""


class _ThreadState(threading.local):
    pool: _Pool | None = None


_thread_state = _ThreadState()
_active: contextvars.ContextVar[_Pool | None] = contextvars.ContextVar("convdispatch_compilers", default=None)


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compilers(device: cl.Device) -> int:
    """The number of compilers for a device: one per processor, as far as memory allows; this process is one of them."""
    from ..opencl.platforms import device_info

    info, counts = device_info(device), [MAX_COMPILERS, processors(), _available() // _HOST_BYTES]
    if info.type == "gpu" and info.global_mem_size:
        counts.append(info.global_mem_size // _DEVICE_BYTES)
    return max(1, min(counts))


def _available() -> int:
    """Bytes of host memory that are free or can be freed; 2**60 if the system does not report them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 60


@contextlib.contextmanager
def side_by_side(
    device: cl.Device, at_once: bool = False, for_cuda: bool = False, beside_calls: bool = False
) -> Iterator[None]:
    """Inside the block ``run`` compiles on several processors; children live until its end.

    They start with the first text to compile, or ``at_once``. With ``for_cuda`` they also assemble programs for CUDA's
    streams: CUDA's driver caches machine code on disk, where this process finds it. ``beside_calls`` leaves one
    processor of several to the caller's other threads.
    """
    count = 1 if _active.get() is not None else compilers(device)
    beside_calls = beside_calls and count > 1
    count -= beside_calls
    if count < 2 and not beside_calls:
        yield
        return
    pool = _Pool(device, count, for_cuda)
    token = _active.set(pool)
    if at_once:
        pool.start()
    try:
        yield
    finally:
        _active.reset(token)
        pool.end()


def run(tasks: Sequence[Callable[[], Any]]) -> None:
    """Run ``tasks`` inside ``side_by_side``; elsewhere nothing is done. Their exceptions are ignored.

    Tasks run one after the other until one compiles or loads slowly, then in threads, which take turns: tasks that only
    load are faster without threads.
    """
    pool = _active.get()
    if pool is None or len(tasks) < 2:
        return
    remaining, lock, turn = iter(tasks), threading.Lock(), threading.Lock()
    counts_before = thread.compiled, thread.slow
    while not pool.started and (thread.compiled, thread.slow) == counts_before:
        task = next(remaining, None)
        if task is None:
            return
        with contextlib.suppress(Exception):
            task()

    def work() -> None:
        _thread_state.pool = pool
        while True:
            with lock:
                task = next(remaining, None)
            # After an interrupt the block ends before its tasks are done.
            if task is None or pool.ended or background.ended():
                return
            with contextlib.suppress(Exception), locked(turn):
                task()

    contexts = [contextvars.copy_context() for _ in range(min(len(tasks), 4 * pool.count))]
    threads = [background.start(functools.partial(copied.run, work), "convdispatch-build") for copied in contexts]
    for copied in threads:
        copied.join()


def compiled_in_child(
    context: cl.Context,
    text: str,
    options: Sequence[str],
    build: Callable[..., cl.Program],
    load: Callable[[bytes], Any],
) -> Any:
    """A program from the pool's compilers; None in a thread without a pool. Raises BuildFailed.

    ``build(context, options, text)`` compiles in this process, ``load(binary)`` loads what a child compiled.
    """
    pool = _thread_state.pool
    if pool is None or context.devices != [pool.device]:
        return None
    request = _Request(text, tuple(options), lambda: build(context, options, text))
    with phase("waiting"):
        with unlocked():
            pool.put(request)
            compiled = request.answer.result()
        return load(compiled) if isinstance(compiled, bytes) else compiled


def assembled_in_child(context: cl.Context, binary: bytes, options: Sequence[str]) -> None:
    """Let a child load a binary first, if its driver then caches the machine code on disk for this process.

    NVIDIA's driver assembles machine code from PTX, one program at a time in a process, and caches it on disk. If
    nothing was compiled, the driver most likely has it already, and no child is started. A child's errors are ignored,
    because this process loads the binary anyway.
    """
    pool = _thread_state.pool
    if pool is None or not pool.started or context.devices != [pool.device] or not _keeps_machine_code(pool.device):
        return
    request = _Request(binary, tuple(options), lambda: None)
    with phase("waiting"), unlocked(), contextlib.suppress(Exception):
        pool.put(request)
        request.answer.result()


def _keeps_machine_code(device: cl.Device) -> bool:
    return device.platform.name.startswith("NVIDIA")


class _Request:
    def __init__(self, text: str | bytes, options: tuple[str, ...], here: Callable[[], Any]) -> None:
        self.text, self.options, self.here, self.layer = text, options, here, current_layer()
        from concurrent.futures import Future

        self.answer: Future[Any] = Future()


class _Pool:
    """The queue of texts to compile, and the compilers that take from it."""

    def __init__(self, device: cl.Device, count: int, for_cuda: bool = False) -> None:
        self.device, self.count, self.for_cuda = device, count, for_cuda
        self._queue: queue.PriorityQueue[tuple[int, int, _Request | None]] = queue.PriorityQueue()
        self._places = itertools.count()
        self._children: list[_Child] = []
        self._started, self._lock, self.ended = 0, threading.Lock(), False

    def put(self, request: _Request) -> None:
        """Queue a text, and start one more compiler if fewer than ``count`` run."""
        with self._lock:
            if self.ended:
                raise RuntimeError("the compilers have ended")
            self._queue.put((-len(request.text), next(self._places), request))
            self._start_one()

    def start(self) -> None:
        with self._lock:
            for _ in range(self.count):
                self._start_one()

    def _start_one(self) -> None:
        if self._started < self.count:
            background.start(functools.partial(self._work, self._started > 0), "convdispatch-compiler")
            self._started += 1

    @property
    def started(self) -> bool:
        return self._started > 0

    def end(self) -> None:
        """End the compilers; texts that no compiler has taken fail."""
        with self._lock:
            self.ended = True
            with contextlib.suppress(queue.Empty):
                while request := self._queue.get_nowait()[2]:
                    request.answer.set_exception(RuntimeError("the compilers have ended"))
            for _ in range(self._started):
                self._queue.put((1, next(self._places), None))
            children = list(self._children)
        for child in children:
            child.close()

    def _work(self, unlocked: bool) -> None:
        child = self._child() if unlocked else None
        if unlocked and child is None:
            return
        while True:
            request = self._queue.get()[2]
            if request is None:
                return
            try:
                with layer(request.layer), phase("compile" if isinstance(request.text, str) else "assemble"):
                    result = (
                        request.here() if child is None else child.compile(request.text, request.options, self.for_cuda)
                    )
                request.answer.set_result(result)
            except BuildFailed as error:
                request.answer.set_exception(error)
            except Exception as error:
                if child is None:
                    request.answer.set_exception(error)
                    continue
                child.close()
                try:
                    self.put(request)  # another compiler process takes the request
                except RuntimeError as ended:
                    request.answer.set_exception(ended)
                return

    def _child(self) -> _Child | None:
        try:
            child = _Child(self.device)
        except Exception:
            return None
        with self._lock:
            if not self.ended:
                self._children.append(child)
                return child
        child.close()
        return None


class _Child(Child):
    def __init__(self, device: cl.Device) -> None:
        super().__init__("convdispatch.device.compiler", {"device": address(device)}, environment=FEW_THREADS)

    def compile(self, text: str | bytes, options: Sequence[str], for_cuda: bool = False) -> bytes:
        """The binary of a text; a binary is only loaded by the child, and returns nothing. Raises as ``ask``, and
        BuildFailed."""
        is_text = isinstance(text, str)
        request = {"options": list(options), "for_cuda": for_cuda, "is_text": is_text}
        reply = self.ask(request, text.encode() if is_text else text)  # type: ignore[arg-type,union-attr]
        if reply.get("failed"):
            raise BuildFailed(reply["failed"], reply.get("log", ""))
        return reply.content
