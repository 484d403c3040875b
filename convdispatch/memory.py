"""Memory: a pool for each queue, counted and limited by device, and one allocation's views in OpenCL and CUDA.

Work on one in-order queue may use a block again as soon as the host has let go of it, work on another queue may not:
so each queue has a pool. On an NVIDIA device with CUDA's driver the blocks are memory that CUDA sees too (see
``cuda``), so that its libraries work on the buffers that kernels use. Elsewhere pyopencl's pool does the work.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .api.errors import MemoryLimit
from .api.policy import current_policy, forbid_when_frozen
from .cuda import Cuda, CudaError, Shared, cuda_of
from .recording import Recording

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = [
    "MemoryStatistics",
    "allocate",
    "cuda_address",
    "memory_statistics",
    "release_memory",
    "set_memory_limit",
    "shared_block",
    "sub_region",
    "workspace",
]

_EXTERNAL_FD = 0x2060
"""CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR"""
_SMALLEST = 512
"""Bytes of the smallest block: a multiple of what OpenCL devices ask of a sub-buffer's origin."""
_SLAB = 2 << 20
"""Blocks of up to half of this are cut from slabs of this size; larger ones are allocations of their own."""
_lock = threading.RLock()
_pools: dict[Any, Any] = {}
_arenas: dict[Any, _Arena] = {}
_limits: dict[Any, int] = {}
_addresses: dict[int, int] = {}
"""CUDA address by ``int_ptr`` of an OpenCL buffer."""
_leases: weakref.WeakValueDictionary[int, _Lease] = weakref.WeakValueDictionary()
"""Blocks in use, by CUDA address."""


@dataclass(frozen=True)
class MemoryStatistics:
    """One device's memory, in bytes and blocks, over all its queues' pools."""

    held_bytes: int
    """Taken from the device: in use, or kept for the next call."""
    active_bytes: int
    held_blocks: int
    """Kept for the next call."""
    active_blocks: int
    limit: int | None
    shared_with_cuda: bool


def allocate(queue: cl.CommandQueue, size: int) -> cl.MemoryObject:
    """Device memory of at least ``size`` bytes for work on ``queue``, from the queue's pool.

    Raises MemoryLimit where the device's limit would be passed, Frozen where ``frozen()`` forbids new memory.
    """
    if type(queue) is Recording:
        return queue.allocate(size)
    pool = _pools.get(queue)
    if pool is None:
        pool = _make_pool(queue)
    if not current_policy().frozen and not _limits:
        return pool.allocate(size or 1)
    return _allocate_within(pool, queue, size or 1)


def workspace(queue: cl.CommandQueue, size: int) -> cl.MemoryObject | None:
    """Scratch memory for one plan on one queue; None for size 0."""
    return allocate(queue, size) if size else None


def _make_pool(queue: cl.CommandQueue) -> Any:
    from pyopencl.tools import ImmediateAllocator, MemoryPool

    with _lock:
        pool = _pools.get(queue)
        if pool is None:
            arena = _arena(queue)
            if arena is not None:
                pool = _SharedPool(queue, arena)
            elif _out_of_order(queue):
                pool = _NoPool(queue)
            else:
                pool = MemoryPool(ImmediateAllocator(queue))
            _pools[queue] = pool
    return pool


def _out_of_order(queue: cl.CommandQueue) -> bool:
    import pyopencl as cl

    return bool(queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)


def _allocate_within(pool: Any, queue: cl.CommandQueue, size: int) -> cl.MemoryObject:
    """Allocate, and give back at once what the policy or the limit does not allow."""
    frozen, limit = current_policy().frozen, _limits.get(queue.device)
    if frozen and type(pool) is _NoPool:
        forbid_when_frozen(f"allocate {size} bytes: an out-of-order queue has no pool")
    held = pool.managed_bytes
    memory = pool.allocate(size)
    if pool.managed_bytes <= held:
        return memory
    if frozen:
        del memory
        pool.free_held()
        forbid_when_frozen(f"allocate {size} bytes")
    if limit is None or memory_statistics(queue.device).held_bytes <= limit:
        return memory
    for other in [other for where, other in list(_pools.items()) if where.device == queue.device]:
        other.free_held()  # never the new block: it is in use
    found = memory_statistics(queue.device)
    if found.held_bytes <= limit:
        return memory
    del memory
    pool.free_held()
    raise MemoryLimit(
        f"{size} bytes more would make {found.held_bytes} bytes of memory in use on {queue.device.name.strip()}, the "
        f"limit is {limit}: free some, or set_memory_limit()"
    )


def set_memory_limit(device: cl.Device, limit: int | None) -> None:
    """From now on at most ``limit`` bytes of a device's memory are held; None lifts the limit.

    Blocks that wait for their next use are given back before an allocation fails.
    """
    with _lock:
        if limit is None:
            _limits.pop(device, None)
        else:
            _limits[device] = int(limit)


def memory_statistics(device: cl.Device) -> MemoryStatistics:
    """What a device's pools hold now."""
    pools = [pool for queue, pool in list(_pools.items()) if queue.device == device]
    return MemoryStatistics(
        held_bytes=sum(pool.managed_bytes for pool in pools),
        active_bytes=sum(pool.active_bytes for pool in pools),
        held_blocks=sum(pool.held_blocks for pool in pools),
        active_blocks=sum(pool.active_blocks for pool in pools),
        limit=_limits.get(device),
        shared_with_cuda=_arenas.get(device) is not None,
    )


def release_memory(device: cl.Device | None = None) -> None:
    """Give the device (all devices) back every block that is not in use."""
    for queue, pool in list(_pools.items()):
        if device is None or queue.device == device:
            pool.free_held()


def sub_region(memory: cl.MemoryObject, offset: int, size: int) -> cl.MemoryObject:
    """``size`` bytes from ``offset`` on, which must be aligned as the device asks; holds the block while it lives."""
    lease = getattr(memory, "_lease", None)
    if lease is None:
        return memory.get_sub_region(offset, size)
    parent, start = lease.block.parent, lease.block.offset
    region = parent.get_sub_region(start + offset, size)  # OpenCL has no sub-buffers of sub-buffers
    region._lease = lease
    return region


def cuda_address(memory: cl.MemoryObject) -> int | None:
    """Where CUDA sees a buffer, or None when it does not: memory that is not from ``allocate``, or not NVIDIA's."""
    found = _addresses.get(memory.int_ptr)
    if found is not None or not _addresses:
        return found
    import pyopencl as cl

    parent = memory.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT)
    base = _addresses.get(parent.int_ptr) if parent is not None else None
    return None if base is None else base + memory.get_info(cl.mem_info.OFFSET)


def shared_block(address: int) -> tuple[cl.MemoryObject, int] | None:
    """(buffer, bytes into it) of pool memory that CUDA sees at ``address``, held in use; None for other memory."""
    for lease in list(_leases.values()):
        start = lease.start
        if start <= address < start + lease.block.size:
            import pyopencl as cl

            memory = cl.Buffer.from_int_ptr(lease.block.memory.int_ptr, retain=True)
            memory._lease = lease
            return memory, address - start
    return None


class _NoPool:
    """For out-of-order queues: when a block may be used again is not to be seen, so each allocation is new."""

    managed_bytes = active_bytes = held_blocks = active_blocks = 0

    def __init__(self, queue: cl.CommandQueue) -> None:
        self._context = queue.context

    def allocate(self, size: int) -> cl.Buffer:
        """A new buffer."""
        import pyopencl as cl

        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)

    def free_held(self) -> None:
        """Nothing is held."""


@dataclass(eq=False)
class _Block:
    """``size`` bytes from ``offset`` on of an allocation, ``parent``; ``memory`` is their buffer."""

    memory: Any
    parent: Any
    offset: int
    size: int
    shared: Shared | None
    """The allocation, where the block is all of it."""


class _Lease:
    """Gives its block back to the pool when the last buffer that holds it goes."""

    __slots__ = ("__weakref__", "block", "pool", "start")

    def __init__(self, pool: _SharedPool, block: _Block) -> None:
        self.pool, self.block = pool, block
        self.start = _addresses[block.memory.int_ptr]
        _leases[self.start] = self

    def __del__(self) -> None:
        self.pool.take_back(self.block)


class _Arena:
    """Where one device's shared pools get blocks from; safe from several threads."""

    def __init__(self, context: cl.Context, cuda: Cuda) -> None:
        self._context, self._cuda = context, cuda
        self._slab: Any = None
        self._used = 0

    def block(self, size: int) -> _Block:
        """A block of one of the sizes that ``_rounded`` gives. Raises CudaError, or pyopencl's MemoryError."""
        with _lock:
            if size > _SLAB // 2:
                shared, memory = self._import(size)
                return _Block(memory, memory, 0, size, shared)
            if self._slab is None or self._used + size > _SLAB:
                self._slab, self._used = self._import(_SLAB), 0
            shared, parent = self._slab
            start, self._used = self._used, self._used + size
            memory = parent.get_sub_region(start, size)
            _addresses[memory.int_ptr] = shared.address + start
            return _Block(memory, parent, start, size, None)

    def free(self, blocks: list[_Block]) -> None:
        """Give allocations back; blocks cut from slabs are kept. Waits for CUDA's work."""
        self._cuda("cuCtxSynchronize")
        for block in blocks:
            if block.shared is not None:
                del _addresses[block.memory.int_ptr]
                block.memory.release()
                block.shared.release()

    def _import(self, size: int) -> tuple[Shared, cl.Buffer]:
        import ctypes

        import pyopencl as cl

        shared = self._cuda.shared(size)
        create = ctypes.CDLL(cl._cl.__file__).clCreateBufferWithProperties  # pyopencl does not wrap it
        create.restype, error = ctypes.c_void_p, ctypes.c_int()
        create.argtypes = (*(ctypes.c_void_p,) * 2, ctypes.c_uint64, ctypes.c_size_t, *(ctypes.c_void_p,) * 2)
        properties = (ctypes.c_uint64 * 3)(_EXTERNAL_FD, shared.fd, 0)
        flags = int(cl.mem_flags.READ_WRITE)
        handle = create(self._context.int_ptr, properties, flags, shared.size, None, ctypes.byref(error))
        if error.value:
            shared.release()
            raise CudaError(f"clCreateBufferWithProperties on memory of CUDA's failed with error {error.value}")
        memory = cl.Buffer.from_int_ptr(handle, retain=False)
        _addresses[memory.int_ptr] = shared.address
        return shared, memory


def _arena(queue: cl.CommandQueue) -> _Arena | None:
    device = queue.device
    if device not in _arenas:
        cuda, found = cuda_of(device), None
        if cuda is not None:
            try:
                found = _Arena(queue.context, cuda)
                found.block(_SMALLEST)
            except CudaError:  # a driver or a container that exports no memory: OpenCL's own serves
                found = None
        _arenas[device] = found
    arena = _arenas[device]
    return arena if arena is not None and arena._context == queue.context else None


def _rounded(size: int) -> int:
    """The size of the block that serves ``size`` bytes: powers of two in slabs, an eighth of one apart beyond."""
    if size <= _SLAB // 2:
        return max(_SMALLEST, 1 << (size - 1).bit_length())
    step = max(_SLAB, 1 << ((size - 1).bit_length() - 4))
    return -(-size // step) * step


class _SharedPool:
    """One queue's blocks of shared memory."""

    def __init__(self, queue: cl.CommandQueue, arena: _Arena) -> None:
        import pyopencl as cl

        self._queue, self._arena, self._marker = queue, arena, cl.enqueue_marker
        self._free: dict[int, list[tuple[Any, _Block]]] = defaultdict(list)
        self._disorderly = _out_of_order(queue)
        self._lock = threading.RLock()  # a lease may end inside a call, when garbage is collected
        self.managed_bytes = self.active_bytes = self.active_blocks = 0

    @property
    def held_blocks(self) -> int:
        """Blocks that wait for their next use."""
        return sum(map(len, self._free.values()))

    def allocate(self, size: int) -> cl.Buffer:
        """A block of ``size`` bytes or more, back in the pool when its last buffer goes."""
        import pyopencl as cl

        size = _rounded(size)
        with self._lock:
            block = self._reused(size)
            if block is None:
                block = self._arena.block(size)
                self.managed_bytes += size
            self.active_bytes += size
            self.active_blocks += 1
        memory = cl.Buffer.from_int_ptr(block.memory.int_ptr, retain=True)
        memory._lease = _Lease(self, block)
        return memory

    def _reused(self, size: int) -> _Block | None:
        import pyopencl as cl

        waiting = self._free.get(size)
        if not waiting:
            return None
        if not self._disorderly:
            return waiting.pop()[1]
        if waiting[0][0].command_execution_status == cl.command_execution_status.COMPLETE:
            return waiting.pop(0)[1]
        return None

    def take_back(self, block: _Block) -> None:
        """The host has let go of the block."""
        after = None
        if self._disorderly:
            after = self._marker(self._queue)  # of all commands so far: on such a queue any may still run
        with self._lock:
            self.active_bytes -= block.size
            self.active_blocks -= 1
            self._free[block.size].append((after, block))

    def free_held(self) -> None:
        """Give blocks that are not in use back to the device; waits for the queue."""
        with _lock:
            self._queue.finish()
            blocks = [
                self._free[size].pop()[1] for size in list(self._free) if size > _SLAB // 2 for _ in self._free[size][:]
            ]
            self.managed_bytes -= sum(block.size for block in blocks)
            self._arena.free(blocks)
