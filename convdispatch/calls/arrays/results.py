"""Creates arrays for results on a device, of the caller's class; what all results of a call share is computed once."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ...device import runtime
from ...device.commands.interface import Commands, thread
from ...device.memory import allocator as memory


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
            if last_queue is not queue or thread.capturing is not None:
                if isinstance(queue, Commands) or thread.capturing is not None:
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
