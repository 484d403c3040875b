"""A kind of streams that nobody has, as one module: "xpu", whose device is a CPU of OpenCL's with the host's memory.

A line of ``KINDS`` is all that the package needs to know of it. ``log`` has the kernels that its streams launched.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools

import numpy as np

from convdispatch.calls.arrays import interchange
from convdispatch.device import runtime
from convdispatch.device.commands.host_memory import HostMemory, has_system_svm
from convdispatch.device.places.stream import Stream, StreamMemory, StreamPlace

__all__ = ["HOME", "InventedPlace"]

HOME = "invented_streams:InventedPlace"


class InventedPlace(StreamPlace):
    kind = torch_type = "xpu"
    title, dlpack, torch_graph = "the invented device", 14, "XPUGraph"
    log: list[str] = []  # noqa: RUF012 (of all streams)
    graph: list | None = None
    """What a capture has taken so far; None outside of one."""

    @classmethod
    @functools.cache
    def numbered(cls, number):
        device = next(filter(has_system_svm, runtime.devices()))
        return cls(number, device, runtime.context(device))

    @classmethod
    def of_device(cls, device):
        return cls.numbered(0) if has_system_svm(device) else None

    @classmethod
    def serves(cls, torch):
        return True

    @classmethod
    def torch_functions(cls, torch):
        return lambda number: 0x77, lambda: 0

    def stream(self, handle, allocate=None):
        return InventedStream(self, handle, allocate)

    def new_stream(self):
        return InventedStream(self, 0x55)

    def bind(self, executable):
        return None if executable.opaque else Launches(executable)

    def current(self):
        return contextlib.nullcontext()

    def is_current(self):
        return True


class Launches:
    def __init__(self, executable):
        self.executable = executable

    def run(self, stream, addresses):
        executable, owner = self.executable, None
        if executable.scratch_size:
            begin, owner = stream.scratch(executable.scratch_size)
            addresses += [begin + offset for offset in executable.offsets]
        for kernel, arguments, memory in executable.launches:
            given = list(arguments)
            for index, operand, offset in memory:
                given[index] = StreamMemory(addresses[operand] + offset, 1, owner)
            stream.launch(kernel, given)
        return True


class InventedStream(Stream):
    """Each command is over when it is given, or taken by a capture."""

    def _give(self, work):
        work() if self.place.graph is None else self.place.graph.append(work)
        return self

    def launch(self, kernel, arguments, wait_for=None):
        given = list(arguments)
        for place, dtype in enumerate(kernel.dtypes):
            if dtype is None and not isinstance(given[place], np.generic):
                address = self.address_of(given[place])
                given[place] = HostMemory.at(address, 1, arguments[place]) if address else None

        def work():
            with kernel.lock:
                sizes = kernel.global_size, kernel.local_size
                kernel.bound(runtime.queue(self.device), *sizes, *given).wait()

        self.place.log.append(kernel.name)
        return self._give(work)

    def copy(self, target, source, size, offsets=(0, 0), wait_for=None):
        to, of = self.address_of(target) + offsets[1], self.address_of(source) + offsets[0]
        return self._give(lambda: ctypes.memmove(to, of, size))

    def fill(self, target, number, offset, size, wait_for=None):
        number = np.asarray(number)
        whole = np.frombuffer((ctypes.c_ubyte * size).from_address(self.address_of(target) + offset), number.dtype)
        return self._give(lambda: whole.fill(number))

    def pooled(self, size):
        block = np.full(size + 64, 0xFF, np.uint8)
        return -(-block.ctypes.data // 64) * 64, block

    def address_of(self, region):
        if isinstance(region, StreamMemory) or region is None:
            return region.address if region else 0
        return interchange.host_address(runtime.queue(self.device), region, region.size)

    def write(self, region, array, offset=0):
        ctypes.memmove(self.address_of(region) + offset, array.ctypes.data, array.nbytes)

    def read(self, region, array, offset=0):
        ctypes.memmove(array.ctypes.data, self.address_of(region) + offset, array.nbytes)

    def wait(self):
        assert self.place.graph is None, "a capture that waits is over"

    def capturing(self):
        return self.place.graph is not None

    def before(self, handle):
        pass

    def after(self, other):
        pass

    def keep(self, held):
        pass
