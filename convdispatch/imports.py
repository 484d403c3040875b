"""OpenCL's imports of memory that CUDA made, and whether large ones are safe on this machine.

NVIDIA's OpenCL (driver 580.159) ends the process when it imports 512 MiB or more on a host with two H200, whichever of
them ``CUDA_VISIBLE_DEVICES`` shows; on a host with one it does not. Nothing tells the two apart beforehand, so a child
process tries it, the first time that a machine wants such a block; what came of it is kept in the user's cache.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from .cuda import Cuda, CudaError, Shared

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["LARGE", "attempt", "import_shared", "safe"]

LARGE = 512 << 20
"""Bytes of the least import that may end a process."""
_EXTERNAL_FD = 0x2060
"""CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR"""
_TRY = "import sys; from convdispatch.imports import attempt; attempt(sys.argv[1])"
_SECONDS = 60
_NO_MEMORY = 3
"""The child's exit status where there was no memory to try it with."""


def import_shared(context: cl.Context, cuda: Cuda, size: int) -> tuple[Shared, cl.Buffer]:
    """New memory of CUDA's, and OpenCL's buffer over it. Raises CudaError."""
    import pyopencl as cl

    shared = cuda.shared(size)
    create = ctypes.CDLL(cl._cl.__file__).clCreateBufferWithProperties  # pyopencl does not wrap it
    create.restype, error = ctypes.c_void_p, ctypes.c_int()
    create.argtypes = (*(ctypes.c_void_p,) * 2, ctypes.c_uint64, ctypes.c_size_t, *(ctypes.c_void_p,) * 2)
    properties = (ctypes.c_uint64 * 3)(_EXTERNAL_FD, shared.fd, 0)
    flags = int(cl.mem_flags.READ_WRITE)
    handle = create(context.int_ptr, properties, flags, shared.size, None, ctypes.byref(error))
    if error.value:
        shared.release()
        raise CudaError(f"clCreateBufferWithProperties on memory of CUDA's failed with error {error.value}")
    return shared, cl.Buffer.from_int_ptr(handle, retain=False)


def safe(device: cl.Device, size: int) -> bool:
    """Whether an import of ``size`` bytes on a device does not end the process."""
    return size < LARGE or _large_are_safe(device)


@functools.lru_cache(maxsize=16)
def _large_are_safe(device: cl.Device) -> bool:
    kept = _folder() / _key(device)
    try:
        return kept.read_text() == "safe"
    except OSError:
        pass
    status = _tried(device)
    if status != _NO_MEMORY:
        draft = kept.with_suffix(f".{os.getpid()}")
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text("safe" if status == 0 else "ends the process")
            draft.replace(kept)
        except OSError:  # a home that cannot be written: the next process tries again
            pass
    return status == 0


def _tried(device: cl.Device) -> int:
    """The exit status of a child that imports a large block."""
    from .runtime import address

    command = [sys.executable or "python3", "-W", "ignore", "-c", _TRY, address(device)]
    try:
        return subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return -1


def attempt(address: str) -> None:
    """Import a large block on the device of an address (``runtime.address``), and end this process."""
    from .cuda import cuda_of
    from .runtime import context, find_device

    device = find_device(address)
    cuda = cuda_of(device)
    assert cuda is not None, address
    try:
        import_shared(context(device), cuda, LARGE)
    except CudaError:
        os._exit(_NO_MEMORY)
    os._exit(0)  # drivers' ends may crash, which is not what was asked


def _key(device: cl.Device) -> str:
    """What the answer may depend on: the device, its driver, and which GPUs the host has."""
    try:
        beside = sorted(path.name for path in Path("/proc/driver/nvidia/gpus").iterdir())
    except OSError:
        beside = []
    return hashlib.sha256(repr((device.name, device.driver_version, beside)).encode()).hexdigest()[:16]


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("convdispatch")) / "imports"
