"""Orders CUDA work with an OpenCL queue's, without a wait of the host's.

OpenCL to CUDA: the queue writes a rising number into shared memory, and the stream waits until the number is there.
CUDA to OpenCL: after the work, on a second stream, a host call completes an OpenCL user event; in an in-order queue a
barrier waits for it. On an out-of-order queue only events order work: work that waits for none but this bridge's own
events needs no crossing, because the stream is in order itself.

Nothing here waits for the device once ``Bridge.prepare`` has been called for the context. A wait inside an enqueue may
never end: the host may complete an event only after the enqueue, and even a stream without work can wait for it, since
CUDA sends many streams through few channels.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_uint64, c_ulonglong, c_void_p
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from ...api.errors import ConvDispatchError
from ..cuda_driver import NO_TIMING, NON_BLOCKING, Cuda, cuda_of, no_wait, trampoline
from ..memory.allocator import allocate, cuda_address, persistent, shared_with_cuda

_WAIT_GEQ = 0  # CUDA's constant CU_STREAM_WAIT_VALUE_GEQ
_MAX_OWN_EVENTS = 1024  # the most events of one bridge that are remembered
_MAX_BRIDGES = 64
"""The most bridges that are cached; beyond, bridges of idle queues are dropped, and created anew if needed."""
_bridges: dict[Any, Bridge] = {}
_pools: dict[Any, StreamPool] = {}
_lock = threading.Lock()


class Bridge:
    """A CUDA stream beside one OpenCL queue. Use: ``with bridge: enter(...); CUDA work on stream; event = leave()``."""

    def __init__(self, queue: cl.CommandQueue, pool: StreamPool) -> None:
        self.queue, self.cuda = queue, pool.cuda
        self.in_order = not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._written: Any = None  # the event of the last write to the flag, on an out-of-order queue
        self._lock = threading.RLock()
        # The events that this bridge returned; keeping them alive keeps their handles unique.
        self._own_events: OrderedDict[int, Any] = OrderedDict()
        # clSetUserEventStatus of the OpenCL loader that pyopencl is linked with
        complete = ctypes.CDLL(cl._cl.__file__).clSetUserEventStatus
        self._complete = ctypes.cast(complete, c_void_p).value
        self._streams, self._pool = pool.take(), pool
        self.stream = self._streams.stream

    @staticmethod
    def prepare(context: cl.Context, device: cl.Device) -> None:
        """Allocate what the bridges of a context's queues share, so that none of them waits for the device later."""
        pool = _pool_of(context, device)
        if pool is not None:
            pool.prepare()

    def __del__(self) -> None:
        if hasattr(self, "_pool") and not sys.is_finalizing():
            self._pool.give_back(self._streams, self._own_events)

    def __enter__(self) -> Bridge:
        self._lock.acquire()
        no_wait.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        no_wait.__exit__()
        self._lock.release()

    def idle(self) -> bool:
        """Whether no work is in flight."""
        return self._streams.idle()

    def enter(self, wait_for: Sequence[cl.Event] | None = None) -> None:
        """Make the stream's next work wait for ``wait_for``, and on an in-order queue for all its commands so far."""
        if not self.in_order and all(event.int_ptr in self._own_events for event in wait_for or ()):
            return
        streams, waits = self._streams, list(wait_for or ())
        streams.count = (streams.count + 1) & 0xFFFFFFFF  # cuStreamWaitValue32 compares modulo 2**32
        if self._written is not None:
            # The flag's writes stay in order: a later, higher number would let earlier work begin too soon.
            waits.append(self._written)
        number = np.uint32(streams.count)
        written = cl.enqueue_fill_buffer(self.queue, streams.memory, number, streams.offset, 4, wait_for=waits or None)
        if not self.in_order:
            self._written = written
        self.queue.flush()
        self.cuda("cuStreamWaitValue32_v2", self.stream, streams.address, streams.count, _WAIT_GEQ)

    def leave(self) -> cl.Event:
        """An OpenCL event that completes with the stream's work so far; in an in-order queue all later work waits."""
        finished, streams = cl.UserEvent(self.queue.context), self._streams
        # The third word, 0, is the status CL_COMPLETE that clSetUserEventStatus gets.
        call_words = (c_uint64 * 3)(self._complete, finished.int_ptr, 0)
        self.cuda("cuEventRecord", streams.done, self.stream)
        self.cuda("cuStreamWaitEvent", streams.aside, streams.done, 0)
        self.cuda("cuLaunchHostFunc", streams.aside, trampoline(), call_words)
        enqueue_wait = cl.enqueue_barrier if self.in_order else cl.enqueue_marker
        # Code that frees memory checks the queue's commands, so this command shows that the memory is in use.
        event = enqueue_wait(self.queue, wait_for=[finished])
        self._own_events[event.int_ptr] = (event, finished, call_words)
        if len(self._own_events) > _MAX_OWN_EVENTS:
            self._forget()
        return event

    def allocate(self, size: int) -> cl.MemoryObject:
        """Memory from the queue's pool, which CUDA can use too where ``shares`` is true."""
        return allocate(self.queue, size)

    def shares(self, size: int) -> bool:
        """Whether CUDA can use a block of ``size`` bytes too."""
        return shared_with_cuda(self.queue.context, self.queue.device, size)

    def copy(self, target: Any, source: Any, size: int, wait_for: Any) -> cl.Event:
        """Copy between OpenCL buffers, on the queue."""
        return cl.enqueue_copy(self.queue, target, source, byte_count=size, wait_for=wait_for or None)

    def _forget(self) -> None:
        """Drop the oldest events that are complete, because their host calls have been made."""
        while self._own_events:
            oldest = next(iter(self._own_events))
            if self._own_events[oldest][1].command_execution_status != cl.command_execution_status.COMPLETE:
                return
            del self._own_events[oldest]
            if len(self._own_events) <= _MAX_OWN_EVENTS // 2:
                return


def _pool_of(context: cl.Context, device: cl.Device) -> StreamPool | None:
    pool = _pools.get(context)
    if pool is None:
        cuda = cuda_of(device)
        if cuda is None or not shared_with_cuda(context, device):
            return None
        pool = _pools.setdefault(context, StreamPool(context, device, cuda))
    return pool


def bridge_of(queue: cl.CommandQueue) -> Bridge | None:
    """The cached bridge of a queue; None where the device is not CUDA's or shares no memory with it."""
    bridge = _bridges.get(queue)
    if bridge is None:
        pool = _pool_of(queue.context, queue.device)
        if pool is None:
            return None
        with _lock:
            bridge = _bridges.get(queue)
            if bridge is None:
                if len(_bridges) >= _MAX_BRIDGES:
                    _make_room()
                bridge = _bridges[queue] = Bridge(queue, pool)
    return bridge


class Operand(NamedTuple):
    """A buffer of ``size`` bytes that CUDA work reads, writes, or both; if neither, it is scratch memory."""

    buffer: cl.MemoryObject
    size: int
    read: bool = False
    written: bool = False


def enqueue_across(
    across: Bridge,
    work: Callable[[Mapping[str, int]], Any],
    operands: Mapping[str, Operand],
    wait_for: Sequence[cl.Event] | None = None,
) -> cl.Event:
    """Enqueue ``work(addresses)`` on a bridge's stream, in the order of its queue. Never waits.

    A pool buffer stands in for each buffer that CUDA cannot see: values are copied to it, from it, or both. Scratch
    memory that is too large to share is allocated by CUDA alone, and freed in the stream's order.
    """
    with across:
        events, addresses, copies_back, stand_ins = list(wait_for or ()), dict[str, int](), [], []
        with contextlib.ExitStack() as scratch:
            for name, operand in operands.items():
                address, has_values = cuda_address(operand.buffer), operand.read or operand.written
                if address is None and (has_values or across.shares(operand.size)):
                    stand_ins.append(across.allocate(operand.size))  # the list keeps the block from other operands
                    address = cuda_address(stand_ins[-1])
                    if operand.written:
                        copies_back.append((operand.buffer, stand_ins[-1], operand.size))
                    if address is not None and operand.read:
                        events = [across.copy(stand_ins[-1], operand.buffer, operand.size, events)]
                if address is None and has_values:
                    raise ConvDispatchError(f"OpenCL cannot share {operand.size} bytes of {name} with CUDA here")
                addresses[name] = address or scratch.enter_context(_stream_memory(across, operand.size))
            across.enter(events)
            work(addresses)
        event = across.leave()
        for buffer, stand_in, size in copies_back:
            event = across.copy(buffer, stand_in, size, [event])
        return event


@contextlib.contextmanager
def _stream_memory(across: Bridge, size: int) -> Iterator[int]:
    block = c_ulonglong()
    across.cuda("cuMemAllocAsync", byref(block), size, across.stream)
    try:
        yield block.value
    finally:
        across.cuda("cuMemFreeAsync", block, across.stream)


def _make_room() -> None:
    """Drop the oldest idle bridges from the cache, because pyopencl's queues allow no weak references.

    A caller that still has such a bridge may use it: its streams are not reused before it is destroyed.
    """
    for queue, bridge in list(_bridges.items()):
        if len(_bridges) < _MAX_BRIDGES:
            return
        if bridge.idle():
            del _bridges[queue]


_FLAGS = 1024
"""The number of flags that are allocated together."""
_FLAG_STRIDE = 64
"""Bytes between two flags: a cache line, because each flag has its own writer."""


class Streams:
    """The resources of one bridge: two streams, an event, and a flag, which is a word of memory that only rises."""

    def __init__(self, cuda: Cuda, memory: Any, offset: int) -> None:
        self.cuda, self.memory, self.offset, self.count = cuda, memory, offset, 0
        self.address = cuda_address(memory) + offset
        self.stream = cuda.make("cuStreamCreate", NON_BLOCKING)
        self.aside = cuda.make("cuStreamCreate", NON_BLOCKING)
        self.done = cuda.make("cuEventCreate", NO_TIMING)
        self.held: Any = None  # the objects that pending host calls will use after the bridge was destroyed

    def idle(self) -> bool:
        """Whether all work of both streams is done."""
        return self.cuda.idle(self.stream) and self.cuda.idle(self.aside)


class StreamPool:
    """The Streams of a context: flags for new ones, and Streams of destroyed bridges, to be reused.

    Flags are allocated many at a time, because that waits for the device. The streams of a destroyed bridge serve the
    next one, once their work is done.
    """

    def __init__(self, context: cl.Context, device: cl.Device, cuda: Cuda) -> None:
        self.cuda, self._context, self._device = cuda, context, device
        self._flags: list[tuple[Any, int]] = []
        self._returned: deque[Streams] = deque()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Allocate more flags if few are left."""
        if len(self._flags) < _FLAGS // 4:
            self._grow()

    def _grow(self) -> None:
        """Allocate more flags, all zero. This waits for the device, so it is done before bridges need them."""
        memory = persistent(self._context, self._device, _FLAGS * _FLAG_STRIDE)
        stream = self.cuda.make("cuStreamCreate", NON_BLOCKING)
        self.cuda("cuMemsetD32Async", cuda_address(memory), 0, _FLAGS * _FLAG_STRIDE // 4, stream)
        self.cuda("cuStreamSynchronize", stream)
        self.cuda("cuStreamDestroy_v2", stream)
        self._flags.extend((memory, number * _FLAG_STRIDE) for number in range(_FLAGS))

    def take(self) -> Streams:
        """Returns Streams that have no work in flight."""
        with self._lock:
            for _ in range(len(self._returned)):
                streams = self._returned.popleft()
                if streams.idle():
                    streams.held = None
                    return streams
                self._returned.append(streams)
            if not self._flags:
                self._grow()
            return Streams(self.cuda, *self._flags.pop())

    def give_back(self, streams: Streams, held: Any) -> None:
        """Take back the Streams of a destroyed bridge, whose work may still run; takes no lock, because the garbage
        collector may call this anywhere."""
        streams.held = held
        self._returned.append(streams)
