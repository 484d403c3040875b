"""The resources of bridges between OpenCL queues and CUDA: streams, events, and flags in memory that both share.

Flags are words of shared memory, made many at a time because making them waits for the device. Streams whose
bridge has gone serve the next one, once their work is done.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from ..cuda_driver import Cuda
from ..memory.allocator import cuda_address, persistent

if TYPE_CHECKING:
    import pyopencl as cl

_NON_BLOCKING, _NO_TIMING = 1, 2
_FLAGS, _APART = 1024, 64
"""The number of flags made at a time, and the bytes between two flags: a cache line, because each flag has its own
writer."""


class Streams:
    """The device's share of a bridge: two streams, an event and a flag, a word of memory that only rises."""

    def __init__(self, cuda: Cuda, memory: Any, offset: int) -> None:
        self.cuda, self.memory, self.offset, self.count = cuda, memory, offset, 0
        self.address = cuda_address(memory) + offset
        self.stream = cuda.make("cuStreamCreate", _NON_BLOCKING)
        self.aside = cuda.make("cuStreamCreate", _NON_BLOCKING)
        self.done = cuda.make("cuEventCreate", _NO_TIMING)
        self.held: Any = None  # keeps alive what host calls still to come will use, after the bridge has gone

    def idle(self) -> bool:
        """Whether all work of both streams is done, and so all that it waited for."""
        return self.cuda.idle(self.stream) and self.cuda.idle(self.aside)


class StreamPool:
    """The Streams of a context: flags for new ones, and Streams whose bridges have gone, to be reused."""

    def __init__(self, context: cl.Context, device: cl.Device, cuda: Cuda) -> None:
        self.cuda, self._context, self._device = cuda, context, device
        self._flags: list[tuple[Any, int]] = []
        self._returned: deque[Streams] = deque()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make more flags where few are left."""
        if len(self._flags) < _FLAGS // 4:
            self._grow()

    def _grow(self) -> None:
        """Make more flags, all zero. This waits for the device, so it is done before bridges need them."""
        memory = persistent(self._context, self._device, _FLAGS * _APART)
        stream = self.cuda.make("cuStreamCreate", _NON_BLOCKING)
        self.cuda("cuMemsetD32Async", cuda_address(memory), 0, _FLAGS * _APART // 4, stream)
        self.cuda("cuStreamSynchronize", stream)
        self.cuda("cuStreamDestroy_v2", stream)
        self._flags.extend((memory, number * _APART) for number in range(_FLAGS))

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
        """Take back the Streams of a bridge that has gone, whose work may still run; takes no lock, since garbage
        collection may call this anywhere."""
        streams.held = held
        self._returned.append(streams)
