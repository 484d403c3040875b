"""A call's operands as memory that commands on one queue may use, and the events that those commands wait for.

``read`` and ``write`` turn an array on a device into memory; what must happen first (events that the array carries,
work on its own queue where that is another, copies made here) is in ``events``. ``finish`` takes the event of the
call's last command, copies results to where the caller looks, and lets other queues go on. Nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pyopencl import SVM

from ...api.errors import InvalidArgument
from ...device import runtime
from ...device.commands.host_memory import HostMemory
from ...device.commands.queues import commands_of
from ...device.places.stream import Stream
from ...selection.prepared import Constant

if TYPE_CHECKING:
    import pyopencl as cl


class Operands:
    """The operands of one call on ``queue``; for in-order and out-of-order queues."""

    __slots__ = ("_after", "_others", "context", "events", "queue")

    def __init__(self, queue: cl.CommandQueue, context: cl.Context) -> None:
        self.queue, self.context = queue, context
        self.events: list[Any] = []
        self._after: list[Any] = []
        """Functions ``step(event) -> event``, called in order once the call's work is enqueued."""
        self._others: list[Any] = []
        """Queues of operands other than the call's queue: their next work waits for the call."""

    def read(self, array: Any, strides: Sequence[int]) -> cl.MemoryObject:
        """Memory that holds the array's values, C-contiguous from its first byte on, once ``events`` are complete.

        ``strides`` are those of a contiguous array of its shape. Raises InvalidArgument for a device array of another
        context or with gaps.
        """
        if type(array) is Constant:
            if isinstance(array.array, np.ndarray):
                return array.on_device(self.queue)
            array = array.array
        before = self._before(array, "an operand")
        if array.offset == 0 and array.strides == strides:
            return array.base_data
        if not _contiguous(array):
            raise InvalidArgument(
                f"a device array must be contiguous, got shape {tuple(array.shape)} with strides {array.strides} "
                "(bytes): copy it first"
            )
        return self._from_byte(array.base_data, array.offset, array.nbytes, before)

    def write(self, array: Any, strides: Sequence[int], keep: bool = False) -> cl.MemoryObject:
        """Memory for what the call writes to ``array``; ``keep`` brings the present values along."""
        before = self._before(array, "out")
        if array.strides != strides and not _contiguous(array):
            raise InvalidArgument(
                f"out must be contiguous, got strides {array.strides} (bytes) for shape {array.shape}"
            )
        offset, size = array.offset, array.nbytes
        if offset % runtime.device_info(self.queue.device).buffer_alignment == 0:
            return array.base_data if offset == 0 else runtime.sub_region(array.base_data, offset, size)
        if keep:
            part = self._from_byte(array.base_data, offset, size, before)
        else:
            part = runtime.allocate(self.queue, size)
        target, queue = array.base_data, self.queue
        self._after.append(
            lambda event: runtime.copy(queue, target, part, size, target_offset=offset, wait_for=[event])
        )
        return part

    def copied(self, memory: cl.MemoryObject, size: int) -> cl.MemoryObject:
        """A copy of memory that ``read`` returned, for commands that run after the original is overwritten."""
        part = runtime.allocate(self.queue, size)
        self.events.append(runtime.copy(self.queue, part, memory, size, wait_for=list(self.events)))
        return part

    def finish(self, event: Any) -> Any:
        """Enqueue what must follow the call's last command; the event of the last command of all."""
        for step in self._after:
            event = step(event)
        if self._others:
            self.queue.flush()
            for other in self._others:
                runtime.hold(other, event)
        return event

    def _before(self, array: Any, what: str) -> list[Any]:
        """The events before which the array's memory must not be touched; they are among ``events`` then."""
        if array.context is not self.context and array.context != self.context:
            raise InvalidArgument(f"all arrays must be on one context, but {what} is on another than the first")
        own = array.queue
        before = list(getattr(array, "events", ()))
        if own is not self.queue and own is not None and own != self.queue:
            if commands_of(self.queue).replayed:
                own.finish()  # a recording that is replayed cannot wait for events of other queues
            else:
                if isinstance(self.queue, Stream):
                    runtime.hold(self.queue, own)
                else:
                    before.append(runtime.pending(own))
                self._others.append(own)
        self.events += before
        return before

    def _from_byte(self, memory: cl.MemoryObject, offset: int, size: int, before: list[Any]) -> cl.MemoryObject:
        """A buffer that begins ``offset`` bytes into ``memory``: a part of it where aligned, else a copy."""
        if offset == 0:
            return memory
        if offset % runtime.device_info(self.queue.device).buffer_alignment == 0:
            return runtime.sub_region(memory, offset, size)
        part = runtime.allocate(self.queue, size)
        self.events.append(runtime.copy(self.queue, part, memory, size, source_offset=offset, wait_for=before))
        return part


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array."""
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def native(array: np.ndarray) -> np.ndarray:
    """Returns the array C-contiguous, aligned to its elements and in native byte order; copied only if needed."""
    flags, dtype = array.flags, array.dtype
    if flags.c_contiguous and flags.aligned and dtype.isnative:
        return array
    return np.require(array, dtype.newbyteorder("="), "CA")


def host_memory(array: np.ndarray) -> HostMemory:
    """An array's memory as a kernel argument."""
    try:
        return HostMemory(array)
    except (ValueError, TypeError):  # the array is read-only, or the buffer protocol has no letter for its dtype
        return HostMemory.at(array.__array_interface__["data"][0], array.nbytes, array)


def address(array: Any) -> int:
    """The address of a NumPy array that kernels can read in place; 0 for one that they cannot, and for other
    objects."""
    try:
        flags = array.flags
        if flags.carray:
            return SVM(array).svm_ptr
        if not (flags.c_contiguous and flags.aligned):
            return 0
    except AttributeError:
        return 0
    except (ValueError, TypeError):  # the buffer protocol has no letter for the array's dtype
        pass
    return array.__array_interface__["data"][0]


def elements_overlap(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether two elements of one array share a byte, as those of a broadcast view do; strides are in bytes."""
    axes = sorted((abs(step), size) for size, step in zip(shape, strides, strict=True) if size > 1)
    count = math.prod(shape)
    reach, apart = itemsize, True
    for step, size in axes:
        apart = apart and step >= reach
        reach += step * (size - 1)
    if apart or not count:
        return False
    if reach < count * itemsize:
        return True
    places = np.zeros(1, np.int64)
    for step, size in axes:
        places = np.add.outer(places, np.arange(size) * step).ravel()
    return bool((np.diff(np.sort(places)) < itemsize).any())


def check_written(array: np.ndarray, name: str = "out") -> None:
    """Raises InvalidArgument for an array of NumPy's that cannot hold a result."""
    if not array.flags.writeable:
        raise InvalidArgument(f"{name} must be writeable, got a read-only array")
    if not array.flags.c_contiguous and elements_overlap(array.shape, array.strides, array.itemsize):
        raise InvalidArgument(
            f"{name} must have memory for each of its elements, but of shape {array.shape} with strides "
            f"{array.strides} (bytes) some share theirs, as in a broadcast view: pass an array of its own"
        )


def overlaps(out: Any, array: Any) -> bool:
    """Whether two arrays on a device share bytes of one buffer."""
    if type(array) is Constant:
        array = array.array
    if isinstance(array, np.ndarray):
        return False
    one, other = out.base_data, array.base_data
    if one is not other and getattr(one, "int_ptr", 1) != getattr(other, "int_ptr", 2):
        return False
    return out.offset < array.offset + array.nbytes and array.offset < out.offset + out.nbytes


def _contiguous(array: Any) -> bool:
    """Whether an array's elements are contiguous in C order; strides of axes of size 1 are ignored."""
    expected = contiguous_strides(array.shape, array.dtype.itemsize)
    return array.size == 0 or all(
        size == 1 or stride == wanted for size, stride, wanted in zip(array.shape, array.strides, expected, strict=True)
    )
