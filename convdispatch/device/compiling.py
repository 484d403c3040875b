"""Compiles side by side: one compiler in this process, the others in children, the longest texts first.

Compilers hold locks of their own: two threads of one process gain a fifth on Intel's runtime, two processes nearly all.
Inside ``side_by_side`` the threads that ``run`` starts hand their texts to a queue, from which the compilers take them.
A child that dies or cannot be started costs nothing but its help.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import json
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..api.errors import BuildFailed
from .commands import thread
from .phases import current_layer, layer, phase

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["compiled_aside", "processors", "run", "side_by_side"]

MOST = 8
"""Compilers at once."""
_HEAD = struct.Struct("<QQ")
"""Bytes of the JSON part of a message, and of the other."""


class _Local(threading.local):
    pool: _Pool | None = None


_local = _Local()
_active: contextvars.ContextVar[_Pool | None] = contextvars.ContextVar("convdispatch_compilers", default=None)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def side_by_side(device: cl.Device, at_once: bool = False) -> Iterator[None]:
    """Inside the block ``run`` compiles on several processors; children live until its end.

    They start when there is something to compile, or ``at_once`` where that is known already.
    """
    count = min(MOST, processors())
    if count < 2 or _active.get() is not None:
        yield
        return
    pool = _Pool(device, count)
    token = _active.set(pool)
    if at_once:
        pool.start()
    try:
        yield
    finally:
        _active.reset(token)
        pool.end()


def run(tasks: Sequence[Callable[[], Any]]) -> None:
    """Run ``tasks`` inside ``side_by_side``; elsewhere nothing is done. What they raise is passed over.

    One after the other until one compiles, then in threads: what only loads is done sooner without.
    """
    pool = _active.get()
    if pool is None or len(tasks) < 2:
        return
    left, lock = iter(tasks), threading.Lock()
    before = thread.compiled
    while not pool.started and thread.compiled == before:
        task = next(left, None)
        if task is None:
            return
        with contextlib.suppress(Exception):
            task()

    def work() -> None:
        _local.pool = pool
        while True:
            with lock:
                task = next(left, None)
            if task is None:
                return
            with contextlib.suppress(Exception):
                task()

    contexts = [contextvars.copy_context() for _ in range(min(len(tasks), 4 * pool.count))]
    threads = [threading.Thread(target=each.run, args=(work,), daemon=True) for each in contexts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def compiled_aside(
    context: cl.Context, text: str, options: Sequence[str], build: Callable[..., cl.Program]
) -> cl.Program | None:
    """A program by the compilers at work; None where this thread has none. Raises BuildFailed.

    ``build(context, options, *source)`` compiles here, or loads a binary.
    """
    pool = _local.pool
    if pool is None or context.devices != [pool.device]:
        return None
    asked = _Asked(text, tuple(options), lambda: build(context, options, text))
    with phase("waiting"):
        pool.put(asked)
        found = asked.answer.result()
    return build(context, options, context.devices, [found]) if isinstance(found, bytes) else found


class _Asked:
    def __init__(self, text: str, options: tuple[str, ...], here: Callable[[], cl.Program]) -> None:
        self.text, self.options, self.here, self.layer = text, options, here, current_layer()
        self.answer: Future[Any] = Future()


class _Pool:
    """The queue and those who take from it."""

    def __init__(self, device: cl.Device, count: int) -> None:
        self.device, self.count = device, count
        self._queue: queue.PriorityQueue[tuple[int, int, _Asked | None]] = queue.PriorityQueue()
        self._places = itertools.count()
        self._children: list[_Child] = []
        self._started, self._lock, self._ended = 0, threading.Lock(), False

    def put(self, asked: _Asked) -> None:
        """Queue a text; a further compiler starts where texts wait."""
        with self._lock:
            self._queue.put((-len(asked.text), next(self._places), asked))
            self._start_one()

    def start(self) -> None:
        """Start all compilers."""
        with self._lock:
            for _ in range(self.count):
                self._start_one()

    def _start_one(self) -> None:
        if self._started < self.count:
            threading.Thread(target=self._work, args=(self._started > 0,), daemon=True).start()
            self._started += 1

    @property
    def started(self) -> bool:
        """Whether compilers are at work, or waiting for it."""
        return self._started > 0

    def end(self) -> None:
        """End compilers that wait."""
        with self._lock:
            self._ended = True
            for _ in range(self._started):
                self._queue.put((1, next(self._places), None))
            children = list(self._children)
        for child in children:
            child.close()

    def _work(self, aside: bool) -> None:
        child = self._child() if aside else None
        if aside and child is None:
            return
        while True:
            asked = self._queue.get()[2]
            if asked is None:
                return
            try:
                with layer(asked.layer), phase("compile"):
                    made = asked.here() if child is None else child.compile(asked.text, asked.options)
                asked.answer.set_result(made)
            except BuildFailed as error:
                asked.answer.set_exception(error)
            except Exception as error:
                if child is None:
                    asked.answer.set_exception(error)
                    continue
                child.close()
                self._queue.put((-len(asked.text), next(self._places), asked))  # for another compiler
                return

    def _child(self) -> _Child | None:
        try:
            child = _Child(self.device)
        except Exception:
            return None
        with self._lock:
            if not self._ended:
                self._children.append(child)
                return child
        child.close()
        return None


class _Child:
    """``python -m convdispatch.device.compiler`` for a device."""

    def __init__(self, device: cl.Device) -> None:
        from .platforms import address

        home = str(Path(__file__).parents[2])
        paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), home]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "convdispatch.device.compiler", *address(device).split(":")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def compile(self, text: str, options: Sequence[str]) -> bytes:
        """The binary of a text. Raises BuildFailed, and OSError, EOFError or ValueError for a child that is no help."""
        send(self._process.stdin, {"options": list(options)}, text.encode())  # type: ignore[arg-type]
        said, binary = receive(self._process.stdout)  # type: ignore[arg-type]
        if said.get("failed"):
            raise BuildFailed(said["failed"], said.get("log", ""))
        return binary

    def close(self) -> None:
        """End it now."""
        with contextlib.suppress(OSError):
            self._process.kill()
            self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def send(stream: IO[bytes], said: dict[str, Any], content: bytes) -> None:
    """A message: a JSON object and bytes."""
    head = json.dumps(said).encode()
    stream.write(_HEAD.pack(len(head), len(content)) + head + content)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """The next message. Raises EOFError where there is none."""
    sizes = stream.read(_HEAD.size)
    if len(sizes) < _HEAD.size:
        raise EOFError("the other side has ended")
    head, size = _HEAD.unpack(sizes)
    said, content = json.loads(stream.read(head)), stream.read(size)
    if len(content) < size:
        raise EOFError("the other side has ended")
    return said, content
