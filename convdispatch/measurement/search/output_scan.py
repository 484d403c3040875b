"""Checks a buffer on its device: counts unwritten or differing elements, reads some elements, computes a checksum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from ...device.programs.kernels import build, kernel_text
from ...device.runtime import device_info

PATTERN = 0x7FC1
"""A 16-bit pattern that, repeated, is a NaN in every dtype, with bits that no arithmetic produces."""
_TYPES = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


class OutputScan:
    """Checks buffers with elements of ``itemsize`` bytes on one queue. Each call waits for its result."""

    def __init__(self, queue: cl.CommandQueue, itemsize: int) -> None:
        info = device_info(queue.device)
        pattern = sum(PATTERN << 16 * index for index in range(itemsize // 2))
        macros = f"#define ELEMENT {_TYPES[itemsize]}\n#define MARK ((ELEMENT)0x{pattern:x}ul)\n"
        program = build(queue.context, macros + kernel_text(__package__, "output_scan.cl"))
        self._kernels = {name: cl.Kernel(program, name) for name in ("unwritten", "differ", "gather", "checksum")}
        self._queue, self._type = queue, np.dtype(f"u{itemsize}")
        self._marks = itemsize > 1
        self._items = info.compute_units * (64 if info.type == "cpu" else 1024)
        self._counts = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 8)

    def unwritten(self, memory: Any, count: int) -> int:
        """The number of elements, of ``count``, that hold PATTERN; 0 for one-byte elements."""
        if not self._marks:
            return 0
        return int(self._count("unwritten", count, memory)[0])

    def differ(self, one: Any, other: Any, count: int) -> int:
        """The number of elements, of ``count``, whose bits differ between two buffers."""
        return int(self._count("differ", count, one, other)[0])

    def checksum(self, memory: Any, count: int) -> tuple[int, int]:
        """Two 32-bit sums over ``count`` elements, which change if one element changes or two are exchanged."""
        first, second = self._count("checksum", count, memory)
        return int(first), int(second)

    def gather(self, memory: Any, at: np.ndarray) -> np.ndarray:
        """The elements at flat indices, as unsigned integers of the element's size."""
        flags, picked = cl.mem_flags, np.empty(len(at), self._type)
        places = cl.Buffer(
            self._queue.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(at, np.int64)
        )
        out = cl.Buffer(self._queue.context, flags.READ_WRITE, picked.nbytes)
        self._kernels["gather"](self._queue, (len(at),), None, memory, places, out)
        cl.enqueue_copy(self._queue, picked, out)
        return picked

    def _count(self, name: str, count: int, *memory: Any) -> np.ndarray:
        counts = np.zeros(2, np.uint32)
        cl.enqueue_copy(self._queue, self._counts, counts)
        self._kernels[name](self._queue, (self._items,), None, *memory, np.int64(count), self._counts)
        cl.enqueue_copy(self._queue, counts, self._counts)
        return counts
