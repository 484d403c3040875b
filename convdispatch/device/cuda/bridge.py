"""Orders CUDA work with an OpenCL queue's, without a wait of the host's.

OpenCL to CUDA: the queue writes a rising number into shared memory, and the stream waits until the number is there.
CUDA to OpenCL: behind the work, on a second stream, stands a call that completes an OpenCL user event; in an in-order
queue a barrier waits for it. On an out-of-order queue order is what the events say: work that waits for nothing but
this bridge's own events needs no crossing, because the stream is in order itself. There a call costs the stream 2
microseconds (an H200), so brief work that follows upon work whose call is still to come shares one call with its next.

Nothing here waits for the device once ``Bridge.prepare`` has been called for the context. A wait inside an enqueue can
be one for ever: for an event that the host would complete after it, even on a stream with no work, since CUDA sends
many streams through few channels.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_uint64, c_ulonglong, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...api.errors import ConvDispatchError
from ..cuda_driver import cuda_of, no_wait, trampoline
from ..memory.allocator import allocate, cuda_address, shared_with_cuda
from .stream_pool import StreamPool

if TYPE_CHECKING:
    import pyopencl as cl

_AT_LEAST = 0
_FAILED = -1
_REMEMBERED = 1024
_MOST = 64
"""The most bridges that are cached; beyond, those of idle queues are dropped, and made anew if their queue is used
again."""
_TOGETHER = 8
"""The most pieces of brief work whose events one host call completes."""
_LOOK, _SELDOM = 2e-5, 1e-3
"""Seconds between two checks whether a postponed host call is due: the first value, growing to the second while none
is."""
_bridges: dict[Any, Bridge] = {}
_pools: dict[Any, StreamPool] = {}
_lock = threading.Lock()


class Bridge:
    """A CUDA stream beside one OpenCL queue. Use: ``with bridge: enter(...); CUDA work on stream; event = leave()``."""

    def __init__(self, queue: cl.CommandQueue, pool: StreamPool) -> None:
        import pyopencl as cl

        self.queue, self.cuda = queue, pool.cuda
        self.in_order = not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._written: Any = None  # the event of the last write to the flag, on an out-of-order queue
        self._lock = threading.RLock()
        # Events that this bridge returned; holding them keeps their handles unique.
        self._own: OrderedDict[int, Any] = OrderedDict()
        self._follows = False  # whether the work in flight waits for no other events than this bridge's own
        self._called: Any = None  # the user event that the last host call on the stream completes
        # A postponed host call: its user event, its argument words, and the pieces of work that share it.
        self._put_off: tuple[Any, Any, int] | None = None
        # clSetUserEventStatus of the OpenCL loader that pyopencl is linked with
        complete = ctypes.CDLL(cl._cl.__file__).clSetUserEventStatus
        self._complete = ctypes.cast(complete, c_void_p).value
        self._streams, self._pool = pool.take(), pool
        self.stream = self._streams.stream

    @staticmethod
    def prepare(context: cl.Context, device: cl.Device) -> None:
        """Make what the bridges of a context's queues share, so that none of them waits for the device later."""
        pool = _pool_of(context, device)
        if pool is not None:
            pool.prepare()

    def __del__(self) -> None:
        if hasattr(self, "_pool") and not sys.is_finalizing():
            self._pool.give_back(self._streams, self._own)

    def __enter__(self) -> Bridge:
        self._lock.acquire()
        no_wait.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        no_wait.__exit__()
        self._lock.release()

    def idle(self) -> bool:
        """Whether no work is in flight, and no host call is postponed."""
        return self._put_off is None and self._streams.idle()

    def enter(self, wait_for: Sequence[cl.Event] | None = None) -> None:
        """The stream's next work begins after ``wait_for``, and on an in-order queue after all enqueued so far."""
        self._follows = not self.in_order and all(event.int_ptr in self._own for event in wait_for or ())
        if self._follows:
            return
        import pyopencl as cl

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
        self.cuda("cuStreamWaitValue32_v2", self.stream, streams.address, streams.count, _AT_LEAST)

    def leave(self, brief: bool = False) -> cl.Event:
        """An OpenCL event that completes with the stream's work so far; in an in-order queue all later work waits.

        After ``brief`` work, of some microseconds, it may complete with the work of the next few instead.
        """
        import pyopencl as cl

        finished, words, pieces = self._put_off or self._new_call()
        if brief and self._follows and pieces < _TOGETHER and self._call_to_come():
            self._put_off = (finished, words, pieces + 1)
            _watch(self)
        else:
            self._call(finished, words)
        stand = cl.enqueue_barrier if self.in_order else cl.enqueue_marker
        # A command on the queue shows code that frees memory that the memory is in use.
        event = stand(self.queue, wait_for=[finished])
        self._own[event.int_ptr] = (event, finished, words)
        if len(self._own) > _REMEMBERED:
            self._forget()
        return event

    def _new_call(self) -> tuple[Any, Any, int]:
        import pyopencl as cl

        finished = cl.UserEvent(self.queue.context)
        # The third word, 0, is the status CL_COMPLETE.
        return finished, (c_uint64 * 3)(self._complete, finished.int_ptr, 0), 0

    def _call(self, finished: cl.UserEvent, words: Any) -> None:
        """Complete ``finished`` when the stream's work so far is done."""
        streams = self._streams
        self.cuda("cuEventRecord", streams.done, self.stream)
        self.cuda("cuStreamWaitEvent", streams.aside, streams.done, 0)
        self.cuda("cuLaunchHostFunc", streams.aside, trampoline(), words)
        self._called, self._put_off = finished, None

    def _call_to_come(self) -> bool:
        import pyopencl as cl

        return self._called is not None and (
            self._called.command_execution_status != cl.command_execution_status.COMPLETE
        )

    @property
    def behind(self) -> bool:
        """Whether a postponed host call is still to be made."""
        return self._put_off is not None

    def catch_up(self, now: bool = False) -> None:
        """Make the postponed host call, once the preceding one has run, or ``now``."""
        with self:
            if self._put_off is None or (self._call_to_come() and not now):
                return
            finished, words, _ = self._put_off
            try:
                self._call(finished, words)
            except ConvDispatchError:  # the device is lost: the user event fails, so that nothing waits for it for ever
                self._put_off = None
                finished.set_status(_FAILED)

    def allocate(self, size: int) -> cl.MemoryObject:
        """Memory from the queue's pool, which CUDA can use too where ``shares`` is true."""
        return allocate(self.queue, size)

    def shares(self, size: int) -> bool:
        """Whether CUDA can use a block of ``size`` bytes too."""
        return shared_with_cuda(self.queue.context, self.queue.device, size)

    def copy(self, target: Any, source: Any, size: int, wait_for: Any) -> cl.Event:
        """Copy between OpenCL buffers, on the queue."""
        import pyopencl as cl

        return cl.enqueue_copy(self.queue, target, source, byte_count=size, wait_for=wait_for or None)

    def _forget(self) -> None:
        """Drop the oldest events, whose host calls have certainly been made, so that they are complete."""
        import pyopencl as cl

        while self._own:
            first = next(iter(self._own))
            if self._own[first][1].command_execution_status != cl.command_execution_status.COMPLETE:
                return
            del self._own[first]
            if len(self._own) <= _REMEMBERED // 2:
                return


_watched: set[Bridge] = set()
_to_watch = threading.Condition()
_watcher: threading.Thread | None = None


def _watch(bridge: Bridge) -> None:
    """Have a postponed host call made by a background thread, should no further work come."""
    global _watcher
    with _to_watch:
        _watched.add(bridge)
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_look_after, name="convdispatch bridges", daemon=True)
            _watcher.start()
        _to_watch.notify()


def _look_after() -> None:
    pause = _LOOK
    while True:
        with _to_watch:
            while not _watched:
                _to_watch.wait()
            bridges = list(_watched)
        pause = min(1.5 * pause, _SELDOM)
        for bridge in bridges:
            # Called without the lock _to_watch, which other threads take while they hold a bridge's own lock.
            bridge.catch_up()
            with _to_watch:
                if not bridge.behind:
                    _watched.discard(bridge)
                    pause = _LOOK
        time.sleep(pause)


@atexit.register
def _settle() -> None:
    """Make every postponed host call, because no thread does so once the interpreter ends, and drivers may wait for
    them."""
    with _to_watch:
        bridges = list(_watched)
    for bridge in bridges:
        bridge.catch_up(now=True)


def _pool_of(context: cl.Context, device: cl.Device) -> StreamPool | None:
    found = _pools.get(context)
    if found is None:
        cuda = cuda_of(device)
        if cuda is None or not shared_with_cuda(context, device):
            return None
        found = _pools.setdefault(context, StreamPool(context, device, cuda))
    return found


def bridge_of(queue: cl.CommandQueue) -> Bridge | None:
    """The bridge of a queue, made once; None where the device is not CUDA's or shares no memory with it."""
    found = _bridges.get(queue)
    if found is None:
        pool = _pool_of(queue.context, queue.device)
        if pool is None:
            return None
        with _lock:
            found = _bridges.get(queue)
            if found is None:
                if len(_bridges) >= _MOST:
                    _make_room()
                found = _bridges[queue] = Bridge(queue, pool)
    return found


class Operand(NamedTuple):
    """A buffer of ``size`` bytes for CUDA work, which reads it, writes it, or both; neither: it is scratch memory."""

    buffer: cl.MemoryObject
    size: int
    read: bool = False
    written: bool = False


def enqueue_across(
    across: Bridge,
    work: Callable[[Mapping[str, int]], Any],
    operands: Mapping[str, Operand],
    wait_for: Sequence[cl.Event] | None = None,
    brief: bool = False,
) -> cl.Event:
    """Enqueue ``work(addresses)`` on a bridge's stream, in the order of its queue. Never waits.

    A pool buffer stands in for each buffer that CUDA cannot see: it is copied to, from, or both. Scratch memory too
    large to share is CUDA's alone, had and given back in the stream's order.
    """
    with across:
        events, addresses, back, held = list(wait_for or ()), dict[str, int](), [], []
        with contextlib.ExitStack() as scratch:
            for name, operand in operands.items():
                address, used = cuda_address(operand.buffer), operand.read or operand.written
                if address is None and (used or across.shares(operand.size)):
                    held.append(across.allocate(operand.size))  # no other operand gets the block meanwhile
                    address = cuda_address(held[-1])
                    if operand.written:
                        back.append((operand.buffer, held[-1], operand.size))
                    if address is not None and operand.read:
                        events = [across.copy(held[-1], operand.buffer, operand.size, events)]
                if address is None and used:
                    raise ConvDispatchError(f"OpenCL cannot share {operand.size} bytes of {name} with CUDA here")
                addresses[name] = address or scratch.enter_context(_block(across, operand.size))
            across.enter(events)
            work(addresses)
        event = across.leave(brief)
        for buffer, stand_in, size in back:
            event = across.copy(buffer, stand_in, size, [event])
        return event


@contextlib.contextmanager
def _block(across: Bridge, size: int) -> Iterator[int]:
    block = c_ulonglong()
    across.cuda("cuMemAllocAsync", byref(block), size, across.stream)
    try:
        yield block.value
    finally:
        across.cuda("cuMemFreeAsync", block, across.stream)


def _make_room() -> None:
    """Let the oldest bridges without work go: a queue's Python object cannot tell that it has gone (no weak reference).

    Whoever holds one may still use it: its streams are not used again before.
    """
    for queue, bridge in list(_bridges.items()):
        if len(_bridges) < _MOST:
            return
        if bridge.idle():
            del _bridges[queue]
