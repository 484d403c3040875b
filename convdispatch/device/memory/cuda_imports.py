"""OpenCL's imports of memory that CUDA allocated, and whether large imports are safe on this machine.

NVIDIA's OpenCL (driver 580.159) ends the process when it imports 512 MiB or more on a host with two H200, whichever of
them ``CUDA_VISIBLE_DEVICES`` shows; on a host with one it does not. Nothing distinguishes such hosts beforehand. So a
child process tries an import when large memory is first needed, and the store keeps the result until the host
reboots. ``CONVDISPATCH_LARGE_IMPORTS``, 0 or 1, decides without a trial.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import threading
import warnings
from pathlib import Path

import pyopencl as cl

from ...api import settings
from ...api.errors import ConvDispatchWarning
from ..cache.keys import key_of
from ..cache.store import TRIALS
from ..child import Child, Silent
from ..cuda_driver import Cuda, CudaError, Shared
from ..opencl.platforms import address

USUAL = 384 << 20
"""Bytes of the largest import that has ended no process on any host."""
_EXTERNAL_FD = 0x2060
"""OpenCL's constant CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR."""
_TRIAL_S = 60  # the most seconds that the child's trial may take
_CHILD = "convdispatch.device.cuda.import_trial"
REFUSED = 3  # the child's exit status if OpenCL returns an error
NO_MEMORY = 4  # the child's exit status if there is no memory for the trial
_CRASHES = tuple(-getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS") if hasattr(signal, name))
_RESULTS = {0: "safe", REFUSED: "refused", **dict.fromkeys(_CRASHES, "crashes")}
"""The cached result by the child's exit status; any other status says nothing about the driver."""
_lock = threading.Lock()
_safe_by_device: dict[cl.Device, bool] = {}


def import_shared(context: cl.Context, cuda: Cuda, size: int) -> tuple[Shared, cl.Buffer]:
    """Newly allocated CUDA memory, and OpenCL's buffer of the same memory. Raises CudaError."""
    shared = cuda.shared(size)
    try:
        return shared, opencl_buffer(context, shared)
    except CudaError:
        shared.release()
        raise


def opencl_buffer(context: cl.Context, shared: Shared) -> cl.Buffer:
    """OpenCL's buffer of memory that CUDA allocated. Raises CudaError."""
    # Pyopencl does not wrap clCreateBufferWithProperties.
    create = ctypes.CDLL(cl._cl.__file__).clCreateBufferWithProperties
    create.restype, error = ctypes.c_void_p, ctypes.c_int()
    create.argtypes = (*(ctypes.c_void_p,) * 2, ctypes.c_uint64, ctypes.c_size_t, *(ctypes.c_void_p,) * 2)
    properties = (ctypes.c_uint64 * 3)(_EXTERNAL_FD, shared.fd, 0)
    flags = int(cl.mem_flags.READ_WRITE)
    handle = create(context.int_ptr, properties, flags, shared.size, None, ctypes.byref(error))
    if error.value:
        raise CudaError(f"clCreateBufferWithProperties on memory of CUDA's failed with error {error.value}")
    return cl.Buffer.from_int_ptr(handle, retain=False)


def safe(device: cl.Device, size: int) -> bool:
    """Whether an import of ``size`` bytes on a device does not end the process. May wait for a child process."""
    if size <= USUAL:
        return True
    with _lock:
        if device not in _safe_by_device:
            _safe_by_device[device] = _large_are_safe(device)
        return _safe_by_device[device]


def _large_are_safe(device: cl.Device) -> bool:
    setting = settings.LARGE_IMPORTS.value()
    if setting is not None:
        return bool(setting)
    key = _key(device)
    outcome = (TRIALS.get(key) or {}).get("outcome")
    if outcome in _RESULTS.values():
        return bool(outcome == "safe")
    status, error = _try_import(device)
    if status not in _RESULTS:
        warnings.warn(
            f"whether OpenCL may import large memory of CUDA's on {device.name.strip()} could not be tried ({error}): "
            f"for now blocks of more than {USUAL >> 20} MiB are OpenCL's alone; "
            "CONVDISPATCH_LARGE_IMPORTS=1 or 0 says it",
            ConvDispatchWarning,
            stacklevel=2,
        )
        return False
    TRIALS.put(key, {"outcome": _RESULTS[status]}, f"importing large memory of CUDA's on {device.name.strip()}")
    return status == 0


def _try_import(device: cl.Device) -> tuple[int | None, str]:
    """The exit status of a child process that imports a large block, and how it ended."""
    try:
        child = Child(_CHILD, {"device": address(device)})
    except OSError as error:
        return None, str(error)
    try:
        child.hear(_TRIAL_S)
        return child.exit_code(), child.how_it_ended()
    except Silent as silent:
        return None, str(silent)
    finally:
        child.close()


def _key(device: cl.Device) -> str:
    """The key of the cached result: a hash of the device, its driver, and the host's boot."""
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        host = platform.node()
    return key_of("large import", device.name, device.driver_version, host)
