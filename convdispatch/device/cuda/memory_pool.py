"""CUDA's own pool of memory in the order of streams, one a device: what ``memory`` counts, limits and gives back."""

from __future__ import annotations

import ctypes
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_ubyte, c_ulonglong, c_ushort, c_void_p
from typing import Any

from ..cuda_driver import Cuda, CudaError

KEEP = 1 << 29
"""Bytes that stay with the pool, unused, when the device is synchronised."""
_PINNED, _DEVICE, _NO_EXPORT = 1, 1, 0
_THRESHOLD, _RESERVED, _USED = 4, 5, 7
"""CUDA's numbers of memory pool attributes: release threshold, reserved bytes, used bytes."""


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("place", c_int * 2),
        ("windows", c_void_p),
        ("most", c_size_t),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 54),
    ]


class CudaPool:
    """A pool of blocks allocated by ``cuMemAllocFromPoolAsync``; safe from several threads."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._made, self._lock = cuda, None, threading.Lock()
        self.active_blocks = self.held_blocks = 0

    def _pool(self) -> Any:
        if self._made is None:
            with self._lock:
                if self._made is None:
                    made = c_void_p()
                    place = (c_int * 2)(_DEVICE, self._cuda.number)
                    given = _Properties(type=_PINNED, handles=_NO_EXPORT, place=place)
                    self._cuda("cuMemPoolCreate", byref(made), byref(given))
                    self._cuda("cuMemPoolSetAttribute", made, _THRESHOLD, byref(c_ulonglong(KEEP)))
                    self._made = made
        return self._made

    def allocate(self, size: int, stream: int) -> Lease:
        """A lease of ``size`` bytes for work on a stream of the current context. Raises CudaError."""
        block, pool = c_ulonglong(), self._pool()
        status = self._cuda.driver.cuMemAllocFromPoolAsync(byref(block), size, pool, stream)
        if status:
            raise CudaError(self._cuda.error("cuMemAllocFromPoolAsync", status))
        self.active_blocks += 1
        return Lease(self, block.value, stream)

    def give_back(self, address: int, stream: int) -> None:
        """Give a block back: no later work than the stream's work so far uses it."""
        self.active_blocks -= 1
        with self._cuda.current():
            self._cuda.driver.cuMemFreeAsync(address, stream)

    def _attribute(self, which: int) -> int:
        if self._made is None:
            return 0
        found = c_ulonglong()
        with self._cuda.current():
            self._cuda("cuMemPoolGetAttribute", self._made, which, byref(found))
        return found.value

    @property
    def managed_bytes(self) -> int:
        """Bytes that the pool holds, in use or not."""
        return self._attribute(_RESERVED)

    @property
    def active_bytes(self) -> int:
        """Bytes in use."""
        return self._attribute(_USED)

    def free_held(self) -> None:
        """Give the device back what is not in use."""
        if self._made is not None:
            with self._cuda.current():
                self._cuda("cuMemPoolTrimTo", self._made, 0)


class Lease:
    """A block in use; its end gives the block back in the stream's order."""

    __slots__ = ("_pool", "_stream", "address")

    def __init__(self, pool: CudaPool, address: int, stream: int) -> None:
        self._pool, self.address, self._stream = pool, address, stream

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._pool.give_back(self.address, self._stream)
