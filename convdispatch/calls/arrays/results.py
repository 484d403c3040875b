"""New arrays for results on a device, of the caller's class; what is the same for all of a call is worked out once."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ...device import runtime
from ...device.commands.interface import Commands, thread
from ...device.memory import allocator as memory


def maker_of(kind: type, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype) -> Any:
    """``make(queue, like)``: an uninitialised C-contiguous array of class ``kind``; sizes are worked out once."""
    count = math.prod(shape)
    new = object.__new__
    if hasattr(kind, "empty"):  # `kind` is Tensor or a subclass such as Parameter; a result is a plain Tensor
        base, nbytes = next(each for each in kind.__mro__ if "empty" in vars(each)), count * dtype.itemsize
        last: tuple[Any, Any] = None, None

        def tensor(queue: Any, like: Any) -> Any:
            nonlocal last
            known, give = last
            if known is not queue or thread.capturing is not None:
                if isinstance(queue, Commands) or thread.capturing is not None:
                    return base(runtime.allocate(queue, nbytes), shape, dtype, queue, strides)
                _, give = last = queue, memory.taker(queue, nbytes)
            return base(give(), shape, dtype, queue, strides)

        return tensor
    size = max(1, count * dtype.itemsize)
    state: tuple[Any, Any, Any, dict[str, Any]] = None, None, None, {}
    """The last queue and allocator, the function that allocates for them, and the other fields of a new array."""

    def make(queue: Any, like: Any) -> Any:
        nonlocal state
        allocator = like.allocator
        known, same, give, fields = state
        if known is queue and same is allocator:
            # Copying the first result's fields is quicker: the array's constructor takes as long as the whole call.
            made = new(kind)
            fields = fields.copy()
            fields["base_data"], fields["events"] = give(), []
            made.__dict__ = fields
            return made
        # Without an allocator of the caller's, the queue's pool gives memory: the driver's costs a page fault per 4 KB.
        give = memory.taker(queue, size)
        if allocator:
            give = functools.partial(memory.with_room, queue.device, functools.partial(allocator, size))
        block = give()
        given = {"allocator": allocator, "data": block, "strides": strides}
        try:  # _fast=True skips the constructor's checks, which take six times as long
            made = kind(queue, shape, dtype, **given, _fast=True, _size=count, _context=like.context, _queue=queue)
        except TypeError:  # a pyopencl whose constructor has no _fast, or a subclass that does not take it
            return kind(queue, shape, dtype, **given)
        found = dict(vars(made))
        mutable = {name for name, value in found.items() if isinstance(value, list | dict | set)}
        if kind.__module__ == "pyopencl.array" and found.pop("base_data", None) is block and mutable == {"events"}:
            state = queue, allocator, give, found
        return made

    return make
