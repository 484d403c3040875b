"""An OpenCL queue as Commands, and ``commands_of``, which returns the Commands for any queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..memory import allocator as memory
from .interface import Commands, Kernel


class OpenCLQueue(Commands):
    """Commands for an OpenCL queue, which may be in order or out of order. Memory is OpenCL buffers."""

    __slots__ = ("queue",)

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue = queue

    @property
    def properties(self) -> int:
        """The queue's properties, which say whether it is in order."""
        return self.queue.properties

    def launch(self, kernel: Kernel, arguments: Sequence[Any], wait_for: Any = None) -> cl.Event:
        with kernel.lock:
            return kernel.bound(self.queue, kernel.global_size, kernel.local_size, *arguments, wait_for=wait_for)

    def bind(self, kernel: Kernel, arguments: Sequence[Any]) -> Callable[..., cl.Event]:
        """Binds a launch to a new pyopencl kernel that stores its arguments, so that a replay is one enqueue."""
        launched, sizes, enqueue = kernel.plain(), (kernel.global_size, kernel.local_size), cl.enqueue_nd_range_kernel
        for index, (argument, dtype) in enumerate(zip(arguments, kernel.dtypes, strict=True)):
            launched.set_arg(index, argument if dtype is None else dtype.type(argument))

        def run(commands: OpenCLQueue, wait_for: Any = None, _held: Any = arguments) -> cl.Event:
            return enqueue(commands.queue, launched, *sizes, wait_for=wait_for)

        return run  # the closure keeps the arguments' memory alive, which a cl.Kernel does not

    def copy(
        self, target: Any, source: Any, size: int, offsets: tuple[int, int] = (0, 0), wait_for: Any = None
    ) -> cl.Event:
        where = {"src_offset": offsets[0], "dst_offset": offsets[1]}
        return cl.enqueue_copy(self.queue, target, source, byte_count=size, wait_for=wait_for or None, **where)

    def fill(self, target: Any, number: Any, offset: int, size: int, wait_for: Any = None) -> cl.Event:
        return cl.enqueue_fill_buffer(self.queue, target, number, offset, size, wait_for=wait_for or None)

    def allocate(self, size: int) -> cl.MemoryObject:
        """A block of the queue's pool; see ``memory.allocate``."""
        return memory.allocate(self.queue, size)

    def flush(self) -> None:
        """Flush the queue."""
        self.queue.flush()

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        cl.enqueue_copy(self.queue, array, region, src_offset=offset, is_blocking=True)

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        cl.enqueue_copy(self.queue, region, array, dst_offset=offset, is_blocking=True)

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Any:
        return work(self.queue, *operands, wait_for=wait_for)


def commands_of(queue: Any) -> Commands:
    """The Commands for ``queue``: the queue itself, or an OpenCLQueue."""
    return queue if isinstance(queue, Commands) else OpenCLQueue(queue)
