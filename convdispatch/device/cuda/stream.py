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
from ctypes import byref, c_int, c_size_t, c_ubyte, c_ulonglong, c_ushort, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ...api.errors import ConvDispatchError, NoDevice
from ..commands.interface import Kernel
from ..cuda_driver import (
    DEVICE_LOCATION,
    NO_CONTEXT,
    NO_TIMING,
    NON_BLOCKING,
    PINNED,
    Cuda,
    CudaError,
    cuda_of,
    number_of,
    structure,
    unavailable,
)
from ..memory import allocator
from ..memory.allocator import NoDeviceMemory, out_of_memory
from ..memory.shared_pool import cuda_address
from ..native import loading
from ..places.stream import Allocate, Stream, StreamMemory, StreamPlace
from .modules import assemble, function_of

if TYPE_CHECKING:
    from ..commands.recording import Command
    from ..executable import Executable

_LATE_ERRORS = {700, 710, 713, 714, 715, 716, 717, 718, 719}
"""CUDA's codes of errors that a kernel caused before the call that returns them; each of them loses the context."""
BLOCKING = "CUDA_LAUNCH_BLOCKING"
_RELAXED = 2  # CUDA's constant CU_STREAM_CAPTURE_MODE_RELAXED
_lock = threading.Lock()


def _after_fork() -> None:
    """After a fork only the forking thread exists in the child, so the lock is made anew."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class CudaPlace(StreamPlace):
    """A CUDA device and the OpenCL device of the same hardware: CUDA launches what OpenCL compiled."""

    kind = torch_type = "cuda"
    title, dlpack, xla, torch_graph = "CUDA's device", 2, "CUDA", "CUDAGraph"
    blocking = os.environ.get(BLOCKING, "0") not in ("", "0")  # CUDA also reads CUDA_LAUNCH_BLOCKING once per process

    def __init__(self, number: int, device: cl.Device, context: cl.Context, cuda: Cuda, pool: CudaPool) -> None:
        super().__init__(number, device, context)
        self.cuda, self.pool, self.pool_key = cuda, pool, allocator.PoolKey(device, "cuda")
        self._held = deque[tuple[c_void_p, Any]]()
        """Events, and what must live until each is over."""

    @classmethod
    def numbered(cls, number: int) -> CudaPlace:
        """The place of a CUDA device. Raises NoDevice where NVIDIA's OpenCL has no such device."""
        with _lock:  # while one thread makes the CudaPlace, others wait for it
            return _place_of(number)

    @classmethod
    def of_device(cls, device: cl.Device) -> CudaPlace | None:
        cuda = cuda_of(device)
        return None if cuda is None else cls.numbered(cuda.number)

    @classmethod
    def serves(cls, torch: Any) -> bool:
        return bool(torch.version.cuda)

    @classmethod
    def torch_functions(cls, torch: Any) -> tuple[Callable[[int], int], Callable[[], int]]:
        functions = ("_cuda_getCurrentRawStream", "_cuda_getDevice")  # a build without CUDA has none, and asks none
        return tuple(getattr(torch._C, name, None) for name in functions)  # type: ignore[return-value]

    def stream(self, handle: int, allocate: Allocate | None = None) -> CudaStream:
        return CudaStream(self, handle, allocate)

    def new_stream(self) -> CudaStream:
        with self.cuda.current():
            return CudaStream(self, self.cuda.make("cuStreamCreate", NON_BLOCKING).value or 0)

    def bind(self, executable: Executable) -> CudaLaunches | None:
        """See StreamPlace; also None for an executable with memory of its own, which is OpenCL's."""
        for kernel, arguments, _ in executable.launches:
            for argument, dtype in zip(arguments, kernel.dtypes, strict=True):
                if dtype is None and hasattr(argument, "int_ptr"):
                    return None
        return None if executable.opaque else CudaLaunches(executable, self.cuda)

    def assemble(self, executable: Executable) -> None:
        """See StreamPlace; the device gets no program, because a copy to it delays the kernels of other processes."""
        for kernel, _, _ in executable.launches:
            assemble(self.cuda, kernel)

    def replay(self, commands: Sequence[Command], memory: Callable[[Any], Any]) -> Callable[[Stream], Any]:
        """See StreamPlace; as a CUDA graph. Also raises ConvDispatchError for memory that only OpenCL sees, CudaError
        if the driver cannot capture a command."""
        return CudaGraph(self, commands, memory)

    def current(self) -> Any:
        return self.cuda.current()

    def is_current(self) -> bool:
        return self.cuda.is_current()

    def keep_until(self, event: c_void_p, held: Any) -> None:
        """Hold objects until a CUDA event is over."""
        self._held.append((event, held))
        while self._held:
            first, _ = self._held[0]
            if self.cuda.driver.cuEventQuery(first):
                return
            self.cuda.driver.cuEventDestroy_v2(first)
            self._held.popleft()


@functools.lru_cache(maxsize=64)
def _place_of(number: int) -> CudaPlace:
    from ..runtime import context, devices

    for device in devices():
        cuda = cuda_of(device) if number_of(device) == number else None
        if cuda is not None:
            pool = allocator.join(allocator.PoolKey(device, "cuda"), CudaPool(cuda))
            return CudaPlace(number, device, context(device), cuda, pool)
    why = unavailable() or "NVIDIA's OpenCL lists no such device (is its vendor file there? convdispatch doctor tells)"
    raise NoDevice(f"no OpenCL device for CUDA's device {number}, whose compiler makes the kernels: {why}")


class CudaStream(Stream):
    """Commands for one stream of a CUDA device."""

    __slots__ = ("_stream", "early")
    place: CudaPlace
    early: bool
    """Whether the last command was a kernel, so that the next kernel may be launched before it has ended."""

    def __init__(self, place: CudaPlace, handle: int, allocate: Allocate | None = None) -> None:
        # Some libraries make a stream at each call, so this repeats what ``super().__init__`` does.
        self.place, self.handle, self._allocate = place, handle, allocate
        self._stream, self.early = c_void_p(handle), False

    # --- commands (see the class Commands) ---------------------------------------------------------------------------

    def launch(self, kernel: Kernel, arguments: Sequence[Any], wait_for: Any = None) -> CudaStream:
        """See Commands. Raises Unlaunchable if CUDA cannot launch the program or take its arguments."""
        function = kernel.streams or function_of(self.place.cuda, kernel)
        values = list(arguments)
        for index in function.memory:
            argument = values[index]
            if type(argument) is StreamMemory:
                values[index] = argument.address
            elif not isinstance(argument, np.generic):  # a NumPy scalar is passed unchanged, with its own dtype
                values[index] = address_of(argument)
        status = function(self.handle, values, self.early)
        self.early = True
        if status:
            self.fail("cuLaunchKernel", status, function.name)
        return self

    def bind(self, kernel: Kernel, arguments: Sequence[Any]) -> Callable[..., Any]:
        """See Commands; the program is loaded now. Raises Unlaunchable."""
        function_of(self.place.cuda, kernel)
        return super().bind(kernel, arguments)

    def copy(
        self, target: Any, source: Any, size: int, offsets: tuple[int, int] = (0, 0), wait_for: Any = None
    ) -> CudaStream:
        self.early = False  # a kernel launched after a copy must wait for the copy's end
        target_address, source_address = address_of(target) + offsets[1], address_of(source) + offsets[0]
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

    def pooled(self, size: int) -> tuple[int, Any]:
        lease = allocator.take(self.place.pool, self.place.pool_key, size, stream=self.handle)
        return lease.address, lease

    def mark(self) -> c_void_p:
        """A new CUDA event that completes after all commands so far."""
        event = self.place.cuda.make("cuEventCreate", NO_TIMING)
        self._call("cuEventRecord", event, self._stream)
        return event

    def launch_graph(self, graph: c_void_p) -> None:
        """Launch an instantiated CUDA graph on the stream."""
        self.early = False
        self._call("cuGraphLaunch", graph, self._stream)

    def before(self, handle: int) -> None:
        event = self.mark()
        self._call("cuStreamWaitEvent", c_void_p(handle), event, 0)
        self._call("cuEventDestroy_v2", event)

    def after(self, other: Stream) -> None:
        self.early = False
        with other.current():
            other.before(self.handle)

    def read(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        self._copied(array.__array_interface__["data"][0], address_of(region) + offset, array.nbytes)

    def write(self, region: Any, array: np.ndarray, offset: int = 0) -> None:
        self._copied(address_of(region) + offset, array.__array_interface__["data"][0], array.nbytes)

    def _copied(self, target: int, source: int, size: int) -> None:
        with self.current():
            self._call("cuMemcpyAsync", target, source, size, self._stream)
            self.wait()

    def wait(self) -> None:
        self._call("cuStreamSynchronize", self._stream)

    def capturing(self) -> bool:
        status = c_int()
        self._call("cuStreamIsCapturing", self._stream, byref(status))
        return status.value != 0

    def address_of(self, region: Any) -> int:
        return address_of(region)

    def keep(self, held: Any) -> None:
        self.place.keep_until(self.mark(), held)

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


class CudaGraph:
    """Recorded commands, captured once and launched together; a kernel's launch then takes under 1 us of the device.

    Raises as ``CudaPlace.replay``.
    """

    def __init__(self, place: CudaPlace, commands: Sequence[Command], memory: Callable[[Any], Any]) -> None:
        self._cuda, self._instance = place.cuda, c_void_p()
        cuda, graph, stream = place.cuda, c_void_p(), place.new_stream()
        with cuda.current():
            runs = [command.make(memory, stream) for command in commands]
            cuda("cuStreamBeginCapture_v2", c_void_p(stream.handle), _RELAXED)
            try:
                for run in runs:
                    run(stream)
            except BaseException:
                cuda.driver.cuStreamEndCapture(c_void_p(stream.handle), byref(graph))
                if graph.value:
                    cuda.driver.cuGraphDestroy(graph)
                raise
            cuda("cuStreamEndCapture", c_void_p(stream.handle), byref(graph))
            try:
                cuda("cuGraphInstantiateWithFlags", byref(self._instance), graph, 0)
            finally:
                cuda("cuGraphDestroy", graph)

    def __call__(self, stream: Any) -> None:
        """Launch the graph on a stream of the device, without a wait."""
        with stream.current():
            stream.launch_graph(self._instance)

    def __del__(self) -> None:
        if self._instance.value and not sys.is_finalizing():
            with self._cuda.current():
                self._cuda.driver.cuGraphExecDestroy(self._instance)


def address_of(region: Any) -> int:
    """CUDA's address of memory; 0 for None. Raises ConvDispatchError for memory that only OpenCL sees."""
    if type(region) is StreamMemory:
        return region.address
    if region is None:
        return 0
    address = cuda_address(region)
    if address is None:
        raise ConvDispatchError("memory that only OpenCL sees is none for a CUDA stream: allocate it by the runtime")
    return address


class CudaLaunches:
    """The launches of an executable on CUDA's addresses. Safe from several threads.

    The constructor loads the kernels' programs. Raises Unlaunchable.
    """

    __slots__ = ("__weakref__", "_context", "_launches", "_lock", "_offsets", "_size", "loaded")

    def __init__(self, executable: Executable, cuda: Cuda) -> None:
        self._lock, self._context = threading.Lock(), cuda.context.value
        self.loaded = []
        """The launches: a function, its arguments, and (argument, operand, offset) of each that is a call's memory."""
        for kernel, arguments, memory in executable.launches:
            memory_indices = {index for index, _, _ in memory}
            numbers = [0 if index in memory_indices or each is None else each for index, each in enumerate(arguments)]
            self.loaded.append((function_of(cuda, kernel), numbers, list(memory)))
        self._launches = [(function.ready(numbers, memory), function.name) for function, numbers, memory in self.loaded]
        self._offsets, self._size = executable.offsets, executable.scratch_size

    def program(self, launcher: Any, name: str, sizes: Sequence[int], strides: Sequence[int]) -> Any:
        """The launches for the native call path, which allocates an output of these sizes; None if it refuses them."""
        launches = []
        for function, numbers, memory in self.loaded:
            packed = function.pack.pack(*function.numbers(list(numbers)))
            addresses = [(function.offsets[index], operand, offset) for index, operand, offset in memory]
            extents = (*function.groups, *function.items, function.shared)
            launches.append((function.handle.value, extents, function.overlaps, packed, addresses))
        try:
            return launcher.program(name, self._context, launches, self._offsets, self._size, sizes, strides)
        except ValueError:  # the arguments are longer than the launcher's space for them
            return None

    def run(self, stream: Any, addresses: list[int]) -> bool:
        """Launch everything on ``addresses`` of the operands; scratch memory comes from the stream. Returns False,
        without a launch, if memory or the thread's context is missing."""
        try:
            if self._size:
                begin, _owner = stream.scratch(self._size)  # keeps the scratch memory until all kernels are launched
                addresses += [begin + offset for offset in self._offsets]
            handle, early = stream.handle, stream.early
            with self._lock:  # guards the argument buffers, which the driver copies before it returns
                for launch, name in self._launches:
                    status = launch(handle, addresses, early)
                    if status:
                        stream.fail("cuLaunchKernel", status, name)
                    early = True
        except (CudaError, NoDeviceMemory) as error:
            if not (out_of_memory(error) or getattr(error, "status", 0) == NO_CONTEXT):
                raise
            return False
        stream.early = True
        return True


KEEP = 1 << 29
"""Unused bytes that stay with the pool when the device is synchronised."""
_NO_EXPORT = 0  # CUDA's constant CU_MEM_HANDLE_TYPE_NONE
_THRESHOLD = 4  # CUDA's constant CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
_RESERVED = 5  # CUDA's constant CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
_USED = 7  # CUDA's constant CU_MEMPOOL_ATTR_USED_MEM_CURRENT


_Properties = structure(
    type=c_int, handles=c_int, place=c_int * 2, windows=c_void_p, most=c_size_t, usage=c_ushort, reserved=c_ubyte * 54
)


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
