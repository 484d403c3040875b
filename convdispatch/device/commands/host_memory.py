"""Host memory as the argument of a CPU device's kernels: plain pointers, without a buffer, a copy or a mapping.

A device with OpenCL's fine-grained system SVM (Intel's CPU runtime has it) reads and writes whatever the host can, at
any alignment. ``has_system_svm`` is false for a device without it (PoCL, Oclgrind, every GPU so far).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.policy import current_policy
from ..memory import allocator
from ..memory.host_pool import HostPool
from .queues import OpenCLQueue

_MIN_POOLED = 1 << 16
"""Results of at least this many bytes come from the pool; the C library itself reuses smaller blocks."""


class HostMemory(cl.SVM):
    """Host memory as a kernel's argument: an object with the buffer protocol, contiguous and writeable.

    It keeps that object alive, and the object ``held``.
    """

    held: Any = None

    @classmethod
    def at(cls, address: int, size: int, held: Any = None) -> HostMemory:
        """Host memory of ``size`` bytes at an address, which ``held`` keeps alive."""
        memory = cls((ctypes.c_ubyte * max(size, 1)).from_address(address))
        memory.held = held
        return memory

    def get_sub_region(self, offset: int, size: int) -> HostMemory:
        """The part of ``size`` bytes from byte ``offset`` on; keeps the whole memory alive."""
        return HostMemory.at(self.svm_ptr + offset, size, self)

    def bytes(self, offset: int, size: int) -> np.ndarray:
        """A view of a range of the bytes."""
        return np.frombuffer((ctypes.c_ubyte * size).from_address(self.svm_ptr + offset), np.uint8)


@functools.lru_cache(maxsize=16)
def has_system_svm(device: cl.Device) -> bool:
    """Whether kernels of the device accept any host pointer."""
    try:
        return bool(device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM)
    except (AttributeError, cl.Error):
        return False


@functools.lru_cache(maxsize=16)
def pool_of(device: cl.Device) -> HostPool:
    """The device's pool of host memory, which counts in the device's memory statistics and limits."""
    return allocator.join(allocator.PoolKey(device, "host"), HostPool())


def lease(device: cl.Device, size: int) -> Any:
    """Host memory of ``size`` bytes from the device's pool, as a ctypes array; its destructor returns the memory."""
    return allocator.take(pool_of(device), allocator.PoolKey(device, "host"), size)


def empty(device: cl.Device, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """A new array of ``size`` bytes with undefined values, from the device's pool if it is large."""
    if size < _MIN_POOLED or not has_system_svm(device) or (current_policy().frozen and not pool_of(device).has(size)):
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, lease(device, size))


class HostQueue(OpenCLQueue):
    """Commands on host memory for a CPU device's queue. It serves one call, which ``finish`` ends.

    Memory that it allocated stays alive until ``finish``, because the host's pool does not know the queue's order.
    """

    __slots__ = ("_held", "_host_buffers")
    kind = "host"
    _held: list[Any]
    _host_buffers: list[Any]

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue, self._held, self._host_buffers = queue, [], []

    def allocate(self, size: int) -> HostMemory:
        """Host memory from the device's pool."""
        memory = HostMemory(lease(self.queue.device, size))
        self._held.append(memory)
        return memory

    def fresh(self, size: int) -> HostMemory:
        """See Commands; the memory's destructor returns it to the device's pool."""
        return HostMemory(lease(self.queue.device, size))

    def bring(self, array: np.ndarray) -> HostMemory:
        memory = self.fresh(array.nbytes)
        memory.bytes(0, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        return memory

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        if not isinstance(region, HostMemory):
            super().read(region, array, offset)
            return
        self.queue.finish()
        array.reshape(-1).view(np.uint8)[:] = region.bytes(offset, array.nbytes)

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        if not isinstance(region, HostMemory):
            super().write(region, array, offset)
            return
        self.queue.finish()
        region.bytes(offset, array.nbytes)[:] = array.reshape(-1).view(np.uint8)

    def copy(
        self, target: Any, source: Any, size: int, offsets: tuple[int, int] = (0, 0), wait_for: Any = None
    ) -> cl.Event:
        """See Commands; either side may be an OpenCL buffer."""
        to_host, from_host = isinstance(target, HostMemory), isinstance(source, HostMemory)
        if not (to_host or from_host):
            return super().copy(target, source, size, offsets, wait_for)
        self._held += [target, source]
        (source_offset, target_offset), wait, queue = offsets, wait_for or None, self.queue
        if to_host and from_host:
            regions = target.get_sub_region(target_offset, size), source.get_sub_region(source_offset, size)
            self._held += regions
            return cl.enqueue_copy(queue, *regions, wait_for=wait)
        if to_host:
            view = target.bytes(target_offset, size)
            return cl.enqueue_copy(queue, view, source, src_offset=source_offset, wait_for=wait, is_blocking=False)
        view = source.bytes(source_offset, size)
        return cl.enqueue_copy(queue, target, view, dst_offset=target_offset, wait_for=wait, is_blocking=False)

    def fill(self, target: Any, number: Any, offset: int, size: int, wait_for: Any = None) -> cl.Event:
        if not isinstance(target, HostMemory):
            return super().fill(target, number, offset, size, wait_for)
        region = target.get_sub_region(offset, size)
        self._held.append(region)
        return cl.enqueue_svm_memfill(self.queue, region, np.asarray(number), size, wait_for=wait_for or None)

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Any:
        """Calls ``work`` with the OpenCL queue, and with buffers over the host's memory."""
        arguments = [self._buffer(operand) if isinstance(operand, HostMemory) else operand for operand in operands]
        return work(self.queue, *arguments, wait_for=wait_for)

    def _buffer(self, region: HostMemory) -> cl.Buffer:
        view = region.bytes(0, region.size)
        buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=view)
        self._host_buffers.append((buffer, region))
        return buffer

    def finish(self, event: cl.Event) -> None:
        """Wait for the call's last command, after which the results are in host memory."""
        for buffer, region in self._host_buffers:  # mapping a USE_HOST_PTR buffer makes its values visible to the host
            view, event = cl.enqueue_map_buffer(
                self.queue, buffer, cl.map_flags.READ, 0, (region.size,), np.uint8, wait_for=[event], is_blocking=False
            )
            view.base.release(self.queue, [event])
        event.wait()
        self._held.clear()
        self._host_buffers.clear()
