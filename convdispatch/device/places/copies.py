"""An executable on host memory of a device that takes no pointers of the host's: copies in, and one out.

A CPU device (PoCL) gets buffers over the host's own memory, any other device buffers of its pool. Everything is over
when a run returns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from .. import runtime
from ..commands.interface import thread
from ..executable import Executable
from .queue import QueuePlace


class CopyPlace(NamedTuple):
    """Host memory of a context whose device works on copies; ``keeps``: kernels read the result's previous values."""

    context: cl.Context
    keeps: bool = False

    def bind(self, executable: Executable) -> CopyLaunches:
        """Bind the executable to buffers, to and from which the operands are copied."""
        return CopyLaunches(executable, self)

    @staticmethod
    def operand(packed: cl.MemoryObject) -> Any:
        """What stands for packed weights among a call's addresses: the buffer itself."""
        return packed

    def memory(self, queue: cl.CommandQueue, address: int, size: int | None) -> cl.MemoryObject:
        """A buffer that holds the values at a host address."""
        copies = _Copies(queue)
        buffer = copies.read(_bytes_at(address, size or 0))
        cl.wait_for_events(copies.events)
        return buffer

    def enqueue(
        self,
        work: Callable[..., Any],
        queue: cl.CommandQueue,
        addresses: Sequence[Any],
        sizes: Sequence[int | None],
        outputs: Sequence[int] = (),
    ) -> None:
        """``work(queue, *memory)`` on copies of the operands, then those of ``outputs`` are copied back; waits."""
        # Commands on host memory cannot be captured, so they run at once.
        capturing, thread.capturing = thread.capturing, None
        try:
            copies, given = _Copies(queue), []
            for number, (address, size) in enumerate(zip(addresses, sizes, strict=True)):
                if size is None or type(address) is not int:
                    given.append(None if size is None else address)
                elif number in outputs:
                    given.append(copies.write(_bytes_at(address, size), self.keeps))
                else:
                    given.append(copies.read(_bytes_at(address, size)))
            if copies.events:
                cl.wait_for_events(copies.events)
            copies.finish(work(queue, *given))
        finally:
            thread.capturing = capturing


class CopyLaunches:
    """The launches of an executable between copies. Safe from several threads."""

    __slots__ = ("__weakref__", "_executable", "_place", "_run")
    intraop = False

    def __init__(self, executable: Executable, place: CopyPlace) -> None:
        self._executable, self._place, self._run = executable, place, executable.bind(QueuePlace(place.context)).run

    def run(self, queue: cl.CommandQueue, addresses: Sequence[Any]) -> bool:
        """Run everything on copies of the operands, and wait; False as ``HostLaunches.run``."""
        executable = self._executable
        sizes = executable.operands
        # Packed weights are not host memory: their address is a negative number, which overlaps with no operand.
        apart = [
            address if type(address) is int else -(size or 1) for address, size in zip(addresses, sizes, strict=True)
        ]
        if executable.overlaps(apart):
            return False
        run = self._run
        self._place.enqueue(lambda queue, *memory: run(queue, memory), queue, addresses, sizes, executable.outputs)
        executable.finished()
        return True

    def program(self, launcher: Any, name: str, sizes: Sequence[int], strides: Sequence[int]) -> None:
        """Returns None, because the native call path launches on addresses only, not on buffers."""


class _Copies:
    """Buffers of one call, and the events after which they hold their values."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue, self.events = queue, list[Any]()
        self._on_host = _shares_memory(queue.device)
        self._after: list[Callable[[Any], Any]] = []

    def read(self, array: Any) -> cl.MemoryObject:
        """A read-only buffer with the values of an array of host bytes."""
        if self._on_host:
            flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
            return cl.Buffer(self.queue.context, flags, hostbuf=array)
        memory = runtime.allocate(self.queue, len(array))
        self.events.append(cl.enqueue_copy(self.queue, memory, np.frombuffer(array, np.uint8), is_blocking=False))
        return memory

    def write(self, array: Any, keep: bool) -> cl.MemoryObject:
        """A buffer whose values ``finish`` copies to bytes of the host's; with ``keep`` it holds their present ones."""
        queue = self.queue
        if self._on_host:
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            memory = cl.Buffer(queue.context, flags, hostbuf=array)

            def mapped(event: Any) -> None:
                # Mapping is what makes a USE_HOST_PTR buffer's values visible to the host.
                view, _ = cl.enqueue_map_buffer(
                    queue, memory, cl.map_flags.READ, 0, (len(array),), np.uint8, wait_for=[event]
                )
                view.base.release(queue)

            self._after.append(mapped)
            return memory
        memory, whole = runtime.allocate(queue, len(array)), np.frombuffer(array, np.uint8)
        if keep:
            self.events.append(cl.enqueue_copy(queue, memory, whole, is_blocking=False))
        self._after.append(lambda event: cl.enqueue_copy(queue, whole, memory, wait_for=[event]))
        return memory

    def finish(self, event: Any) -> None:
        """Wait for the call's last command, and bring its result to the host."""
        for step in self._after:
            step(event)
        if event is not None and not self._after:
            event.wait()
        self.queue.finish()


def _shares_memory(device: cl.Device) -> bool:
    """Whether the device's buffers can use the host's memory without a copy."""
    return bool(runtime.device_info(device).type == "cpu")


def _bytes_at(address: int, size: int) -> ctypes.Array[ctypes.c_ubyte]:
    return (ctypes.c_ubyte * max(size, 1)).from_address(address)
