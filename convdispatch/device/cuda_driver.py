"""CUDA's driver API by ctypes: devices, streams, and memory that CUDA and OpenCL both map.

Memory comes from ``cuMemCreate``, which can be exported; OpenCL imports the exported handle, and both see one memory. A
raw CUDA pointer, by contrast, means nothing to OpenCL and ends its context. Importing this module loads no library.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import sys
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_ushort, c_void_p
from typing import Any

import pyopencl as cl

from ..api import settings
from ..api.errors import ConvDispatchError

PINNED = 1  # CUDA's constant CU_MEM_ALLOCATION_TYPE_PINNED
DEVICE_LOCATION = 1  # CUDA's constant CU_MEM_LOCATION_TYPE_DEVICE
_READ_WRITE = 3  # CUDA's constant CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_POSIX_FD = 1  # CUDA's constant CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
NON_BLOCKING = 1  # CUDA's constant CU_STREAM_NON_BLOCKING
NO_TIMING = 2  # CUDA's constant CU_EVENT_DISABLE_TIMING
# Machine code that a CUDA stream calls when its earlier work is done. Its argument points to three words: the address
# of a function and the two arguments with which to call it. A Python function would wait for the interpreter's lock.
_TRAMPOLINES = {
    "x86_64": "488b07488b7710488b7f08ffe0",  # x86-64: mov rax,[rdi]; mov rsi,[rdi+16]; mov rdi,[rdi+8]; jmp rax
    "aarch64": "090040f9010840f9000440f920011fd6",  # AArch64: ldr x9,[x0]; ldr x1,[x0,16]; ldr x0,[x0,8]; br x9
}


NO_CONTEXT = 201
"""CUDA_ERROR_INVALID_CONTEXT, the status of a call in a thread without a device's context."""


class CudaError(ConvDispatchError):
    """A call of CUDA's driver failed; the message names the function and the error."""

    status = 0


class _NoWait(threading.local):
    """Inside ``with no_wait:`` this thread must not wait for the device: operations that would wait are postponed."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: Any) -> None:
        self.depth -= 1


no_wait = _NoWait()


def structure(**fields: Any) -> Any:
    """The ctypes structure of these fields, in this order."""
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields.items())})


_Location = structure(kind=c_int, number=c_int)
_AllocationProperties = structure(
    type=c_int, handles=c_int, place=_Location, windows=c_void_p, compression=c_ubyte, rdma=c_ubyte, usage=c_ushort,
    reserved=c_ubyte * 4,
)  # fmt: skip
_Access = structure(place=_Location, flags=c_int)
_Address = c_ulonglong
_FUNCTIONS: dict[tuple[Any, ...], str] = {
    (c_uint,): "cuInit",
    (POINTER(c_int),): "cuCtxGetDevice cuDriverGetVersion",
    (POINTER(c_int), c_char_p): "cuDeviceGetByPCIBusId",
    (POINTER(c_void_p), c_int): "cuDevicePrimaryCtxRetain",
    (POINTER(c_size_t), c_void_p, c_int): "cuMemGetAllocationGranularity",
    (POINTER(_Address), c_size_t, c_void_p, c_ulonglong): "cuMemCreate",
    (POINTER(_Address), c_size_t, c_size_t, _Address, c_ulonglong): "cuMemAddressReserve",
    (_Address, c_size_t, c_size_t, _Address, c_ulonglong): "cuMemMap",
    (_Address, c_size_t, c_void_p, c_size_t): "cuMemSetAccess",
    (POINTER(c_int), _Address, c_int, c_ulonglong): "cuMemExportToShareableHandle",
    (_Address, c_size_t): "cuMemUnmap cuMemAddressFree",
    (_Address,): "cuMemRelease",
    (POINTER(_Address), c_size_t, c_void_p): "cuMemAllocAsync",
    (_Address, c_void_p): "cuMemFreeAsync",
    (POINTER(c_void_p), c_uint): "cuStreamCreate cuEventCreate",
    (c_void_p,): "cuStreamDestroy_v2 cuStreamQuery cuStreamSynchronize cuCtxPushCurrent_v2 cuLinkDestroy "
    "cuEventDestroy_v2 cuEventQuery cuGraphDestroy cuGraphExecDestroy",
    (c_void_p, c_void_p, c_uint): "cuStreamWaitEvent",
    (c_void_p, _Address, c_uint, c_uint): "cuStreamWaitValue32_v2",
    (c_void_p, c_void_p, c_void_p): "cuLaunchHostFunc",
    (c_void_p, c_void_p): "cuEventRecord cuGraphLaunch",
    (_Address, c_uint, c_size_t, c_void_p): "cuMemsetD32Async cuMemsetD8Async cuMemsetD16Async",
    (_Address, _Address, c_size_t, c_void_p): "cuMemcpyAsync",
    (): "cuCtxSynchronize",
    (POINTER(c_void_p),): "cuCtxGetCurrent cuCtxPopCurrent_v2",
    (POINTER(c_void_p), c_char_p): "cuModuleLoadData",
    (c_uint, c_void_p, c_void_p, POINTER(c_void_p)): "cuLinkCreate_v2",
    (c_void_p, c_int, c_void_p, c_size_t, c_char_p, c_uint, c_void_p, c_void_p): "cuLinkAddData_v2",
    (c_void_p, POINTER(c_void_p), POINTER(c_size_t)): "cuLinkComplete",
    (POINTER(c_int), c_int, c_int): "cuDeviceGetAttribute",
    (POINTER(c_void_p), c_void_p, c_char_p): "cuModuleGetFunction",
    (c_void_p, c_int, c_int): "cuFuncSetAttribute",
    (c_void_p, c_void_p, c_void_p, c_void_p): "cuLaunchKernelEx",
    (_Address, c_size_t, c_uint, c_size_t, c_size_t, c_void_p): "cuMemsetD2D32Async",
    (POINTER(c_void_p), c_void_p): "cuMemPoolCreate",
    (c_void_p, c_int, c_void_p): "cuMemPoolSetAttribute cuMemPoolGetAttribute",
    (c_void_p, c_size_t): "cuMemPoolTrimTo",
    (POINTER(_Address), c_size_t, c_void_p, c_void_p): "cuMemAllocFromPoolAsync",
    (c_void_p, POINTER(c_int)): "cuStreamIsCapturing",
    (c_void_p, c_int): "cuStreamBeginCapture_v2",
    (c_void_p, POINTER(c_void_p)): "cuStreamEndCapture",
    (POINTER(c_void_p), c_void_p, c_ulonglong): "cuGraphInstantiateWithFlags",
}
"""The driver's functions by the types of their arguments."""


@functools.lru_cache(maxsize=1)
def _driver() -> tuple[ctypes.CDLL | None, str | None]:
    if not settings.CUDA.value():
        return None, "CONVDISPATCH_CUDA=0 turns it off"
    if sys.platform != "linux" or platform.machine() not in _TRAMPOLINES:
        return None, f"linux on {' or '.join(_TRAMPOLINES)} only, got {sys.platform} on {platform.machine()}"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "no CUDA driver (libcuda.so.1) on this machine"
    try:
        for arguments, names in _FUNCTIONS.items():
            for name in names.split():
                function = getattr(driver, name)
                function.restype, function.argtypes = c_int, arguments
    except AttributeError as error:
        return None, f"the CUDA driver is too old: {error}"
    # cuCtxGetCurrent runs before every launch and returns at once, so it is called without releasing Python's lock.
    driver.cuCtxGetCurrent = ctypes.PyDLL(None, handle=driver._handle)["cuCtxGetCurrent"]
    status = driver.cuInit(0)
    return (driver, None) if status == 0 else (None, f"CUDA's driver finds no device: cuInit answers {status}")


def cuda_call(driver: Any, name: str) -> Any:
    """A function of the driver that takes ctypes' own objects as they are, which costs a third of a checked call."""
    return driver[name] if isinstance(driver, ctypes.CDLL) else getattr(driver, name)


def unavailable() -> str | None:
    """The reason why CUDA cannot be used here; None when it can."""
    return _driver()[1]


@functools.lru_cache(maxsize=1)
def trampoline() -> int:
    """Address of the code that ``cuLaunchHostFunc`` runs."""
    code = bytes.fromhex(_TRAMPOLINES[platform.machine()])
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page[: len(code)] = code
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (c_void_p, c_size_t, c_int)
    if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise CudaError("no executable memory for a call from CUDA's streams")
    trampoline.page = page  # type: ignore[attr-defined]  # keeps the executable page as long as its address is cached
    return address


class Shared:
    """Device memory that CUDA sees at ``address`` and exports as the descriptor ``fd``, which OpenCL takes over."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda, self.size, self.address = cuda, size, 0
        handle, address, fd = _Address(), _Address(), c_int()
        cuda("cuMemCreate", byref(handle), size, byref(cuda.kind), 0)
        self._handle = handle
        cuda("cuMemAddressReserve", byref(address), size, 0, 0, 0)
        self.address = address.value
        cuda("cuMemMap", address, size, 0, handle, 0)
        cuda("cuMemSetAccess", address, size, byref(_Access(cuda.kind.place, _READ_WRITE)), 1)
        cuda("cuMemExportToShareableHandle", byref(fd), handle, _POSIX_FD, 0)
        self.fd = fd.value

    def release(self) -> None:
        """Unmap the memory in CUDA; OpenCL's import ends with its buffer. No command may be using the memory."""
        self._cuda("cuMemUnmap", self.address, self.size)
        self._cuda("cuMemAddressFree", self.address, self.size)
        self._cuda("cuMemRelease", self._handle)


class _Current:
    """See ``Cuda.current``. The thread's context is restored because it tells PyTorch and CuPy which device to use."""

    __slots__ = ("_cuda", "_pushed")

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._pushed = cuda, False

    def __enter__(self) -> None:
        if not self._cuda.is_current():
            self._cuda._check("cuCtxPushCurrent", self._cuda.driver.cuCtxPushCurrent_v2(self._cuda.context))
            self._pushed = True

    def __exit__(self, *_: Any) -> None:
        if self._pushed:
            self._cuda.driver.cuCtxPopCurrent_v2(byref(c_void_p()))


class Cuda:
    """One CUDA device by its primary context, which PyTorch and CuPy use too. ``cuda(name, ...)`` makes a call."""

    def __init__(self, driver: ctypes.CDLL, number: int) -> None:
        self.driver, self.number = driver, number
        self.context = c_void_p()
        self._check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(byref(self.context), number))
        self.kind = _AllocationProperties(type=PINNED, handles=_POSIX_FD, place=_Location(DEVICE_LOCATION, number))
        granularity = c_size_t()
        self("cuMemGetAllocationGranularity", byref(granularity), byref(self.kind), 0)
        self.granularity = granularity.value

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver in the device's context. Raises CudaError."""
        with self.current():
            self._check(name, getattr(self.driver, name)(*arguments))

    def is_current(self) -> bool:
        """Whether the device's context is current in this thread."""
        current_context = c_void_p()
        self.driver.cuCtxGetCurrent(byref(current_context))
        return current_context.value == self.context.value

    def current(self) -> _Current:
        """A context manager that makes the device's context current in this thread, and then restores the former."""
        return _Current(self)

    def _check(self, name: str, status: int) -> None:
        if status:
            raise CudaError(self.error(name, status))

    def error(self, name: str, status: int) -> str:
        """The CudaError for a status that is not 0."""
        text = c_char_p()
        self.driver.cuGetErrorName(c_int(status), byref(text))
        return f"{name}: {(text.value or b'unknown error').decode()} ({status})"

    def make(self, name: str, flags: int) -> c_void_p:
        """Create a stream or an event."""
        handle = c_void_p()
        self(name, byref(handle), flags)
        return handle

    def idle(self, stream: c_void_p) -> bool:
        """Whether all work of a stream is done; does not wait."""
        with self.current():
            return self.driver.cuStreamQuery(stream) == 0

    def shared(self, size: int) -> Shared:
        """Memory to share with OpenCL, ``size`` rounded up to the device's granularity."""
        return Shared(self, -(-size // self.granularity) * self.granularity)


@functools.lru_cache(maxsize=16)
def cuda_of(device: cl.Device) -> Cuda | None:
    """The CUDA device that is the same hardware as an OpenCL device; None for another vendor's or without CUDA."""
    number = number_of(device)
    return None if number is None else Cuda(_driver()[0], number)  # type: ignore[arg-type]


def current_number() -> int | None:
    """CUDA's number of the device whose context is current in this thread; None where there is none."""
    driver, number = _driver()[0], c_int()
    return None if driver is None or driver.cuCtxGetDevice(byref(number)) else number.value


def number_of(device: cl.Device) -> int | None:
    """CUDA's number of an OpenCL device, by its PCI address; creates no context on it, which would take memory."""
    driver = _driver()[0] if "nvidia" in device.vendor.lower() else None
    if driver is None:
        return None
    try:
        domain = device.pci_domain_id_nv
    except (AttributeError, cl.Error):
        domain = 0
    try:
        pci_address = f"{domain:04x}:{device.pci_bus_id_nv:02x}:{device.pci_slot_id_nv:02x}.0"
    except (AttributeError, cl.Error):
        return None
    number = c_int()
    return None if driver.cuDeviceGetByPCIBusId(byref(number), pci_address.encode()) else number.value
