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
from ..cache.keys import key_of
from ..cache.store import PROGRAMS
from ..cuda_driver import Cuda, CudaError
from ..startup_profile import phase
from .ptx import MOST_STATIC_SHARED

_ANY = "any machine code"
"""The key in a collection's programs that says that the collection holds machine code."""
_MISSING = "a program without machine code"
"""The key in a collection's programs that says that some program lacks machine code."""
_SHARED_ARRAY = re.compile(r"\.shared\b[^;\[]*\[(\d+)\]")
_WHOLE_PROGRAM = "setmaxnreg"
"""An instruction that the driver's linker ignores, because a program that it links may consist of several parts:
kernels with it then spill, and took twice as long. The driver's loader assembles whole programs."""
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


def machine_code(cuda: Cuda, text: str) -> bytes | None:
    """The machine code of a PTX text: from a plan pack, from its cache file, or assembled now and cached; None where
    nothing is cached, and where the driver does not return it."""
    try:
        key = key_of("machine code", text, _identity(cuda))
    except CudaError:
        return None
    if PROGRAMS.folder() is None and not artifact_store.gathers() and not artifact_store.find("programs", key):
        return None  # nothing would hold the code, so the CUDA driver assembles and caches it itself

    code = PROGRAMS.cached(key, key, functools.partial(_assembled, cuda, text), "machine code")
    artifact_store.note("programs", _MISSING if code is None else _ANY, lambda: b"1")
    return None if code is None else bytes(code)


def carried() -> bool:
    """Whether a plan pack in force has machine code of all its programs, so that loading needs no assembling."""
    return artifact_store.find("programs", _ANY) is not None and artifact_store.find("programs", _MISSING) is None


def note(cuda: Cuda, text: str) -> None:
    """Add the machine code of a text that this process loaded before to the collections that are gathering."""
    if artifact_store.gathers():
        machine_code(cuda, text)


def _assembled(cuda: Cuda, text: str) -> bytes | None:
    """The machine code from the driver's linker (its loader returns none); None for a text that the linker refuses,
    because it allows a kernel less static shared memory than the loader, or assembles to slower code."""
    if _WHOLE_PROGRAM in text or sum(map(int, _SHARED_ARRAY.findall(text))) > MOST_STATIC_SHARED:
        return None
    state, content = c_void_p(), text.encode() + b"\0"
    with contextlib.suppress(CudaError), phase("assemble"), cuda.current():
        cuda("cuLinkCreate_v2", c_uint(0), None, None, byref(state))
        try:
            data = ctypes.cast(c_char_p(content), c_void_p)
            cuda("cuLinkAddData_v2", state, _INPUT_PTX, data, len(content), b"convdispatch", 0, None, None)
            code, size = c_void_p(), c_size_t()
            cuda("cuLinkComplete", state, byref(code), byref(size))
            return ctypes.string_at(code, size.value) if code.value and size.value else None
        finally:
            cuda("cuLinkDestroy", state)
    return None
