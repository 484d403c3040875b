"""An OpenCL queue as commands, and what any queue stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..memory import allocator as memory
from .interface import Commands, Kernel, Late, thread

if TYPE_CHECKING:
    import numpy as np
    import pyopencl as cl


class OpenCLQueue(Commands):
    """Commands for an OpenCL queue; in order or not, as the queue is. Memory is OpenCL's buffers."""

    __slots__ = ("queue",)

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue = queue

    @property
    def context(self) -> cl.Context:  # type: ignore[override]
        """The queue's context."""
        return self.queue.context

    @property
    def device(self) -> cl.Device:  # type: ignore[override]
        """The queue's device."""
        return self.queue.device

    @property
    def properties(self) -> int:
        """The queue's properties, which say whether it is in order."""
        return self.queue.properties

    def launch(self, kernel: Kernel, arguments: Sequence[Any], wait_for: Any = None) -> cl.Event:
        with kernel.lock:
            return kernel.bound(self.queue, kernel.global_size, kernel.local_size, *arguments, wait_for=wait_for)

    def bind(self, kernel: Kernel, arguments: Sequence[Any]) -> Callable[..., cl.Event]:
        """Binds a launch to a new pyopencl kernel that keeps its arguments, so that a replay is one enqueue."""
        import pyopencl as cl

        own, sizes, enqueue = kernel.plain(), (kernel.global_size, kernel.local_size), cl.enqueue_nd_range_kernel
        late = []
        for place, (given, dtype) in enumerate(zip(arguments, kernel.dtypes, strict=True)):
            if type(given) is Late:
                late.append((place, _itself if dtype is None else dtype.type, given))
            else:
                own.set_arg(place, given if dtype is None else dtype.type(given))

        def run(commands: OpenCLQueue, wait_for: Any = None, _held: Any = arguments) -> cl.Event:
            for place, number, given in late:
                own.set_arg(place, number(given.value))
            return enqueue(commands.queue, own, *sizes, wait_for=wait_for)

        return run  # the closure keeps the arguments' memory alive, which a cl.Kernel does not

    def copy(
        self,
        target: Any,
        source: Any,
        size: int,
        source_offset: int = 0,
        target_offset: int = 0,
        wait_for: Any = None,
    ) -> cl.Event:
        import pyopencl as cl

        offsets = {"src_offset": source_offset, "dst_offset": target_offset}
        return cl.enqueue_copy(self.queue, target, source, byte_count=size, wait_for=wait_for or None, **offsets)

    def fill(self, target: Any, number: Any, offset: int, size: int, wait_for: Any = None) -> cl.Event:
        import pyopencl as cl

        return cl.enqueue_fill_buffer(self.queue, target, number, offset, size, wait_for=wait_for or None)

    def allocate(self, size: int) -> cl.MemoryObject:
        """A block of the queue's pool; see ``memory.allocate``."""
        return memory.allocate(self.queue, size)

    def fresh(self, size: int) -> cl.MemoryObject:
        """See ``memory.fresh``."""
        return memory.fresh(self.queue, size)

    def flush(self) -> None:
        """Flush the queue."""
        self.queue.flush()

    def bring(self, array: np.ndarray) -> cl.MemoryObject:
        return memory.fresh(self.queue, array.nbytes, array)

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        import pyopencl as cl

        cl.enqueue_copy(self.queue, array, region, src_offset=offset, is_blocking=True)

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        import pyopencl as cl

        cl.enqueue_copy(self.queue, region, array, dst_offset=offset, is_blocking=True)

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Any:
        return work(self.queue, *operands, wait_for=wait_for)


def _itself(memory: Any) -> Any:
    """Returns memory unchanged, as a kernel's argument."""
    return memory


def commands_of(queue: Any) -> Commands:
    """The Commands for ``queue``: the queue itself, the recording that captures it, or an OpenCLQueue."""
    if isinstance(queue, Commands):
        return queue
    capturing = thread.capturing
    if capturing is not None and queue == capturing.queue:
        return capturing
    return OpenCLQueue(queue)
