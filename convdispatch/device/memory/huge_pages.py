"""Large pages for a CPU device's large buffers, where the operating system gives them only to those who ask.

Weights and activations that are read once a run cost a page walk every 4 KiB; on pages of 2 MiB a fully connected layer
reads its weights faster, and so do products of packed panels. It is asked before anything is written, so that the first
touch makes large pages; where the system has none to give, nothing changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl as cl

LEAST = 1 << 22
"""Buffers of so many bytes or more are put on large pages."""


def suit(device: cl.Device, size: int) -> bool:
    """Whether a buffer of ``size`` bytes is large, a CPU's, and the system can be asked."""
    import pyopencl as cl

    return size >= LEAST and bool(device.type & cl.device_type.CPU) and _madvise() is not None


def buffer(context: cl.Context, device: cl.Device, size: int, content: Any = None) -> cl.Buffer:
    """A new buffer of ``size`` bytes on large pages where there are some, holding a contiguous array's values.

    It is filled through a queue of its own: the caller's may be waiting for something.
    """
    import numpy as np
    import pyopencl as cl

    made = cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
    queue = cl.CommandQueue(context, device)
    mapped, _ = cl.enqueue_map_buffer(queue, made, cl.map_flags.WRITE_INVALIDATE_REGION, 0, (size,), np.uint8)
    start = mapped.ctypes.data
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise()(first, end - first, mmap.MADV_HUGEPAGE)
    if content is not None:
        mapped[:] = content.reshape(-1).view(np.uint8)
    mapped.base.release(queue)
    queue.finish()
    return made


@functools.cache
def _madvise() -> Any:
    """The C library's ``madvise``; None where there is none, or no large pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        found = ctypes.CDLL(None).madvise
        found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        return found
    return None
