"""Orders CUDA work with an OpenCL queue's, without a wait of the host's.

OpenCL to CUDA: the queue writes a rising number into shared memory, and the stream waits until the number is there.
CUDA to OpenCL: behind the work, on a second stream, stands a call that completes an OpenCL user event; in an in-order
queue a barrier waits for it. On an out-of-order queue order is what the events say: work that waits for nothing but
this bridge's own events needs no crossing, because the stream is in order itself.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Sequence
from ctypes import c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from .cuda import Cuda, cuda_of, trampoline
from .memory import allocate, cuda_address, untouched

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Bridge", "bridge_of"]

_NON_BLOCKING, _NO_TIMING, _AT_LEAST = 1, 2, 0
_REMEMBERED = 1024
_bridges: dict[Any, Bridge] = {}
_lock = threading.Lock()


class Bridge:
    """A CUDA stream beside one OpenCL queue. Use: ``with bridge: enter(...); CUDA work on stream; event = leave()``."""

    def __init__(self, queue: cl.CommandQueue, cuda: Cuda) -> None:
        import pyopencl as cl

        self.queue, self.cuda = queue, cuda
        self.in_order = not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self.stream = cuda.make("cuStreamCreate", _NON_BLOCKING)
        self._aside = cuda.make("cuStreamCreate", _NON_BLOCKING)
        self._done = cuda.make("cuEventCreate", _NO_TIMING)
        self._flag = untouched(queue, 4)
        self._address = cuda_address(self._flag)
        self._count = 0
        self._lock = threading.RLock()
        self._own: OrderedDict[int, Any] = OrderedDict()  # events this bridge gave out; holding them keeps ids apart
        complete = ctypes.CDLL(cl._cl.__file__).clSetUserEventStatus  # of the loader that pyopencl is linked with
        self._complete = ctypes.cast(complete, c_void_p).value
        # On the new stream, not on the queue, which may stand behind an event that is long in coming.
        cuda("cuMemsetD32Async", self._address, 0, 1, self.stream)
        cuda("cuStreamSynchronize", self.stream)

    def __enter__(self) -> Bridge:
        self._lock.acquire()
        return self

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def enter(self, wait_for: Sequence[cl.Event] | None = None) -> None:
        """The stream's next work begins after ``wait_for``, and on an in-order queue after all enqueued so far."""
        if not self.in_order and all(event.int_ptr in self._own for event in wait_for or ()):
            return
        import pyopencl as cl

        self._count = self._count % 0x7FFFFFFF + 1
        waits = list(wait_for) if wait_for else None
        cl.enqueue_fill_buffer(self.queue, self._flag, np.uint32(self._count), 0, 4, wait_for=waits)
        self.queue.flush()
        self.cuda("cuStreamWaitValue32_v2", self.stream, self._address, self._count, _AT_LEAST)

    def leave(self) -> cl.Event:
        """An OpenCL event that completes with the stream's work so far; in an in-order queue all later work waits."""
        import pyopencl as cl

        finished = cl.UserEvent(self.queue.context)
        words = (c_uint64 * 3)(self._complete, finished.int_ptr, 0)  # status 0 is CL_COMPLETE
        self.cuda("cuEventRecord", self._done, self.stream)
        self.cuda("cuStreamWaitEvent", self._aside, self._done, 0)
        self.cuda("cuLaunchHostFunc", self._aside, trampoline(), words)
        stand = cl.enqueue_barrier if self.in_order else cl.enqueue_marker
        event = stand(self.queue, wait_for=[finished])  # a command: what lets go of memory sees that it is in use
        self._own[event.int_ptr] = (event, finished, words)
        if len(self._own) > _REMEMBERED:
            self._forget()
        return event

    def allocate(self, size: int) -> cl.MemoryObject:
        """Memory from the queue's pool, which CUDA sees."""
        return allocate(self.queue, size)

    def copy(self, target: Any, source: Any, size: int, wait_for: Any) -> cl.Event:
        """Copy between OpenCL buffers, on the queue."""
        import pyopencl as cl

        return cl.enqueue_copy(self.queue, target, source, byte_count=size, wait_for=wait_for or None)

    def _forget(self) -> None:
        """Let go of the oldest events, those whose call has surely been made: they are complete."""
        import pyopencl as cl

        while self._own:
            first = next(iter(self._own))
            if self._own[first][1].command_execution_status != cl.command_execution_status.COMPLETE:
                return
            del self._own[first]
            if len(self._own) <= _REMEMBERED // 2:
                return


def bridge_of(queue: cl.CommandQueue) -> Bridge | None:
    """The bridge of a queue, made once; None where the device is not CUDA's."""
    found = _bridges.get(queue)
    if found is None:
        cuda = cuda_of(queue.device)
        if cuda is None:
            return None
        with _lock:
            if queue not in _bridges:
                _bridges[queue] = Bridge(queue, cuda)
            found = _bridges[queue]
    return found
