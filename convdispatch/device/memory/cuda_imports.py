"""OpenCL's imports of memory that CUDA allocated, and whether large imports are safe on this machine.

NVIDIA's OpenCL (driver 580.159) ends the process when it imports 512 MiB or more on a host with two H200, whichever of
them ``CUDA_VISIBLE_DEVICES`` shows; on a host with one it does not. Nothing distinguishes such hosts beforehand. So a
child process tries an import when large memory is first needed, and the result is cached in the user's cache until the
host reboots. ``CONVDISPATCH_LARGE_IMPORTS``, 0 or 1, decides without a trial.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import platformdirs
import pyopencl as cl

from ...api import settings
from ...api.errors import ConvDispatchWarning
from ..cuda_driver import Cuda, CudaError, Shared
from ..opencl.platforms import address

USUAL = 384 << 20
"""Bytes of the largest import that has ended no process on any host."""
_EXTERNAL_FD = 0x2060
"""OpenCL's constant CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR."""
_TRIAL_S = 60  # the most seconds that the child's trial may take
_CHILD = ("-m", "convdispatch.device.cuda.import_trial")
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
    cached = _folder() / _key(device)
    try:
        answer = cached.read_text()
        if answer in _RESULTS.values():
            return answer == "safe"
    except (OSError, UnicodeDecodeError):
        pass
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
    draft = cached.with_suffix(f".{os.getpid()}")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(_RESULTS[status])
        draft.replace(cached)
    except OSError:  # the cache folder cannot be written, so the next process tries the import again
        pass
    return status == 0


def _try_import(device: cl.Device) -> tuple[int | None, str]:
    """The exit status of a child process that imports a large block, and the last line of its errors."""
    home = str(Path(__file__).parents[3])
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), home]
    command = [sys.executable or "python3", "-W", "ignore", *_CHILD, address(device)]
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        except OSError as error:
            return None, str(error)
        try:
            status = child.wait(_TRIAL_S)
        except subprocess.TimeoutExpired:
            child.kill()  # not waited for, because a child process that hangs in the driver does not end
            return None, f"no answer within {_TRIAL_S} s"
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    return status, lines[-1] if lines else f"exit status {status}"


def _key(device: cl.Device) -> str:
    """The key of the cached result: a hash of the device, its driver, and the host's boot."""
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        host = platform.node()
    return hashlib.sha256(repr((device.name, device.driver_version, host)).encode()).hexdigest()[:16]


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("convdispatch")) / "imports"
