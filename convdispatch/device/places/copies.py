"""Runs an executable on host memory for a device that takes no host pointers: operands are copied in, the result out.

A CPU device (PoCL) gets buffers over the host's own memory, any other device buffers of its pool. All commands are done
when a run returns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from .. import runtime
from ..executable import Executable
from .queue import QueuePlace


class CopyPlace(NamedTuple):
    """Host memory of a context whose device works on copies; ``keeps``: kernels read the output's previous values."""

    context: cl.Context
    keeps: bool = False

    def bind(self, executable: Executable) -> CopyLaunches:
        """Bind the executable to buffers, to and from which the operands are copied."""
        return CopyLaunches(executable, self)

    @staticmethod
    def operand(packed: cl.MemoryObject) -> Any:
        """The buffer of packed weights, which takes the place of their address in a call."""
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
        """Call ``work(queue, *memory)`` on copies of the operands, copy ``outputs`` back, and wait."""
        copies, buffers = _Copies(queue), []
        for number, (address, size) in enumerate(zip(addresses, sizes, strict=True)):
            if size is None or type(address) is not int:
                buffers.append(None if size is None else address)
            elif number in outputs:
                buffers.append(copies.write(_bytes_at(address, size), self.keeps))
            else:
                buffers.append(copies.read(_bytes_at(address, size)))
        if copies.events:
            cl.wait_for_events(copies.events)
        copies.finish(work(queue, *buffers))


class CopyLaunches:
    """The launches of an executable between copies. Safe from several threads."""

    __slots__ = ("__weakref__", "_executable", "_place", "_run")
    intraop = False

    def __init__(self, executable: Executable, place: CopyPlace) -> None:
        self._executable, self._place, self._run = executable, place, executable.bind(QueuePlace(place.context)).run

    def run(self, queue: cl.CommandQueue, addresses: Sequence[Any]) -> bool:
        """Run everything on copies of the operands, and wait; returns as ``HostLaunches.run``."""
        executable = self._executable
        sizes = executable.operands
        # Packed weights are not host memory: their address is a negative number, which overlaps with no operand.
        host_addresses = [
            address if type(address) is int else -(size or 1) for address, size in zip(addresses, sizes, strict=True)
        ]
        if executable.overlaps(host_addresses):
            return False
        run = self._run
        self._place.enqueue(lambda queue, *memory: run(queue, memory), queue, addresses, sizes, executable.outputs)
        executable.finished()
        return True


class _Copies:
    """The buffers of one call, and the events of the copies into them."""

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
        """A buffer whose values ``finish`` copies to an array of host bytes; with ``keep`` it starts with a copy."""
        queue = self.queue
        if self._on_host:
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            memory = cl.Buffer(queue.context, flags, hostbuf=array)

            def mapped(event: Any) -> None:
                # Only mapping makes a USE_HOST_PTR buffer's values visible to the host.
                view, _ = cl.enqueue_map_buffer(
                    queue, memory, cl.map_flags.READ, 0, (len(array),), np.uint8, wait_for=[event]
                )
                view.base.release(queue)

            self._after.append(mapped)
            return memory
        memory, host_bytes = runtime.allocate(queue, len(array)), np.frombuffer(array, np.uint8)
        if keep:
            self.events.append(cl.enqueue_copy(queue, memory, host_bytes, is_blocking=False))
        self._after.append(lambda event: cl.enqueue_copy(queue, host_bytes, memory, wait_for=[event]))
        return memory

    def finish(self, event: Any) -> None:
        """Wait for the call's last command, and copy its results to the host."""
        for step in self._after:
            step(event)
        if event is not None and not self._after:
            event.wait()
        self.queue.finish()


def _shares_memory(device: cl.Device) -> bool:
    return bool(runtime.device_info(device).type == "cpu")


def _bytes_at(address: int, size: int) -> ctypes.Array[ctypes.c_ubyte]:
    return (ctypes.c_ubyte * max(size, 1)).from_address(address)
