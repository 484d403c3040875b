"""Machine code that CUDA's driver assembles from PTX, cached on disk and in plan packs: a later process only loads it.

Assembling takes the driver 20 to 400 ms a program, one after the other within a process; loading machine code takes a
millisecond. The driver's own cache is no replacement: plan packs lack it, and a new container begins without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

from ..cache import artifact_store
from ..cuda_driver import Cuda, CudaError
from ..startup_profile import phase
from .ptx import MOST_STATIC_SHARED

_FILE_HEADER = b"convdispatch machine code 1\n"
_ANY = "any machine code"
"""The key in a collection's programs that says that the collection holds machine code."""
_MISSING = "a program without machine code"
"""The key in a collection's programs that says that some program lacks machine code."""
_SHARED_ARRAY = re.compile(r"\.shared\b[^;\[]*\[(\d+)\]")
_INPUT_PTX = 1  # CUDA's constant CU_JIT_INPUT_PTX
_MAJOR = 75  # CUDA's constant CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_MINOR = 76  # CUDA's constant CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR


@functools.lru_cache(maxsize=16)
def _identity(cuda: Cuda) -> str:
    """The driver's version and the compute capability: what machine code depends on besides its PTX."""
    version, capability = c_int(), []
    cuda("cuDriverGetVersion", byref(version))
    for attribute in (_MAJOR, _MINOR):
        value = c_int()
        cuda("cuDeviceGetAttribute", byref(value), attribute, cuda.number)
        capability.append(value.value)
    return f"driver {version.value}, compute capability {capability[0]}.{capability[1]}"


def _key(cuda: Cuda, text: str) -> str:
    return artifact_store.key_of("machine code", text, _identity(cuda))


def machine_code(cuda: Cuda, text: str) -> bytes | None:
    """The machine code of a PTX text: from a plan pack, from its cache file, or assembled now and cached; None where
    nothing is cached, and where the driver does not return it."""
    from ..programs.binary_cache import folder, read_file, write_file

    try:
        key = _key(cuda, text)
    except CudaError:
        return None
    cached = artifact_store.find("programs", key)
    if cached is not None:
        return bytes(cached[0])
    cache_folder = folder()
    path = None if cache_folder is None else cache_folder / f"{key[:40]}.cubin"
    if path is None and not artifact_store.gathers():
        return None  # there is no cache folder, so the CUDA driver assembles and caches the code itself
    assembled = None if path is None else read_file(path, _FILE_HEADER)
    if assembled is None:
        with phase("assemble"):
            assembled = _assembled(cuda, text)
        if assembled is not None and path is not None:
            write_file(path, _FILE_HEADER, assembled)
    if assembled is not None:
        code = assembled
        artifact_store.note("programs", key, lambda: code)
    artifact_store.note("programs", _MISSING if assembled is None else _ANY, lambda: b"1")
    return assembled


def carried() -> bool:
    """Whether a plan pack in force has machine code of all its programs, so that loading needs no assembling."""
    return artifact_store.find("programs", _ANY) is not None and artifact_store.find("programs", _MISSING) is None


def note(cuda: Cuda, text: str) -> None:
    """Add the machine code of a text that this process loaded before to the collections that are gathering."""
    if artifact_store.gathers():
        machine_code(cuda, text)


def _assembled(cuda: Cuda, text: str) -> bytes | None:
    """The machine code from the driver's linker (its loader returns none); None for a text that the linker refuses,
    because it allows a kernel less static shared memory than the loader."""
    if sum(map(int, _SHARED_ARRAY.findall(text))) > MOST_STATIC_SHARED:
        return None
    with contextlib.suppress(CudaError):
        return _linked(cuda, text)
    return None


def _linked(cuda: Cuda, text: str) -> bytes | None:
    """Returns the driver's linker's machine code of a PTX text. Raises CudaError."""
    state, content = c_void_p(), text.encode() + b"\0"
    with cuda.current():
        cuda("cuLinkCreate_v2", c_uint(0), None, None, byref(state))
        try:
            data = ctypes.cast(c_char_p(content), c_void_p)
            cuda("cuLinkAddData_v2", state, _INPUT_PTX, data, len(content), b"convdispatch", 0, None, None)
            code, size = c_void_p(), c_size_t()
            cuda("cuLinkComplete", state, byref(code), byref(size))
            return ctypes.string_at(code, size.value) if code.value and size.value else None
        finally:
            cuda("cuLinkDestroy", state)
