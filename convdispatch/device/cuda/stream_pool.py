"""The resources of bridges between OpenCL queues and CUDA: streams, events, and flags in memory that both share.

Flags are words of shared memory, allocated many at a time because that waits for the device. The streams of a
destroyed bridge serve the next one, once their work is done.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pyopencl as cl

from ..cuda_driver import NO_TIMING, NON_BLOCKING, Cuda
from ..memory.allocator import cuda_address, persistent

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
    """The Streams of a context: flags for new ones, and Streams of destroyed bridges, to be reused."""

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
