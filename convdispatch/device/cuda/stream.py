"""A CUDA stream as Commands: programs that OpenCL compiled, launched by CUDA on the memory and stream of its callers.

Nothing here waits. Scratch memory comes from a pool in the stream's order, or from the caller's own allocator, so that
PyTorch's or CuPy's caching allocator provides it and a capture into a CUDA graph stays inside their pools.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...api.errors import ConvDispatchError, NoDevice
from ..commands.interface import Commands, Kernel
from ..cuda_driver import NO_TIMING, Cuda, CudaError, cuda_of, number_of, unavailable
from ..memory import allocator
from ..native import loading
from .memory_pool import CudaPool
from .modules import Function, function_of

if TYPE_CHECKING:
    import pyopencl as cl

Allocate = Callable[[int], tuple[int, Any]]
"""``allocate(size) -> (address, owner)``: memory for work on the stream, which the owner's destructor frees."""
_LATE_ERRORS = {700, 710, 713, 714, 715, 716, 717, 718, 719}
"""CUDA's codes of errors that a kernel caused before the call that returns them; each of them loses the context."""
BLOCKING = "CUDA_LAUNCH_BLOCKING"
BLOCKED = os.environ.get(BLOCKING, "0") not in ("", "0")  # CUDA also reads CUDA_LAUNCH_BLOCKING only once per process
_lock = threading.Lock()


def _after_fork() -> None:
    """After a fork only the forking thread exists in the child, so the lock is made anew."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class CudaMemory:
    """Memory of ``size`` bytes at a CUDA address; ``held`` is an object that must live as long."""

    __slots__ = ("address", "held", "size")

    def __init__(self, address: int, size: int, held: Any = None) -> None:
        self.address, self.size, self.held = address, size, held

    def get_sub_region(self, offset: int, size: int) -> CudaMemory:
        """``size`` bytes from byte ``offset`` on; keeps the whole memory alive."""
        return CudaMemory(self.address + offset, size, self)

    def __repr__(self) -> str:
        return f"CudaMemory({self.size} bytes at {self.address:#x})"


class CudaPlace(NamedTuple):
    """A CUDA device and the OpenCL device of the same hardware: CUDA launches what OpenCL compiled."""

    number: int
    device: cl.Device
    context: cl.Context
    cuda: Cuda
    pool: CudaPool
    recent: deque[str]
    """The solvers that were launched last, for the message about a fault."""


class PoolPlace(NamedTuple):
    """The key under which a device's stream-ordered memory is counted among its pools."""

    device: cl.Device
    kind: str = "cuda"


def place_of(number: int) -> CudaPlace:
    """The CudaPlace of a CUDA device. Raises NoDevice where NVIDIA's OpenCL has no such device."""
    with _lock:  # while one thread makes the CudaPlace, others wait for it
        return _place_of(number)


@functools.lru_cache(maxsize=64)
def _place_of(number: int) -> CudaPlace:
    from ..runtime import context, devices

    for device in devices():
        cuda = cuda_of(device) if number_of(device) == number else None
        if cuda is not None:
            pool = allocator.join(PoolPlace(device), CudaPool(cuda))
            return CudaPlace(number, device, context(device), cuda, pool, deque(maxlen=8))
    why = unavailable() or "NVIDIA's OpenCL lists no such device (is its vendor file there? convdispatch doctor tells)"
    raise NoDevice(f"no OpenCL device for CUDA's device {number}, whose compiler makes the kernels: {why}")


class CudaStream(Commands):
    """Commands for one stream of a CUDA device. Memory is CudaMemory, or OpenCL buffers that CUDA sees too.

    ``allocate`` is the caller's allocator; the default is a pool in the stream's order. The stream itself takes the
    place of its commands' events: ``wait`` waits for all of them.
    """

    __slots__ = ("_allocate", "_stream", "early", "handle", "place")
    kind = "cuda"
    properties = 0
    """The properties of an in-order OpenCL queue, which a stream behaves like."""
    early: bool
    """Whether the last command was a kernel, so that the next kernel may be launched before it has ended."""

    def __init__(self, place: CudaPlace, handle: int, allocate: Allocate | None = None) -> None:
        self.place, self.handle, self._allocate = place, handle, allocate
        self._stream, self.early = c_void_p(handle), False

    @property
    def context(self) -> cl.Context:  # type: ignore[override]
        """OpenCL's context, for which programs are compiled."""
        return self.place.context

    @property
    def device(self) -> cl.Device:  # type: ignore[override]
        """OpenCL's device."""
        return self.place.device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaStream) and (self.place.number, self.handle) == (other.place.number, other.handle)

    def __hash__(self) -> int:
        return hash((self.place.number, self.handle))

    def __repr__(self) -> str:
        return f"CudaStream({self.handle:#x} on CUDA's device {self.place.number})"

    # --- commands (see the class Commands) ---------------------------------------------------------------------------

    def launch(self, kernel: Kernel, arguments: Sequence[Any], wait_for: Any = None) -> CudaStream:
        """See Commands. Raises Unlaunchable if CUDA cannot launch the program or take its arguments."""
        function = kernel.streams or function_of(self.place.cuda, kernel)
        values = list(arguments)
        for index in function.memory:
            argument = values[index]
            if type(argument) is CudaMemory:
                values[index] = argument.address
            elif not isinstance(argument, np.generic):  # a NumPy scalar is passed unchanged, with its own dtype
                values[index] = address_of(argument)
        self.launch_function(function, values)
        return self

    def launch_function(self, function: Function, arguments: list[Any]) -> None:
        """Launch a loaded function, with memory as addresses."""
        status = function(self.handle, arguments, self.early)
        self.early = True
        if status:
            self.fail("cuLaunchKernel", status, function.name)

    def bind(self, kernel: Kernel, arguments: Sequence[Any]) -> Callable[..., Any]:
        """See Commands; the program is loaded now. Raises Unlaunchable."""
        function_of(self.place.cuda, kernel)
        return super().bind(kernel, arguments)

    def copy(
        self,
        target: Any,
        source: Any,
        size: int,
        source_offset: int = 0,
        target_offset: int = 0,
        wait_for: Any = None,
    ) -> CudaStream:
        self.early = False  # a kernel launched after a copy must wait for the copy's end
        target_address, source_address = address_of(target) + target_offset, address_of(source) + source_offset
        self._call("cuMemcpyAsync", target_address, source_address, size, self._stream)
        return self

    def fill(self, target: Any, number: Any, offset: int, size: int, wait_for: Any = None) -> CudaStream:
        self.early = False
        address, raw = address_of(target) + offset, np.asarray(number).tobytes()
        if len(raw) > 4 and raw == raw[:4] * (len(raw) // 4):
            raw = raw[:4]
        if len(raw) <= 4:
            value, name = int.from_bytes(raw, sys.byteorder), f"cuMemsetD{8 * len(raw)}Async"
            self._call(name, address, value, size // len(raw), self._stream)
            return self
        for word in range(0, len(raw), 4):  # each fill writes one 32-bit word of every repetition of the number
            value = int.from_bytes(raw[word : word + 4], sys.byteorder)
            self._call("cuMemsetD2D32Async", address + word, len(raw), value, 1, size // len(raw), self._stream)
        return self

    def allocate(self, size: int) -> CudaMemory:
        """Memory from the caller's allocator, else from the pool; it is freed in the stream's order."""
        address, owner = self.scratch(size or 1)
        return CudaMemory(address, size, owner)

    def scratch(self, size: int) -> tuple[int, Any]:
        """Returns (address, owner) of memory from the same source as ``allocate``."""
        if self._allocate is not None:
            return self._allocate(size)
        lease = allocator.take(self.place.pool, PoolPlace(self.place.device), size, stream=self.handle)
        return lease.address, lease

    def fresh(self, size: int) -> CudaMemory:
        """Memory from the pool, not from the caller's allocator, which may be using a CUDA graph's private memory.

        Raises ConvDispatchError while a graph is captured.
        """
        if self.capturing():
            raise ConvDispatchError(
                "weights are packed at a first call, which a CUDA graph cannot capture: make one before"
            )
        lease = allocator.take(self.place.pool, PoolPlace(self.place.device), size or 1, stream=self.handle)
        return CudaMemory(lease.address, size, lease)

    def call(self, work: Callable[..., Any], operands: Sequence[Any], what: str, wait_for: Any = None) -> Any:
        """See Commands; ``work`` gets this stream as its queue, for example to call a library of CUDA's on it."""
        work(self, *operands, wait_for=wait_for)
        return self

    def bring(self, array: np.ndarray) -> CudaMemory:
        """A copy of a contiguous host array; complete when this returns."""
        memory = self.fresh(array.nbytes)
        self.write(memory, array)
        return memory

    def complete(self, event: CudaStream) -> bool:
        """Waits for the stream, because weights are packed once and read by other streams."""
        event.wait()
        return True

    def mark(self) -> c_void_p:
        """A new CUDA event that completes after all commands so far."""
        event = self.place.cuda.make("cuEventCreate", NO_TIMING)
        self._call("cuEventRecord", event, self._stream)
        return event

    def wait_for(self, event: c_void_p) -> None:
        """Make all later commands wait for a CUDA event."""
        self.early = False
        self._call("cuStreamWaitEvent", self._stream, event, 0)

    def launch_graph(self, graph: c_void_p) -> None:
        """Launch an instantiated CUDA graph on the stream."""
        self.early = False
        self._call("cuGraphLaunch", graph, self._stream)

    def before(self, handle: int) -> None:
        """Make later commands of another stream of the device wait for all commands of this stream so far."""
        event = self.mark()
        self._call("cuStreamWaitEvent", c_void_p(handle), event, 0)
        self._call("cuEventDestroy_v2", event)

    def after(self, other: CudaStream) -> None:
        """Make later commands of this stream wait for all commands of another stream so far."""
        with other.current():
            event = other.mark()
        self.wait_for(event)
        self._call("cuEventDestroy_v2", event)

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        with self.current():
            host_address = array.__array_interface__["data"][0]
            self._call("cuMemcpyAsync", host_address, address_of(region) + offset, array.nbytes, self._stream)
            self.wait()

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        with self.current():
            host_address = array.__array_interface__["data"][0]
            self._call("cuMemcpyAsync", address_of(region) + offset, host_address, array.nbytes, self._stream)
            self.wait()

    def wait(self) -> None:
        """Wait for all commands so far. Raises ConvDispatchError if one of their kernels failed."""
        self._call("cuStreamSynchronize", self._stream)

    def capturing(self) -> bool:
        """Whether the stream's commands are being captured into a CUDA graph."""
        status = c_int()
        self._call("cuStreamIsCapturing", self._stream, byref(status))
        return status.value != 0

    # --- the current context, and faults ----------------------------------------------------------------

    def current(self) -> Any:
        """A context manager that makes the device's context current in this thread."""
        return self.place.cuda.current()

    def noted(self, what: str) -> None:
        """Note that later commands belong to the solver ``what``, whose name a later fault's message mentions."""
        self.place.recent.append(what)

    def check(self) -> None:
        """Wait for the commands so far if CUDA_LAUNCH_BLOCKING is set, so that a fault is reported with its solver."""
        if BLOCKED:
            self.wait()

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.place.cuda.driver, name)(*arguments)
        if status:
            self.fail(name, status, "")

    def fail(self, name: str, status: int, kernel: str) -> None:
        """Raise ConvDispatchError, which names the solvers whose kernels may have failed, or CudaError."""
        error = self.place.cuda.error(name, status)
        if status not in _LATE_ERRORS:
            failed = CudaError(f"{error}{f' (kernel {kernel})' if kernel else ''}")
            failed.status = status
            raise failed
        native = loading.last()
        solvers = ", ".join((*native, *reversed(self.place.recent))) or "nothing of convdispatch's"
        raise ConvDispatchError(
            f"{error}: a kernel that ran before failed, and CUDA's context is lost with it. Of convdispatch's on "
            f"device {self.place.number}, the last first: {solvers}. {BLOCKING}=1 tells which"
        )


def address_of(region: Any) -> int:
    """CUDA's address of memory; 0 for None. Raises ConvDispatchError for memory that only OpenCL sees."""
    if type(region) is CudaMemory:
        return region.address
    if region is None:
        return 0
    address = allocator.cuda_address(region)
    if address is None:
        raise ConvDispatchError("memory that only OpenCL sees is none for a CUDA stream: allocate it by the runtime")
    return address
