"""Device memory: a pool for each queue, counted and limited per device, and shared by OpenCL and CUDA where possible.

Work on one in-order queue may use a block again as soon as the host has let go of it, work on another queue may not:
so each queue has a pool. On an NVIDIA device with CUDA's driver the blocks are memory that CUDA sees too (see
``cuda``; on some hosts not the largest, see ``imports``), so that its libraries work on the buffers that kernels use.
Elsewhere pyopencl's pool does the work.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...api.errors import ConvDispatchError, MemoryLimit
from ...api.policy import current_policy, forbid_when_frozen
from ..cache import artifact_store
from ..cuda_driver import CudaError, cuda_of, no_wait
from ..opencl.platforms import device_info
from ..size_limits import must_fit
from . import huge_pages
from .shared_pool import OWN, SMALLEST, Arena, SharedPool, cuda_address, out_of_order, shared_block

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = [
    "MemoryStatistics",
    "allocate",
    "cuda_address",
    "fresh",
    "full",
    "join",
    "make_room",
    "memory_statistics",
    "out_of_memory",
    "release_memory",
    "same_memory",
    "set_memory_limit",
    "shared_block",
    "shared_with_cuda",
    "persistent",
    "sub_region",
    "take",
    "taker",
    "with_room",
]

_LARGE = 1 << 27
"""Bytes from which a block is compared with what the device allocates at most: few are, for asking takes time."""
_lock = threading.RLock()
_pools: dict[Any, Any] = {}
"""The pool of each queue; the keys are references that this module made."""
_joined: dict[Any, Any] = {}
"""Pools that are no queue's, such as that of the host's memory; the keys have a device."""
_callers: dict[Any, Any] = {}
"""The caller's object for a queue, by the same keys: its reference count shows whether the queue is still in use."""
_arenas: dict[Any, Arena | None] = {}
"""The arena of each context; None where memory is OpenCL's alone."""
_limits: dict[Any, int] = {}


@dataclass(frozen=True)
class MemoryStatistics:
    """The memory that all pools of one device's queues hold, in bytes and blocks."""

    held_bytes: int
    """Bytes taken from the device, in use or kept for the next call."""
    active_bytes: int
    held_blocks: int
    """Blocks that are kept for the next call."""
    active_blocks: int
    limit: int | None
    shared_with_cuda: bool


def allocate(queue: cl.CommandQueue, size: int) -> cl.MemoryObject:
    """Device memory of at least ``size`` bytes for work on ``queue``, from the queue's pool.

    Let go, it may serve the queue's next work: what other queues do with it must be done by then, or the queue wait for
    it (a barrier).

    Raises MemoryLimit where the device's limit would be passed, Frozen where ``frozen()`` forbids new memory.
    """
    pool = _pools.get(queue)
    if pool is None:
        pool = _make_pool(queue)
    return take(pool, queue, size)


def taker(queue: cl.CommandQueue, size: int) -> Callable[[], cl.MemoryObject]:
    """``allocate(queue, size)``, for many times: the queue's pool is looked up once."""
    pool = _pools.get(queue) or _make_pool(queue)
    # A reference to the queue's owner keeps the queue's pool.
    size, give, owner = size or 1, pool.allocate, _callers.get(queue)

    def take(_held: Any = owner) -> cl.MemoryObject:
        if size > _LARGE or _limits or current_policy().frozen:
            return allocate(queue, size)
        try:
            return give(size)
        except Exception as error:
            if not (out_of_memory(error) or type(error) is MemoryError):
                raise
        return allocate(queue, size)

    return take


def take(pool: Any, place: Any, size: int, **options: Any) -> Any:
    """A block of a pool, within the limit of ``place``'s device and what the policy allows; options are the pool's."""
    if not _limits and not current_policy().frozen:
        if size <= _LARGE:
            try:
                return pool.allocate(size or 1, **options)
            except Exception as error:
                if not (out_of_memory(error) or type(error) is MemoryError):
                    raise
        return _take(pool, place, size or 1, **options)
    return _allocate_within(pool, place, size or 1, **options)


def join(place: Any, pool: Any) -> Any:
    """Count a pool that is no queue's among those of ``place.device``; the pool that is counted there."""
    with _lock:
        return _joined.setdefault(place, pool)


def _all() -> list[tuple[Any, Any]]:
    """Every pool, with its queue or other key, which has a ``device``."""
    return [*_pools.items(), *_joined.items()]


def _take(pool: Any, queue: cl.CommandQueue, size: int, **options: Any) -> cl.MemoryObject:
    """A block from a pool; where the device is full, unused blocks of all pools are given back first."""
    _must_fit(queue, size)
    return with_room(queue.device, lambda: pool.allocate(size, **options))


def _must_fit(queue: cl.CommandQueue, size: int) -> None:
    if size > _LARGE:
        must_fit(device_info(queue.device), 1, {"a block": (size,)})


def with_room(device: cl.Device, allocate: Callable[[], Any]) -> Any:
    """``allocate()``; where the device is full, once more after all pools gave back what waits for its next use.

    Raises MemoryLimit where that does not help, and at once what ``allocate`` raises where nothing can be given back.
    """
    try:
        return allocate()
    except Exception as error:
        if not (out_of_memory(error) or type(error) is MemoryError) or not make_room(device):
            raise
        try:
            return allocate()
        except Exception as again:
            if out_of_memory(again) or type(again) is MemoryError:
                raise full(device, again) from again
            raise


class NoDeviceMemory(ConvDispatchError):
    """A stream's caller has no memory left on the device."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of OpenCL, CUDA or a stream's caller says that memory is used up."""
    import pyopencl as cl

    text = str(error)
    if isinstance(error, CudaError | NoDeviceMemory):
        return isinstance(error, NoDeviceMemory) or "OUT_OF_MEMORY" in text
    # Pyopencl also raises MemoryError for a launch that needs more registers than the device has.
    return isinstance(error, cl.MemoryError) and not ("OUT_OF_RESOURCES" in text and "NDRange" in text)


def make_room(device: cl.Device) -> bool:
    """Give unused blocks back to the device; returns False in ``no_wait``, where a thread must not wait, and when
    frozen."""
    if no_wait.depth or current_policy().frozen:
        return False
    # If nothing could be given back, the allocation that follows fails and says so.
    with contextlib.suppress(Exception):
        release_memory(device)
    return True


def full(device: cl.Device, error: BaseException) -> MemoryLimit:
    """The MemoryLimit error for a device whose memory is used up."""
    found = memory_statistics(device)
    return MemoryLimit(
        f"{device.name.strip()} has no memory left ({error}); {found.active_bytes} bytes of this process' pools are in "
        "use: let arrays go, take smaller batches, or bound workspaces with policy(workspace_limit=)"
    )


def _make_pool(queue: cl.CommandQueue) -> Any:
    import pyopencl as cl
    from pyopencl.tools import ImmediateAllocator, MemoryPool

    with _lock:
        pool = _pools.get(queue)
        if pool is None:
            _forget_queues()
            own = cl.CommandQueue.from_int_ptr(queue.int_ptr, retain=True)
            arena = _arena(queue.context, queue.device)
            if arena is not None:
                pool = SharedPool(own, arena)
            elif out_of_order(queue):
                pool = _NoPool(own)
            else:
                pool = MemoryPool(ImmediateAllocator(own))
            _callers[own], _pools[own] = queue, pool
    return pool


def _forget_queues() -> None:
    """Let the pools of queues go that nobody else holds: no work can come that would use their memory again.

    Only pyopencl's pools: OpenCL keeps a buffer until the commands that use it are done, on any queue. What CUDA sees
    too has no such guard, so its pools stay (``release_memory`` empties them); and Intel's CPU runtime hangs when an
    out-of-order queue with work is released, so those stay too, which hold nothing.

    A queue's Python object takes no weak reference, and drivers hold queues themselves (PoCL by the last event): so
    Python's references are counted, when another queue's pool is made. A queue that comes back gets a new pool.
    """
    from pyopencl.tools import MemoryPool

    ((_, alone),) = _counted({None: object()})
    for own, references in _counted(_callers):
        pool = _pools[own]
        if references == alone and not pool.active_blocks and type(pool) is MemoryPool:
            del _pools[own], _callers[own]


def _counted(callers: dict[Any, Any]) -> list[tuple[Any, int]]:
    return [(own, sys.getrefcount(caller)) for own, caller in list(callers.items())]


def _allocate_within(pool: Any, queue: cl.CommandQueue, size: int, **options: Any) -> cl.MemoryObject:
    """Allocate, and give the memory back at once if the policy or the limit does not allow it."""
    # Loading from a plan pack allocates memory, which frozen() allows, because nothing is compiled.
    frozen, limit = current_policy().frozen and not artifact_store.in_force(queue.device), _limits.get(queue.device)
    if frozen and type(pool) is _NoPool:
        forbid_when_frozen(f"allocate {size} bytes: an out-of-order queue has no pool")
    held = pool.managed_bytes
    memory = _take(pool, queue, size, **options)
    if pool.managed_bytes <= held:
        return memory
    # An out-of-order queue may wait for a call that a bridge in use has postponed until after this allocation, so
    # waiting for that queue here would never end.
    stuck = pool if no_wait.depth and out_of_order(queue) else None
    if frozen:
        del memory
        if pool is not stuck:
            pool.free_held()
        forbid_when_frozen(f"allocate {size} bytes")
    if limit is None or memory_statistics(queue.device).held_bytes <= limit:
        return memory
    for other in [other for where, other in _all() if where.device == queue.device]:
        if other is not stuck:
            other.free_held()  # free_held() cannot free the new block, which is in use
    found = memory_statistics(queue.device)
    if found.held_bytes <= limit:
        return memory
    del memory
    if pool is not stuck:
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
    """The memory that a device's pools hold now."""
    pools = [pool for place, pool in _all() if place.device == device]
    return MemoryStatistics(
        held_bytes=sum(pool.managed_bytes for pool in pools),
        active_bytes=sum(pool.active_bytes for pool in pools),
        held_blocks=sum(pool.held_blocks for pool in pools),
        active_blocks=sum(pool.active_blocks for pool in pools),
        limit=_limits.get(device),
        shared_with_cuda=any(type(pool) is SharedPool for pool in pools),
    )


def release_memory(device: cl.Device | None = None) -> None:
    """Give the device (all devices) back every block that is not in use."""
    for place, pool in _all():
        if device is None or place.device == device:
            pool.free_held()


def sub_region(memory: cl.MemoryObject, offset: int, size: int) -> cl.MemoryObject:
    """``size`` bytes from ``offset`` on, which must be aligned as the device asks; holds the block while it lives."""
    import pyopencl as cl

    if not isinstance(memory, cl.MemoryObjectHolder):
        return memory.get_sub_region(offset, size)
    whole = memory.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT)
    # OpenCL has no sub-buffers of sub-buffers, so the offset counts from the whole buffer
    start = offset if whole is None else offset + memory.get_info(cl.mem_info.OFFSET)
    part = cl.Buffer.from_int_ptr((whole or memory).int_ptr).get_sub_region(start, size)
    part._held = memory  # keeps the block in use, or the pool would give it to the next caller
    return part


def same_memory(one: Any, other: Any) -> bool:
    """Whether two buffers are, or are parts of, one buffer; True where it is not known."""
    import pyopencl as cl

    if one is None or other is None:
        return False
    if not (isinstance(one, cl.MemoryObjectHolder) and isinstance(other, cl.MemoryObjectHolder)):
        return True

    def whole(memory: Any) -> Any:
        parent = memory.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT)
        return memory if parent is None else parent

    return whole(one).int_ptr == whole(other).int_ptr


def fresh(queue: cl.CommandQueue, size: int, content: Any = None) -> cl.MemoryObject:
    """A buffer of its own, never a part of another; like the pool's visible to CUDA, where that is possible.

    For what lives long, or is cut into parts. ``content`` is a contiguous array, copied before this returns.
    """
    import pyopencl as cl

    pool = _pools.get(queue) or _make_pool(queue)
    if type(pool) is not SharedPool:
        flags = cl.mem_flags.READ_WRITE | (0 if content is None else cl.mem_flags.COPY_HOST_PTR)
        size = 0 if content is not None else max(size, 1)
        _must_fit(queue, size)
        if huge_pages.suit(queue.device, bytes_ := size or content.nbytes):
            return with_room(queue.device, lambda: huge_pages.buffer(queue.context, queue.device, bytes_, content))
        return with_room(queue.device, lambda: cl.Buffer(queue.context, flags, size, hostbuf=content))
    memory = _take(pool, queue, max(size, OWN), pooled=False)
    if content is not None:
        cl.enqueue_copy(queue, memory, content, is_blocking=True)
    return memory


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
        """Does nothing, because no memory is kept."""


def _arena(context: cl.Context, device: cl.Device) -> Arena | None:
    with _lock:
        if context not in _arenas:
            cuda, found = cuda_of(device), None
            if cuda is not None:
                try:
                    found = Arena(context, cuda)
                    found.block(SMALLEST)
                except CudaError:  # a driver or a container that exports no memory: OpenCL's own memory is used
                    found = None
            _arenas[context] = found
        return _arenas[context]


def shared_with_cuda(context: cl.Context, device: cl.Device, size: int = 1) -> bool:
    """Whether blocks of ``size`` bytes of a context's pools are CUDA's too; tried once, with a small block."""
    arena = _arena(context, device)
    return arena is not None and arena.shares(size)


def persistent(context: cl.Context, device: cl.Device, size: int) -> cl.MemoryObject:
    """Memory that CUDA sees too and no command has used, for as long as the process lives; see ``shared_with_cuda``."""
    return _arena(context, device).block(1 << (size - 1).bit_length()).memory
