"""OpenCL's imports of memory that CUDA made, and whether large ones are safe on this machine.

NVIDIA's OpenCL (driver 580.159) ends the process when it imports 512 MiB or more on a host with two H200, whichever of
them ``CUDA_VISIBLE_DEVICES`` shows; on a host with one it does not. Nothing tells the two apart beforehand. So a child
process tries it when large memory is first wanted, and what came of it is kept in the user's cache until the host
starts again. ``CONVDISPATCH_LARGE_IMPORTS``, 0 or 1, answers instead.
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
from typing import TYPE_CHECKING

import platformdirs

from ...api import settings
from ...api.errors import ConvDispatchWarning
from ..cuda_driver import Cuda, CudaError, Shared
from ..opencl.platforms import address

if TYPE_CHECKING:
    import pyopencl as cl

USUAL = 384 << 20
"""Bytes of the largest import that ended no process anywhere."""
_EXTERNAL_FD = 0x2060
"""OpenCL's constant CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR."""
_SECONDS = 60
_CHILD = ("-m", "convdispatch.device.cuda.import_trial")
REFUSED, NO_MEMORY = 3, 4
"""The child's exit statuses where OpenCL answers with an error, and where there is no memory to try it with."""
_CRASHES = tuple(-getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS") if hasattr(signal, name))
_ANSWERS = {0: "safe", REFUSED: "refused", **dict.fromkeys(_CRASHES, "crashes")}
"""The cached answer by the child's exit status; any other status says nothing about the driver."""
_lock = threading.Lock()
_known: dict[cl.Device, bool] = {}


def import_shared(context: cl.Context, cuda: Cuda, size: int) -> tuple[Shared, cl.Buffer]:
    """New memory of CUDA's, and OpenCL's buffer over it. Raises CudaError."""
    shared = cuda.shared(size)
    try:
        return shared, opencl_buffer(context, shared)
    except CudaError:
        shared.release()
        raise


def opencl_buffer(context: cl.Context, shared: Shared) -> cl.Buffer:
    """OpenCL's buffer of memory that CUDA made. Raises CudaError."""
    import pyopencl as cl

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
        if device not in _known:
            _known[device] = _large_are_safe(device)
        return _known[device]


def _large_are_safe(device: cl.Device) -> bool:
    chosen = settings.LARGE_IMPORTS.value()
    if chosen is not None:
        return bool(chosen)
    cached = _folder() / _key(device)
    try:
        answer = cached.read_text()
        if answer in _ANSWERS.values():
            return answer == "safe"
    except (OSError, UnicodeDecodeError):
        pass
    status, said = _tried(device)
    if status not in _ANSWERS:
        warnings.warn(
            f"whether OpenCL may import large memory of CUDA's on {device.name.strip()} could not be tried ({said}): "
            f"for now blocks of more than {USUAL >> 20} MiB are OpenCL's alone; "
            "CONVDISPATCH_LARGE_IMPORTS=1 or 0 says it",
            ConvDispatchWarning,
            stacklevel=2,
        )
        return False
    draft = cached.with_suffix(f".{os.getpid()}")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(_ANSWERS[status])
        draft.replace(cached)
    except OSError:  # the cache folder cannot be written, so the next process tries the import again
        pass
    return status == 0


def _tried(device: cl.Device) -> tuple[int | None, str]:
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
            status = child.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()  # a child process that hangs in the driver does not end, and is left behind
            return None, f"no answer within {_SECONDS} s"
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    return status, lines[-1] if lines else f"exit status {status}"


def _key(device: cl.Device) -> str:
    """The key of the cached answer: the device, its driver, and the host's boot."""
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        host = platform.node()
    return hashlib.sha256(repr((device.name, device.driver_version, host)).encode()).hexdigest()[:16]


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("convdispatch")) / "imports"
