"""CUDA's streams without CUDA: its driver's calls on the host's memory, kernels by a CPU's OpenCL on the same memory.

What stands between an array and ``cuLaunchKernel`` runs as on a GPU, and computes real numbers; only PTX is not there.
"""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
import pytest

from convdispatch.api.dtypes import numpy_dtype
from convdispatch.calls.arrays import interchange, known_libraries
from convdispatch.calls.arrays.array_library import Library
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.cuda import stream
from convdispatch.device.cuda.stream import CudaPool
from convdispatch.device.cuda_driver import Cuda
from convdispatch.device.places.stream import Unlaunchable
from convdispatch.selection import dispatch

__all__ = ["CudaArray", "HostDriver", "contextless", "install", "installed"]

CONTEXT = 0xC0


class HostDriver:
    """The driver's functions. ``log`` has what was called; ``status`` answers instead of 0, by name."""

    def __init__(self):
        self.log, self.status, self.blocks, self.capturing, self.current, self.freed = [], {}, {}, False, 0, []
        self.graph, self.graphs, self.handles = None, [], 100

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.log.append((name, *arguments))
            if name in self.status:
                return self.status[name]
            work = getattr(self, "_" + name, lambda *_: 0)
            if self.graph is not None and name.startswith(("cuMemcpy", "cuMemset")):
                self.graph.append(lambda: work(*arguments))
                return 0
            return work(*arguments) or 0

        return call

    def names(self):
        return [entry[0] for entry in self.log]

    def _cuCtxGetCurrent(self, found):
        found._obj.value = self.current or None

    def _cuCtxPushCurrent_v2(self, context):
        self.before, self.current = self.current, context.value

    def _cuCtxPopCurrent_v2(self, found):
        self.current = self.before

    def _cuStreamCreate(self, found, flags):
        self.handles += 1
        found._obj.value = self.handles

    def _cuEventCreate(self, found, flags):
        self._cuStreamCreate(found, flags)

    def _cuStreamBeginCapture_v2(self, where, mode):
        self.graph = []

    def _cuStreamEndCapture(self, where, found):
        self.graphs.append(self.graph)
        self.graph, found._obj.value = None, len(self.graphs)

    def _cuGraphInstantiateWithFlags(self, found, graph, flags):
        found._obj.value = graph.value

    def _cuGraphLaunch(self, graph, where):
        for work in self.graphs[graph.value - 1]:
            work()

    def _cuMemAllocFromPoolAsync(self, found, size, pool, where):
        block = np.full(size + 128, 0xFF, np.uint8)
        address = -(-block.ctypes.data // 64) * 64  # as CUDA's are, at the least
        self.blocks[address] = block
        found._obj.value = address

    def _cuMemFreeAsync(self, address, where):
        self.freed.append(address)
        self.blocks.pop(address)

    def _cuMemcpyAsync(self, target, source, size, where):
        ctypes.memmove(target, source, size)

    def _cuMemsetD8Async(self, target, value, count, where):
        ctypes.memset(target, value, count)

    def _cuMemsetD32Async(self, target, value, count, where):
        np.frombuffer((ctypes.c_uint32 * count).from_address(target), np.uint32)[:] = value

    def _cuMemsetD2D32Async(self, target, pitch, value, width, height, where):
        for row in range(height):
            ctypes.c_uint32.from_address(target + row * pitch).value = value

    def _cuStreamIsCapturing(self, where, found):
        found._obj.value = int(self.capturing)

    def _cuGetErrorName(self, status, found):
        found._obj.value = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(status.value, b"CUDA_ERROR")


def contextless(driver: HostDriver) -> list[str]:
    """Let launches fail while the thread has no context; the names of those that did, as they come."""
    refused: list[str] = []

    class Status(dict):
        def __contains__(self, name):
            return name == "cuLaunchKernel" and not driver.current

        def __getitem__(self, name):
            refused.append(name)
            return 201

    driver.status = Status()
    return refused


class HostFunction:
    """A kernel on the host's memory, in the place of one in CUDA's driver."""

    def __init__(self, cuda, kernel, queue):
        self.kernel, self.queue, self.name = kernel, queue, kernel.name
        self.memory = [place for place, dtype in enumerate(kernel.dtypes) if dtype is None]
        self._driver, self._log = cuda.driver, cuda.driver.log

    def __call__(self, where, arguments, early=True):
        self._log.append(("cuLaunchKernel", self.name, where))
        if "cuLaunchKernel" in self._driver.status:
            return self._driver.status["cuLaunchKernel"]
        given = list(arguments)
        for place in self.memory:
            if isinstance(given[place], np.generic):
                continue
            given[place] = host_memory.HostMemory.at(given[place], 1) if given[place] else None
        kernel = self.kernel

        def run():
            with kernel.lock:
                kernel.bound(self.queue, kernel.global_size, kernel.local_size, *given).wait()

        run() if self._driver.graph is None else self._driver.graph.append(run)
        return 0

    def ready(self, arguments, places):
        def launch(where, operands, early):
            given = list(arguments)
            for at, operand, offset in places:
                given[at] = operands[operand] + offset
            return self(where, given, early)

        return launch


class CudaArray:
    """An array "on CUDA's device" ``number``, on stream ``where``."""

    def __init__(self, values, number=0, where=77):
        self.values, self.number, self.where = values, number, where

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)


class HostLibrary(Library):
    name = "CudaArray"

    def __init__(self, places):
        self.devices, self.made = places, 0

    def device(self, array):
        return array.number

    def stream(self, array, number):
        return self.devices[number].stream(array.where)

    def pointer(self, array, where):
        return (array.values.ctypes.data, array.values) if array.values.flags.c_contiguous else (0, None)

    def compact(self, array):
        return CudaArray(np.ascontiguousarray(array.values), array.number, array.where)

    def empty(self, shape, like, where, dtype=None):
        self.made += 1
        kind = numpy_dtype(dtype or like.dtype)
        return CudaArray(np.full(shape, np.nan if kind.kind == "f" else 99, kind), like.number, like.where)

    def fetch(self, array):
        return array.values.copy()


@contextlib.contextmanager
def installed(monkeypatch, device, unlaunchable=()):
    """As ``install`` answers, where the host can stand for CUDA's memory; calls are asked anew before and after."""
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    dispatch.forget()
    yield install(monkeypatch, device, unlaunchable)
    dispatch.forget()


def install(monkeypatch, device, unlaunchable=()):
    """(driver, library) of two CUDA devices that are the host; kernels whose names are ``unlaunchable`` do not load."""
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # a loaded machine's first calls would be PyTorch's
    driver = HostDriver()
    queue = runtime.queue(device)
    places = []
    for number in range(2):
        cuda = Cuda.__new__(Cuda)
        cuda.driver, cuda.number, cuda.context = driver, number, ctypes.c_void_p(CONTEXT + number)
        places.append(stream.CudaPlace(number, device, queue.context, cuda, CudaPool(cuda)))

    def function_of(cuda, kernel):
        if kernel.name in unlaunchable:
            raise Unlaunchable(f"its PTX reads %envreg9 ({kernel.name})")
        return HostFunction(cuda, kernel, queue)

    monkeypatch.setattr(stream, "function_of", function_of)

    def address(buffer):
        return interchange.host_address(queue, buffer, buffer.size)

    monkeypatch.setattr(stream, "cuda_address", address)
    monkeypatch.setattr(stream.CudaPlace, "of_device", lambda device: places[0])
    monkeypatch.setattr(stream.CudaPlace, "numbered", lambda number: places[number])
    library = HostLibrary(places)
    monkeypatch.setitem(known_libraries._known, CudaArray, library)
    return driver, library
