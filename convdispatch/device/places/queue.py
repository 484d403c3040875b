"""Runs an executable on OpenCL queues: a call only sets its buffers as kernel arguments and enqueues."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyopencl as cl

from ..commands.recording import with_numbers
from ..executable import Executable, note_launched
from ..memory import allocator

_enqueue = cl.enqueue_nd_range_kernel


class QueuePlace(NamedTuple):
    """The place for operands in buffers of a context, from their first byte on, on any of its queues."""

    context: cl.Context

    def bind(self, executable: Executable) -> QueueLaunches | QueueEnqueue:
        """Bind the executable; if a kernel takes a part of an operand or of scratch memory, the plan itself enqueues at
        each call."""
        parts = any(offset for launch in executable.launches for _, _, offset in launch.memory)
        return QueueEnqueue(executable) if executable.opaque or parts else QueueLaunches(executable)


class QueueEnqueue:
    """An opaque executable on buffers."""

    __slots__ = ("__weakref__", "_enqueue")

    def __init__(self, executable: Executable) -> None:
        self._enqueue = executable.enqueue_noted

    def run(self, queue: cl.CommandQueue, operands: Sequence[Any], wait_for: Any = None) -> cl.Event:
        """Enqueue everything on the operands' buffers; returns the last command's event."""
        return self._enqueue(queue, *operands, wait_for=wait_for)


class QueueLaunches:
    """The launches of an executable on buffers. Safe from several threads."""

    __slots__ = ("__weakref__", "_absent", "_held", "_launches", "_lock", "_scratch")

    def __init__(self, executable: Executable) -> None:
        self._scratch, self._absent = executable.scratch_sizes, (None,) * len(executable.operands)
        self._held = executable  # keeps alive the memory of kernel arguments, which a cl.Kernel does not
        # A cl.Kernel stores its arguments: setting them and launching must not interleave.
        self._lock = threading.Lock()
        self._launches = [
            (
                with_numbers(kernel, arguments),
                kernel.global_size,
                kernel.local_size,
                [(index, operand) for index, operand, _ in memory],
            )
            for kernel, arguments, memory in executable.launches
        ]

    def run(self, queue: cl.CommandQueue, operands: Sequence[Any], wait_for: Any = None) -> cl.Event:
        """Enqueue everything on the operands' buffers, each launch after the preceding one; returns the last event."""
        if self._scratch:
            scratch = [allocator.allocate(queue, size) for size in self._scratch]
            operands = [*operands, *self._absent[len(operands) :], *scratch]
        event = None
        try:
            with self._lock:
                for kernel, global_size, local_size, memory in self._launches:
                    for index, operand in memory:
                        kernel.set_arg(index, operands[operand])
                    event = _enqueue(queue, kernel, global_size, local_size, None, wait_for)
                    wait_for = [event]
        except BaseException as error:
            if event:
                note_launched(error)
            raise
        return event
