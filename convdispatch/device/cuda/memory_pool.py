"""A device's CUDA pool of stream-ordered memory, which ``device.memory`` counts, limits and trims."""

from __future__ import annotations

import ctypes
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_ubyte, c_ulonglong, c_ushort, c_void_p
from typing import Any

from ..cuda_driver import DEVICE_LOCATION, PINNED, Cuda, CudaError

KEEP = 1 << 29
"""Unused bytes that stay with the pool when the device is synchronised."""
_NO_EXPORT = 0  # CUDA's constant CU_MEM_HANDLE_TYPE_NONE
_THRESHOLD = 4  # CUDA's constant CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
_RESERVED = 5  # CUDA's constant CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
_USED = 7  # CUDA's constant CU_MEMPOOL_ATTR_USED_MEM_CURRENT


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
        self._cuda, self._handle, self._lock = cuda, None, threading.Lock()
        self.active_blocks = self.held_blocks = 0

    def _pool(self) -> Any:
        if self._handle is None:
            with self._lock:
                if self._handle is None:
                    pool = c_void_p()
                    place = (c_int * 2)(DEVICE_LOCATION, self._cuda.number)
                    properties = _Properties(type=PINNED, handles=_NO_EXPORT, place=place)
                    self._cuda("cuMemPoolCreate", byref(pool), byref(properties))
                    self._cuda("cuMemPoolSetAttribute", pool, _THRESHOLD, byref(c_ulonglong(KEEP)))
                    self._handle = pool
        return self._handle

    def allocate(self, size: int, stream: int) -> Lease:
        """A lease of ``size`` bytes for work on a stream of the current context. Raises CudaError."""
        block, pool = c_ulonglong(), self._pool()
        status = self._cuda.driver.cuMemAllocFromPoolAsync(byref(block), size, pool, stream)
        if status:
            raise CudaError(self._cuda.error("cuMemAllocFromPoolAsync", status))
        self.active_blocks += 1
        return Lease(self, block.value, stream)

    def give_back(self, address: int, stream: int) -> None:
        """Free a block after the stream's work so far; no later work may use it."""
        self.active_blocks -= 1
        with self._cuda.current():
            self._cuda.driver.cuMemFreeAsync(address, stream)

    def _attribute(self, which: int) -> int:
        if self._handle is None:
            return 0
        value = c_ulonglong()
        with self._cuda.current():
            self._cuda("cuMemPoolGetAttribute", self._handle, which, byref(value))
        return value.value

    @property
    def managed_bytes(self) -> int:
        """Bytes that the pool holds, in use or not."""
        return self._attribute(_RESERVED)

    @property
    def active_bytes(self) -> int:
        """Bytes in use."""
        return self._attribute(_USED)

    def free_held(self) -> None:
        """Return unused memory to the device."""
        if self._handle is not None:
            with self._cuda.current():
                self._cuda("cuMemPoolTrimTo", self._handle, 0)


class Lease:
    """A block in use; its destructor frees the block in the stream's order."""

    __slots__ = ("_pool", "_stream", "address")

    def __init__(self, pool: CudaPool, address: int, stream: int) -> None:
        self._pool, self.address, self._stream = pool, address, stream

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._pool.give_back(self.address, self._stream)
