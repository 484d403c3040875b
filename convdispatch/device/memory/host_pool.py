"""A pool of host memory: page-aligned blocks are reused, so that only their first use costs page faults.

NumPy allocates a large array from the system and frees it there, which costs a page fault for every 4 KB. A block here
is an anonymous mapping; a lease on it is a ctypes array, whose destructor (with the last array over it) returns the
block. Unused blocks beyond ``KEEP`` bytes, or unused for long, return to the system, and all unused blocks when memory
is released.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import threading
from collections import OrderedDict
from typing import Any

KEEP = 1 << 29
"""The most bytes of unused blocks; those that have been unused longest are freed first."""
KEEP_IDLE = 1 << 23
"""Up to this many bytes of unused blocks stay, however long they are unused."""
IDLE_TURNS = 32
"""Beyond KEEP_IDLE a block is freed once this many others were returned after it: within a net, blocks of most sizes
are reused after a few layers, and where input sizes vary, blocks of earlier sizes fit few later ones."""
_STEPS = 8
"""The number of block sizes between two powers of two: at most an eighth of a block is unused."""


def _capacity(size: int) -> int:
    step = max(mmap.PAGESIZE, (1 << (size - 1).bit_length()) // (2 * _STEPS))
    return -(-size // step) * step


class HostPool:
    """The pool of one device's host memory, with the counters that ``allocator`` reads; safe from several threads."""

    def __init__(self) -> None:
        # The lock is reentrant, because a garbage collection while it is locked may return a lease's block.
        self._lock = threading.RLock()
        self._free: OrderedDict[int, mmap.mmap] = OrderedDict()
        """Unused blocks, in the order of their return."""
        self._by_size: dict[int, list[int]] = {}
        self._turn = 0
        self.free_bytes = self.active_bytes = self.active_blocks = 0

    @property
    def managed_bytes(self) -> int:
        """Bytes of all blocks, in use or not."""
        return self.free_bytes + self.active_bytes

    @property
    def held_blocks(self) -> int:
        """The number of unused blocks."""
        return len(self._free)

    def has(self, size: int) -> bool:
        """Whether the pool has an unused block for ``size`` bytes."""
        return bool(self._by_size.get(_capacity(max(size, 1))))

    def allocate(self, size: int) -> Any:
        """A lease of ``size`` bytes of undefined values: a ctypes array that starts at a page."""
        size = max(size, 1)
        capacity = _capacity(size)
        with self._lock:
            unused = self._by_size.get(capacity)
            block = None
            if unused:
                block = self._free.pop(unused.pop())
                self.free_bytes -= capacity
            self.active_bytes += capacity
            self.active_blocks += 1
        if block is None:
            try:
                block = mmap.mmap(-1, capacity)
            except BaseException:
                with self._lock:
                    self.active_bytes -= capacity
                    self.active_blocks -= 1
                raise
        lease = _lease(size).from_buffer(block)
        lease.pool, lease.block = self, block
        return lease

    def take_back(self, block: mmap.mmap) -> None:
        """Take back a block that is no longer used."""
        capacity = len(block)
        with self._lock:
            self.active_bytes -= capacity
            self.active_blocks -= 1
            self.free_bytes += capacity
            self._turn += 1
            self._free[self._turn] = block
            self._by_size.setdefault(capacity, []).append(self._turn)
            while self.free_bytes > KEEP or (
                self.free_bytes > KEEP_IDLE and next(iter(self._free)) <= self._turn - IDLE_TURNS
            ):
                self._drop_oldest()

    def free_held(self) -> None:
        """Return all unused blocks to the system."""
        with self._lock:
            while self._free:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        turn, block = self._free.popitem(last=False)
        self._by_size[len(block)].remove(turn)
        self.free_bytes -= len(block)


class _Lease:
    """The base of the ctypes array types of all sizes; the array keeps its mapping alive."""

    pool: HostPool
    block: mmap.mmap

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.pool.take_back(self.block)


@functools.lru_cache(maxsize=256)  # bounded, because each ctypes type takes 6 KB
def _lease(size: int) -> type:
    return type("Lease", (_Lease, ctypes.c_ubyte * size), {})
