"""A call's operands as memory that commands on one queue may use, and the events that those commands wait for.

``read`` and ``write`` convert an array on a device to memory. The events that the call must wait for (the array's own,
work on the array's other queue, copies made here) are in ``events``. ``finish`` takes the event of the call's last
command, copies results to the caller's arrays, and makes other queues wait for it. The host never waits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from pyopencl import SVM

from ...api.errors import InvalidArgument
from ...device import runtime
from ...device.commands.interface import Commands
from ...device.commands.queues import commands_of
from ...device.memory import allocator as memory
from ...device.places.stream import Stream
from ...selection.prepared import Constant


class Operands:
    """The operands of one call on ``queue``; for in-order and out-of-order queues."""

    __slots__ = ("_later_steps", "_other_queues", "context", "events", "queue")

    def __init__(self, queue: cl.CommandQueue, context: cl.Context) -> None:
        self.queue, self.context = queue, context
        self.events: list[Any] = []
        self._later_steps: list[Any] = []
        """Functions ``step(event) -> event``, called in order once the call's work is enqueued."""
        self._other_queues: list[Any] = []
        """Queues of operands other than the call's queue: their next work waits for the call."""

    def read(self, array: Any, strides: Sequence[int]) -> cl.MemoryObject:
        """Memory with the array's values, C-contiguous from its first byte on, once ``events`` are complete.

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
        if not is_contiguous(array.shape, array.strides, array.dtype.itemsize):
            raise InvalidArgument(
                f"a device array must be contiguous, got shape {tuple(array.shape)} with strides {array.strides} "
                "(bytes): copy it first"
            )
        return self._from_byte(array.base_data, array.offset, array.nbytes, before)

    def write(self, array: Any, strides: Sequence[int], keep: bool = False) -> cl.MemoryObject:
        """Memory for the values that the call writes to ``array``; with ``keep`` it starts with the present values."""
        before = self._before(array, "out")
        if array.strides != strides and not is_contiguous(array.shape, array.strides, array.dtype.itemsize):
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
        self._later_steps.append(
            lambda event: runtime.copy(queue, target, part, size, target_offset=offset, wait_for=[event])
        )
        return part

    def copied(self, memory: cl.MemoryObject, size: int) -> cl.MemoryObject:
        """A copy of memory that ``read`` returned, for commands that run after the original is overwritten."""
        part = runtime.allocate(self.queue, size)
        self.events.append(runtime.copy(self.queue, part, memory, size, wait_for=list(self.events)))
        return part

    def finish(self, event: Any) -> Any:
        """Enqueue the commands that follow the call's last command; returns the event of the last of all."""
        for step in self._later_steps:
            event = step(event)
        if self._other_queues:
            self.queue.flush()
            for queue in self._other_queues:
                runtime.hold(queue, event)
        return event

    def _before(self, array: Any, what: str) -> list[Any]:
        """The events before which the array's memory must not be used; they are added to ``events``."""
        if array.context is not self.context and array.context != self.context:
            raise InvalidArgument(f"all arrays must be on one context, but {what} is on another than the first")
        array_queue = array.queue
        before = list(getattr(array, "events", ()))
        if array_queue is not self.queue and array_queue is not None and array_queue != self.queue:
            if commands_of(self.queue).replayed:
                array_queue.finish()  # a recording that is replayed cannot wait for events of other queues
            else:
                if isinstance(self.queue, Stream):
                    runtime.hold(self.queue, array_queue)
                else:
                    before.append(runtime.pending(array_queue))
                self._other_queues.append(array_queue)
        self.events += before
        return before

    def _from_byte(self, memory: cl.MemoryObject, offset: int, size: int, before: list[Any]) -> cl.MemoryObject:
        """A buffer that begins ``offset`` bytes into ``memory``: a part of it if that is aligned, else a copy."""
        if offset == 0:
            return memory
        if offset % runtime.device_info(self.queue.device).buffer_alignment == 0:
            return runtime.sub_region(memory, offset, size)
        part = runtime.allocate(self.queue, size)
        self.events.append(runtime.copy(self.queue, part, memory, size, source_offset=offset, wait_for=before))
        return part


@functools.lru_cache(maxsize=4096)
def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array."""
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: Sequence[int], itemsize: int) -> bool:
    """Whether elements are contiguous in C order; strides of axes of size 1, and of no elements, are ignored."""
    expected = contiguous_strides(shape, itemsize)
    return (
        strides == expected
        or 0 in shape
        or all(size == 1 or stride == wanted for size, stride, wanted in zip(shape, strides, expected, strict=True))
    )


def native(array: np.ndarray) -> np.ndarray:
    """Returns the array C-contiguous, aligned to its elements and in native byte order; copied only if needed."""
    flags, dtype = array.flags, array.dtype
    if flags.c_contiguous and flags.aligned and dtype.isnative:
        return array
    return np.require(array, dtype.newbyteorder("="), "CA")


def address(array: Any) -> int:
    """The address of a NumPy array that kernels can read in place; 0 for other arrays and objects."""
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
    """Whether two elements of one array share a byte, as in a broadcast view; strides are in bytes."""
    axes = sorted((abs(step), size) for size, step in zip(shape, strides, strict=True) if size > 1)
    count = math.prod(shape)
    extent, separate = itemsize, True
    for step, size in axes:
        separate = separate and step >= extent
        extent += step * (size - 1)
    if separate or not count:
        return False
    if extent < count * itemsize:
        return True
    offsets = np.zeros(1, np.int64)
    for step, size in axes:
        offsets = np.add.outer(offsets, np.arange(size) * step).ravel()
    return bool((np.diff(np.sort(offsets)) < itemsize).any())


def check_written(array: np.ndarray) -> None:
    """Raises InvalidArgument for an array of NumPy's that cannot hold a result."""
    if not array.flags.writeable:
        raise InvalidArgument("out must be writeable, got a read-only array")
    if not array.flags.c_contiguous and elements_overlap(array.shape, array.strides, array.itemsize):
        raise InvalidArgument(
            f"out must have memory for each of its elements, but of shape {array.shape} with strides "
            f"{array.strides} (bytes) some share theirs, as in a broadcast view: pass an array of its own"
        )


def overlaps(out: Any, array: Any) -> bool:
    """Whether two arrays on a device share bytes of one buffer."""
    if type(array) is Constant:
        array = array.array
    if isinstance(array, np.ndarray):
        return False
    written, read = out.base_data, array.base_data
    if written is not read and getattr(written, "int_ptr", 1) != getattr(read, "int_ptr", 2):
        return False
    return out.offset < array.offset + array.nbytes and array.offset < out.offset + out.nbytes


def maker_of(kind: type, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype) -> Any:
    """Returns ``make(queue, like)``, which creates an uninitialised C-contiguous array of class ``kind``."""
    count = math.prod(shape)
    new = object.__new__
    if hasattr(kind, "empty"):  # `kind` is Tensor or a subclass such as Parameter; a result is a plain Tensor
        base, nbytes = next(each for each in kind.__mro__ if "empty" in vars(each)), count * dtype.itemsize
        last: tuple[Any, Any] = None, None

        def tensor(queue: Any, like: Any) -> Any:
            nonlocal last
            last_queue, allocate = last
            if last_queue is not queue:
                if isinstance(queue, Commands):
                    return base(runtime.allocate(queue, nbytes), shape, dtype, queue, strides)
                _, allocate = last = queue, memory.taker(queue, nbytes)
            return base(allocate(), shape, dtype, queue, strides)

        return tensor
    size = max(1, count * dtype.itemsize)
    state: tuple[Any, Any, Any, dict[str, Any]] = None, None, None, {}
    """The last queue and allocator, the function that allocates for them, and the other fields of a new array."""

    def make(queue: Any, like: Any) -> Any:
        nonlocal state
        allocator = like.allocator
        last_queue, last_allocator, allocate, fields = state
        if last_queue is queue and last_allocator is allocator:
            # Copying the first result's fields is faster: the array's constructor takes as long as the whole call.
            array = new(kind)
            fields = fields.copy()
            fields["base_data"], fields["events"] = allocate(), []
            array.__dict__ = fields
            return array
        # Without the caller's allocator, memory is from the queue's pool: the driver's costs a page fault per 4 KB.
        allocate = memory.taker(queue, size)
        if allocator:
            allocate = functools.partial(memory.with_room, queue.device, functools.partial(allocator, size))
        block = allocate()
        arguments = {"allocator": allocator, "data": block, "strides": strides}
        try:  # _fast=True skips the constructor's checks, which take six times as long
            array = kind(queue, shape, dtype, **arguments, _fast=True, _size=count, _context=like.context, _queue=queue)
        except TypeError:  # a pyopencl whose constructor has no _fast, or a subclass that does not take it
            return kind(queue, shape, dtype, **arguments)
        values = dict(vars(array))
        mutable = {name for name, value in values.items() if isinstance(value, list | dict | set)}
        if kind.__module__ == "pyopencl.array" and values.pop("base_data", None) is block and mutable == {"events"}:
            state = queue, allocator, allocate, values
        return array

    return make
