"""Device memory: a pool for each queue, counted and limited per device, and shared by OpenCL and CUDA where possible.

Work on one in-order queue may reuse a block as soon as the host has released it, work on another queue may not: so each
queue has a pool. On an NVIDIA device with CUDA's driver, CUDA sees the blocks too (see ``shared_pool``; on some hosts
not the largest, see ``cuda_imports``), so that its libraries work on the buffers that kernels use. On other devices the
pool is pyopencl's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from ...api.errors import ConvDispatchError, MemoryLimit
from ...api.policy import current_policy, forbid_when_frozen
from ..cache import artifact_store
from ..cuda_driver import CudaError, cuda_of, no_wait
from ..opencl.platforms import device_info
from ..size_limits import must_fit
from .shared_pool import MIN_SEPARATE, SMALLEST, Arena, SharedPool, out_of_order, whole_and_offset

_CHECKED_BYTES = 1 << 27
"""Larger blocks are compared with the device's largest allocation; smaller ones are not, because that takes time."""
_lock = threading.RLock()
_pools: dict[Any, Any] = {}
"""The pool of each queue; the keys are this module's own references to the queues."""
_queueless_pools: dict[Any, Any] = {}
"""Pools that belong to no queue, such as the pool of host memory; the keys have a ``device``."""
_caller_queues: dict[Any, Any] = {}
"""The caller's object for a queue, by the same keys: its reference count shows whether the queue is still in use."""
_arenas: dict[Any, Arena | None] = {}
"""The arena of each context; None where memory is OpenCL's alone."""
_limits: dict[Any, int] = {}


@dataclass(frozen=True)
class MemoryStatistics:
    """The memory that all pools of one device's queues hold, in bytes and blocks."""

    held_bytes: int
    """Bytes taken from the device, in use or free for later calls."""
    active_bytes: int
    held_blocks: int
    """Blocks that are free for later calls."""
    active_blocks: int
    limit: int | None
    shared_with_cuda: bool


def allocate(queue: cl.CommandQueue, size: int) -> cl.MemoryObject:
    """Device memory of at least ``size`` bytes for work on ``queue``, from the queue's pool.

    Once released, the block may serve the queue's next work: other queues must have finished their work with it by
    then, or the queue must wait for them (a barrier).

    Raises MemoryLimit where the device's limit would be exceeded, Frozen where ``frozen()`` forbids new memory.
    """
    pool = _pools.get(queue)
    if pool is None:
        pool = _make_pool(queue)
    return take(pool, queue, size)


def taker(queue: cl.CommandQueue, size: int) -> Callable[[], cl.MemoryObject]:
    """A function for repeated ``allocate(queue, size)``, which looks the queue's pool up only once."""
    pool = _pools.get(queue) or _make_pool(queue)
    # The reference to the queue's Python object keeps _forget_queues from dropping the pool.
    size, allocate_block, owner = size or 1, pool.allocate, _caller_queues.get(queue)

    def take(_held: Any = owner) -> cl.MemoryObject:
        if size > _CHECKED_BYTES or _limits or current_policy().frozen:
            return allocate(queue, size)
        try:
            return allocate_block(size)
        except Exception as error:
            if not out_of_memory(error):
                raise
        return allocate(queue, size)

    return take


def take(pool: Any, place: Any, size: int, **options: Any) -> Any:
    """A block of a pool, within the memory limit of ``place``'s device and the policy; ``options`` are the pool's."""
    if not _limits and not current_policy().frozen:
        return _take(pool, place, size or 1, **options)
    return _allocate_within(pool, place, size or 1, **options)


class PoolKey(NamedTuple):
    """The key of a pool that belongs to no queue, which is counted among its device's."""

    device: cl.Device
    kind: str


def join(place: PoolKey, pool: Any) -> Any:
    """Count a pool that belongs to no queue among those of ``place.device``; returns the counted pool."""
    with _lock:
        return _queueless_pools.setdefault(place, pool)


def _all_pools() -> list[tuple[Any, Any]]:
    """Every pool with its key: a queue, or another object that has a ``device``."""
    return [*_pools.items(), *_queueless_pools.items()]


def _take(pool: Any, queue: cl.CommandQueue, size: int, **options: Any) -> cl.MemoryObject:
    """A block from a pool; if the device is full, unused blocks of all pools are freed first."""
    _must_fit(queue, size)
    return with_room(queue.device, lambda: pool.allocate(size, **options))


def _must_fit(queue: cl.CommandQueue, size: int) -> None:
    if size > _CHECKED_BYTES:
        must_fit(device_info(queue.device), 1, {"a block": (size,)})


def with_room(device: cl.Device, allocate: Callable[[], Any]) -> Any:
    """The result of ``allocate()``; if the device is full, it is called again after all pools freed unused blocks.

    Raises MemoryLimit if that does not help, and the error of ``allocate`` if no blocks can be freed.
    """
    try:
        return allocate()
    except Exception as error:
        if not out_of_memory(error) or not make_room(device):
            raise
        try:
            return allocate()
        except Exception as second_error:
            if out_of_memory(second_error):
                raise full(device, second_error) from second_error
            raise


class NoDeviceMemory(ConvDispatchError):
    """A stream's caller has no memory left on the device."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of OpenCL, CUDA, Python or a stream's caller says that memory is used up."""
    text = str(error)
    if type(error) is MemoryError or isinstance(error, NoDeviceMemory):
        return True
    if isinstance(error, CudaError):
        return "OUT_OF_MEMORY" in text
    # Pyopencl also raises MemoryError for a launch that needs more registers than the device has.
    return isinstance(error, cl.MemoryError) and not ("OUT_OF_RESOURCES" in text and "NDRange" in text)


def make_room(device: cl.Device) -> bool:
    """Free unused blocks of the device's pools; returns False in ``no_wait``, where no wait is allowed, or frozen."""
    if no_wait.depth or current_policy().frozen:
        return False
    # If no block could be freed, the allocation that follows fails and reports it.
    with contextlib.suppress(Exception):
        release_memory(device)
    return True


def full(device: cl.Device, error: BaseException) -> MemoryLimit:
    """The MemoryLimit error for a device whose memory is used up."""
    usage = memory_statistics(device)
    return MemoryLimit(
        f"{device.name.strip()} has no memory left ({error}); {usage.active_bytes} bytes of this process' pools are in "
        "use: let arrays go, take smaller batches, or bound workspaces with policy(workspace_limit=)"
    )


def _make_pool(queue: cl.CommandQueue) -> Any:
    from pyopencl.tools import ImmediateAllocator, MemoryPool

    with _lock:
        pool = _pools.get(queue)
        if pool is None:
            _forget_queues()
            own_queue = cl.CommandQueue.from_int_ptr(queue.int_ptr, retain=True)
            arena = _arena(queue.context, queue.device)
            if arena is not None:
                pool = SharedPool(own_queue, arena)
            elif out_of_order(queue):
                pool = _Unpooled(own_queue)
            else:
                pool = MemoryPool(ImmediateAllocator(own_queue))
            _caller_queues[own_queue], _pools[own_queue] = queue, pool
    return pool


def _forget_queues() -> None:
    """Drop the pools of queues that nobody else references, because no further work will use their memory.

    Only pyopencl's pools are dropped: OpenCL keeps a buffer until the commands that use it are done, on any queue.
    Memory that CUDA sees too has no such guard, so its pools stay (``release_memory`` empties them). Out-of-order
    queues stay too, because Intel's CPU runtime hangs when one with work is released; they have no pool's memory.

    pyopencl's queues allow no weak references, and drivers hold queues themselves (PoCL by the last event): so Python's
    references are counted when another queue's pool is created. A queue that comes back gets a new pool.
    """
    from pyopencl.tools import MemoryPool

    ((_, unshared_count),) = _reference_counts({None: object()})
    for own_queue, references in _reference_counts(_caller_queues):
        pool = _pools[own_queue]
        if references == unshared_count and not pool.active_blocks and type(pool) is MemoryPool:
            del _pools[own_queue], _caller_queues[own_queue]


def _reference_counts(callers: dict[Any, Any]) -> list[tuple[Any, int]]:
    return [(own_queue, sys.getrefcount(caller)) for own_queue, caller in list(callers.items())]


def _allocate_within(pool: Any, queue: cl.CommandQueue, size: int, **options: Any) -> cl.MemoryObject:
    """Allocate, and free the memory at once if the policy or the limit does not allow it."""
    # Loading from a plan pack allocates memory, which frozen() allows, because nothing is compiled.
    frozen, limit = current_policy().frozen and not artifact_store.in_force(queue.device), _limits.get(queue.device)
    if frozen and type(pool) is _Unpooled:
        forbid_when_frozen(f"allocate {size} bytes: an out-of-order queue has no pool")
    held_bytes = pool.managed_bytes
    memory = _take(pool, queue, size, **options)
    if pool.managed_bytes <= held_bytes:
        return memory
    # An out-of-order queue may wait for a call that a bridge in use has postponed until after this allocation, so
    # waiting for that queue here would never end.
    blocked_pool = pool if no_wait.depth and out_of_order(queue) else None
    if frozen:
        del memory
        if pool is not blocked_pool:
            pool.free_held()
        forbid_when_frozen(f"allocate {size} bytes")
    if limit is None or memory_statistics(queue.device).held_bytes <= limit:
        return memory
    for device_pool in [device_pool for place, device_pool in _all_pools() if place.device == queue.device]:
        if device_pool is not blocked_pool:
            device_pool.free_held()  # free_held() cannot free the new block, which is in use
    totals = memory_statistics(queue.device)
    if totals.held_bytes <= limit:
        return memory
    del memory
    if pool is not blocked_pool:
        pool.free_held()
    raise MemoryLimit(
        f"{size} bytes more would make {totals.held_bytes} bytes of memory in use on {queue.device.name.strip()}, the "
        f"limit is {limit}: free some, or set_memory_limit()"
    )


def set_memory_limit(device: cl.Device, limit: int | None) -> None:
    """Limit the memory that a device's pools hold to ``limit`` bytes; None removes the limit.

    Unused blocks are freed before an allocation fails.
    """
    with _lock:
        if limit is None:
            _limits.pop(device, None)
        else:
            _limits[device] = int(limit)


def memory_statistics(device: cl.Device) -> MemoryStatistics:
    """The memory that a device's pools hold now."""
    pools = [pool for place, pool in _all_pools() if place.device == device]
    return MemoryStatistics(
        held_bytes=sum(pool.managed_bytes for pool in pools),
        active_bytes=sum(pool.active_bytes for pool in pools),
        held_blocks=sum(pool.held_blocks for pool in pools),
        active_blocks=sum(pool.active_blocks for pool in pools),
        limit=_limits.get(device),
        shared_with_cuda=any(type(pool) is SharedPool for pool in pools),
    )


def release_memory(device: cl.Device | None = None) -> None:
    """Free every unused block of the device, or of all devices for None."""
    for place, pool in _all_pools():
        if device is None or place.device == device:
            pool.free_held()


def sub_region(memory: cl.MemoryObject, offset: int, size: int) -> cl.MemoryObject:
    """``size`` bytes from ``offset`` on, which must have the device's alignment; keeps the whole block alive."""
    if not isinstance(memory, cl.MemoryObjectHolder):
        return memory.get_sub_region(offset, size)
    # OpenCL has no sub-buffers of sub-buffers, so the offset counts from the start of the whole buffer.
    whole, start = whole_and_offset(memory)
    region = cl.Buffer.from_int_ptr(whole.int_ptr).get_sub_region(start + offset, size)
    region._held = memory  # keeps the block in use, or the pool would give it to the next caller
    return region


def same_memory(one: Any, other: Any) -> bool:
    """Whether two buffers are, or are parts of, the same buffer; True where that is not known."""
    if one is None or other is None:
        return False
    if not (isinstance(one, cl.MemoryObjectHolder) and isinstance(other, cl.MemoryObjectHolder)):
        return True
    return whole_and_offset(one)[0].int_ptr == whole_and_offset(other)[0].int_ptr


def fresh(queue: cl.CommandQueue, size: int, content: Any = None) -> cl.MemoryObject:
    """A new buffer that is never a part of another, and that CUDA sees too if it sees the pool's blocks.

    It is for long-lived memory, and for memory that is cut into parts. ``content`` is a contiguous array, which is
    copied before this returns.
    """
    pool = _pools.get(queue) or _make_pool(queue)
    if type(pool) is not SharedPool:
        flags = cl.mem_flags.READ_WRITE | (0 if content is None else cl.mem_flags.COPY_HOST_PTR)
        size = 0 if content is not None else max(size, 1)
        _must_fit(queue, size)
        if huge_pages_suit(queue.device, bytes_ := size or content.nbytes):
            return with_room(queue.device, lambda: huge_buffer(queue.context, queue.device, bytes_, content))
        return with_room(queue.device, lambda: cl.Buffer(queue.context, flags, size, hostbuf=content))
    memory = _take(pool, queue, max(size, MIN_SEPARATE), pooled=False)
    if content is not None:
        cl.enqueue_copy(queue, memory, content, is_blocking=True)
    return memory


class _Unpooled:
    """The pool of an out-of-order queue: it cannot know when a block may be reused, so each allocation is new."""

    managed_bytes = active_bytes = held_blocks = active_blocks = 0

    def __init__(self, queue: cl.CommandQueue) -> None:
        self._context = queue.context

    def allocate(self, size: int) -> cl.Buffer:
        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)

    def free_held(self) -> None:
        """Does nothing, because no memory is kept."""


def _arena(context: cl.Context, device: cl.Device) -> Arena | None:
    with _lock:
        if context not in _arenas:
            cuda, arena = cuda_of(device), None
            if cuda is not None:
                try:
                    arena = Arena(context, cuda)
                    arena.block(SMALLEST)
                except CudaError:  # the driver or the container exports no memory, so OpenCL's own memory is used
                    arena = None
            _arenas[context] = arena
        return _arenas[context]


def shared_with_cuda(context: cl.Context, device: cl.Device, size: int = 1) -> bool:
    """Whether CUDA sees blocks of ``size`` bytes of a context's pools too; tried once, with a small block."""
    arena = _arena(context, device)
    return arena is not None and arena.shares(size)


def persistent(context: cl.Context, device: cl.Device, size: int) -> cl.MemoryObject:
    """New memory that CUDA sees too, for the life of the process; see ``shared_with_cuda``."""
    return _arena(context, device).block(1 << (size - 1).bit_length()).memory


HUGE_BYTES = 1 << 22
"""Buffers of a CPU device of at least this many bytes get huge pages, where the system provides them on request: on
pages of 4 KiB, weights that are read once a run cost a page walk each."""


def huge_pages_suit(device: cl.Device, size: int) -> bool:
    """Whether a buffer of ``size`` bytes is large, the device a CPU, and the system takes requests for huge pages."""
    return size >= HUGE_BYTES and bool(device.type & cl.device_type.CPU) and _madvise() is not None


def huge_buffer(context: cl.Context, device: cl.Device, size: int, content: Any = None) -> cl.Buffer:
    """A new buffer of ``size`` bytes, on huge pages if possible, with a copy of a contiguous array.

    Huge pages are requested before the first write, which allocates them. The buffer is filled through a new queue,
    because the caller's queue may be waiting.
    """
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
    queue = cl.CommandQueue(context, device)
    mapped, _ = cl.enqueue_map_buffer(queue, memory, cl.map_flags.WRITE_INVALIDATE_REGION, 0, (size,), np.uint8)
    start = mapped.ctypes.data
    begin, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise()(begin, end - begin, mmap.MADV_HUGEPAGE)
    if content is not None:
        mapped[:] = content.reshape(-1).view(np.uint8)
    mapped.base.release(queue)
    queue.finish()
    return memory


@functools.cache
def _madvise() -> Any:
    """The C library's ``madvise``; None if it or huge pages are missing."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        function = ctypes.CDLL(None).madvise
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        return function
    return None
