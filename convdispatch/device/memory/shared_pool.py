"""Pools of memory that OpenCL and CUDA both see: blocks, their leases, and the arena that allocates them.

A block of up to a megabyte is cut from a slab, as a part of one OpenCL buffer; a larger block is a separate allocation,
which only OpenCL sees if it cannot import that much (``cuda_imports``). Blocks of an in-order queue are reused as soon
as the host releases them; those of an out-of-order queue once all commands enqueued before the release are done.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from ..cuda_driver import Cuda, CudaError, Shared, no_wait
from .cuda_imports import import_shared, safe

SMALLEST = 512
"""Bytes of the smallest block: a multiple of the alignment that OpenCL devices require of a sub-buffer."""
_SLAB = 2 << 20
"""Bytes of a slab; blocks of up to half of it are cut from slabs."""
MIN_SEPARATE = _SLAB // 2 + 1
"""A block of at least this many bytes is a separate allocation."""
_lock = threading.RLock()
_addresses: dict[int, int] = {}
"""CUDA addresses of OpenCL buffers, by their ``int_ptr``."""
_blocks: dict[int, _Block] = {}
"""Blocks of shared memory by their CUDA address."""


def out_of_order(queue: cl.CommandQueue) -> bool:
    """Whether a queue is out of order, so that only events order its commands."""
    opencl_queue = getattr(queue, "queue", queue)  # `queue` may be an object that wraps OpenCL's queue
    return bool(opencl_queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)


def cuda_address(memory: cl.MemoryObject) -> int | None:
    """A buffer's CUDA address, or None for memory that is not from ``allocate``, or not on an NVIDIA device."""
    address = _addresses.get(memory.int_ptr)
    if address is not None or not _addresses:
        return address
    whole, offset = whole_and_offset(memory)
    base = _addresses.get(whole.int_ptr)
    return None if base is None else base + offset


def whole_and_offset(memory: cl.MemoryObject) -> tuple[cl.MemoryObject, int]:
    """The buffer that a sub-buffer is a part of, and its offset there in bytes; a whole buffer itself, and 0."""
    parent = memory.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT)
    return (memory, 0) if parent is None else (parent, memory.get_info(cl.mem_info.OFFSET))


def shared_block(address: int) -> tuple[cl.MemoryObject, int] | None:
    """The (buffer, byte offset) of the pool memory at a CUDA ``address``, kept in use; None for other memory."""
    for start, block in list(_blocks.items()):
        if start <= address < start + block.size and (lease := block.lease()) is not None:
            memory = cl.Buffer.from_int_ptr(block.handle, retain=True)
            memory._lease = lease
            return memory, address - start
    return None


@dataclass(eq=False)
class _Block:
    """A block: ``size`` bytes from ``offset`` on of the allocation ``parent``; ``memory`` is the block's buffer."""

    memory: Any
    parent: Any
    offset: int
    size: int
    shared: Shared | None
    """CUDA's allocation, if the block is all of it."""
    whole: bool = True
    """Whether the block is all of an allocation."""

    def __post_init__(self) -> None:
        self.handle, self.after = self.memory.int_ptr, None
        self.lease: Callable[[], _Lease | None] = lambda: None
        """Returns the lease of a block in use, else None."""
        start = _addresses.get(self.handle)
        if start is not None:
            _blocks[start] = self


class _Lease:
    """A block in use; its destructor, after the last buffer over the block is released, calls ``give_back``."""

    __slots__ = ("__weakref__", "block", "give_back")

    def __init__(self, block: _Block, give_back: Callable[[_Block], None]) -> None:
        self.block, self.give_back = block, give_back
        block.lease = weakref.ref(self)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():
            self.give_back(self.block)


class Arena:
    """The source of blocks for one device's shared pools; safe from several threads."""

    def __init__(self, context: cl.Context, cuda: Cuda) -> None:
        self._context, self._cuda = context, cuda
        self._slab: Any = None
        self._used = 0
        self._to_free: list[_Block] = []

    def block(self, size: int) -> _Block:
        """A new block of a size that ``rounded`` returns. Raises CudaError, or pyopencl's MemoryError."""
        if not self.shares(size):
            memory = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
            return _Block(memory, memory, 0, size, None)
        with _lock:
            if size > _SLAB // 2:
                shared, memory = self._import(size)
                return _Block(memory, memory, 0, size, shared)
            if self._slab is None or self._used + size > _SLAB:
                self._slab, self._used = self._import(_SLAB), 0
            shared, parent = self._slab
            start, self._used = self._used, self._used + size
            memory = parent.get_sub_region(start, size)
            # The address is stored before the _Block is created, which looks it up.
            _addresses[memory.int_ptr] = shared.address + start
            return _Block(memory, parent, start, size, None, whole=False)

    def shares(self, size: int) -> bool:
        """Whether CUDA sees a block of ``size`` bytes too."""
        return safe(self._context.devices[0], rounded(size))

    def free(self, blocks: list[_Block], later: bool = False) -> None:
        """Free allocations, or with ``later`` together with the next ones; blocks cut from slabs are not freed.

        Waits for CUDA's work, without the lock, so that other threads can allocate meanwhile.
        """
        with _lock:
            self._to_free += [block for block in blocks if block.whole]
            if later:
                return
            blocks, self._to_free = self._to_free, []
        try:
            self._cuda("cuCtxSynchronize")
        except CudaError:
            with _lock:
                self._to_free += blocks
            raise
        for block in blocks:
            _blocks.pop(_addresses.pop(block.handle, 0), None)
            block.memory.release()
            if block.shared is not None:
                block.shared.release()

    def _import(self, size: int) -> tuple[Shared, cl.Buffer]:
        shared, memory = import_shared(self._context, self._cuda, size)
        _addresses[memory.int_ptr] = shared.address
        return shared, memory


@functools.lru_cache(maxsize=1024)
def rounded(size: int) -> int:
    """The size of the block for ``size`` bytes: powers of two in slabs, beyond them eighths of a power of two."""
    if size <= _SLAB // 2:
        return max(SMALLEST, 1 << (size - 1).bit_length())
    step = max(_SLAB, 1 << ((size - 1).bit_length() - 4))
    return -(-size // step) * step


class SharedPool:
    """One queue's blocks of shared memory."""

    def __init__(self, queue: cl.CommandQueue, arena: Arena) -> None:
        self._queue, self._arena, self._marker = queue, arena, cl.enqueue_marker
        self._buffer = cl.Buffer.from_int_ptr
        self._free: dict[int, list[_Block]] = defaultdict(list)
        self._out_of_order = out_of_order(queue)
        self._lock = threading.RLock()  # reentrant, because a garbage collection while it is locked may end a lease
        self.managed_bytes = self._blocks = 0

    @property
    def held_blocks(self) -> int:
        """The number of unused blocks."""
        return sum(map(len, list(self._free.values())))

    @property
    def active_blocks(self) -> int:
        """The number of blocks in use."""
        return self._blocks - self.held_blocks

    @property
    def active_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.managed_bytes - sum(size * len(blocks) for size, blocks in list(self._free.items()))

    def allocate(self, size: int, pooled: bool = True) -> cl.Buffer:
        """A block of at least ``size`` bytes; once released, it returns to the pool (to the device, if not
        ``pooled``)."""
        size = rounded(size)
        unused, block = self._free.get(size), None
        if unused:
            if self._out_of_order:
                block = self._reused(unused)
            else:
                block = _popped(unused)
        if block is None:
            self._arena.shares(size)  # outside of the lock, because the first call may wait for a child process
            with self._lock:
                block = self._arena.block(size)
                self.managed_bytes += size
                self._blocks += 1
        memory = self._buffer(block.handle, True)  # True: the new object retains the OpenCL buffer
        memory._lease = _Lease(block, self.take_back if pooled else self.give_up)
        return memory

    def give_up(self, block: _Block) -> None:
        """Free a released block that other queues may have used too.

        OpenCL keeps the memory until its commands are done; CUDA's work is waited for. In a thread that must not wait,
        the block is freed together with the next one.
        """
        with self._lock:
            self.managed_bytes -= block.size
            self._blocks -= 1
        self._arena.free([block], later=no_wait.depth > 0)

    def _reused(self, unused: list[_Block]) -> _Block | None:
        with self._lock:
            # A status below COMPLETE says that the command has failed, so it is done too.
            if unused and unused[0].after.command_execution_status <= cl.command_execution_status.COMPLETE:
                return unused.pop(0)
        return None

    def take_back(self, block: _Block) -> None:
        """Take back a block that the host has released."""
        if self._out_of_order:
            # The marker waits for all commands so far: on an out-of-order queue any of them may still use the block.
            block.after = self._marker(self._queue)
        self._free[block.size].append(block)

    def free_held(self) -> None:
        """Return unused blocks to the device; waits for the queue."""
        blocks = []
        with self._lock:
            for size, unused in list(self._free.items()):
                while size > _SLAB // 2 and (block := _popped(unused)) is not None:
                    blocks.append(block)
            self.managed_bytes -= sum(block.size for block in blocks)
            self._blocks -= len(blocks)
        if blocks:
            self._queue.finish()  # outside of the lock, because a thread that enqueues meanwhile may need a block
        self._arena.free(blocks)


def _popped(unused: list[_Block]) -> _Block | None:
    """The last unused block, or None if another thread took it; no lock is taken, because that would be slower."""
    try:
        return unused.pop()
    except IndexError:
        return None
