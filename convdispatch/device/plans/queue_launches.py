"""A plan's launches on OpenCL's queues, decided once: what is left of a call is to set its buffers and to enqueue."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyopencl as cl

from ..commands.recording import Recording, Slot, launched, with_numbers
from ..memory import allocator

_enqueue = cl.enqueue_nd_range_kernel


class QueueLaunches:
    """The launches of a recording on slots for operands, and on memory that it asked for meanwhile.

    Safe from several threads, on queues of the context that the kernels were built for.
    """

    __slots__ = ("_held", "_launches", "_lock", "_sizes")

    def __init__(
        self, launches: Sequence[tuple[Any, Sequence[Any]]], operands: Sequence[Slot], scratch: Sequence[Slot]
    ) -> None:
        roots, self._sizes = [*operands, *scratch], [slot.size for slot in scratch]
        self._held = launches  # a kernel does not keep the memory alive that a plan gives it
        self._lock = threading.Lock()  # a cl.Kernel holds the arguments it was given last
        self._launches = [
            (
                with_numbers(kernel, arguments),
                kernel.global_size,
                kernel.local_size,
                [(at, roots.index(slot.root)) for at, slot in enumerate(arguments) if type(slot) is Slot],
            )
            for kernel, arguments in launches
        ]

    @classmethod
    def of(cls, recording: Recording, operands: Sequence[Slot]) -> QueueLaunches | None:
        """None where the recording holds anything but launches on slots from their first byte on."""
        found = launched(recording, operands)
        if found is None or any(slot.offset for command in recording.commands for slot in command.slots):
            return None
        return cls(found[0], operands, found[1])

    def give(self, queue: cl.CommandQueue, operands: Sequence[Any], wait_for: Any = None) -> cl.Event:
        """Enqueue everything on the operands' memory, each launch after the one before; the last one's event."""
        if self._sizes:
            operands = [*operands, *[allocator.allocate(queue, size) for size in self._sizes]]
        with self._lock:
            for kernel, global_size, local_size, places in self._launches:
                for at, place in places:
                    kernel.set_arg(at, operands[place])
                event = _enqueue(queue, kernel, global_size, local_size, None, wait_for)
                wait_for = [event]
        return event
