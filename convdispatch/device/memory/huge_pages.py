"""Huge pages for a CPU device's large buffers, where the operating system provides them only on request.

Weights and activations that are read once a run cost a page walk every 4 KiB; on pages of 2 MiB a fully connected layer
reads its weights faster, and so do products of packed panels. The request precedes the first write, which then
allocates huge pages; if the system has none, ordinary pages are used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from typing import Any

import numpy as np
import pyopencl as cl

MIN_BYTES = 1 << 22
"""Buffers of at least this many bytes get huge pages."""


def suit(device: cl.Device, size: int) -> bool:
    """Whether a buffer of ``size`` bytes is large, the device a CPU, and the system takes requests for huge pages."""
    return size >= MIN_BYTES and bool(device.type & cl.device_type.CPU) and _madvise() is not None


def buffer(context: cl.Context, device: cl.Device, size: int, content: Any = None) -> cl.Buffer:
    """A new buffer of ``size`` bytes, on huge pages if possible, with a copy of a contiguous array.

    It is filled through a new queue, because the caller's queue may be waiting.
    """
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
    queue = cl.CommandQueue(context, device)
    mapped, _ = cl.enqueue_map_buffer(queue, memory, cl.map_flags.WRITE_INVALIDATE_REGION, 0, (size,), np.uint8)
    start = mapped.ctypes.data
    begin, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise()(begin, end - begin, mmap.MADV_HUGEPAGE)
    if content is not None:
        mapped[:] = content.reshape(-1).view(np.uint8)
    mapped.base.release(queue)
    queue.finish()
    return memory


@functools.cache
def _madvise() -> Any:
    """The C library's ``madvise``; None if it or huge pages are missing."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        function = ctypes.CDLL(None).madvise
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        return function
    return None
