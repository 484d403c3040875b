"""Machine code that CUDA's driver makes of PTX, kept on disk and in plan packs: a later process only loads it.

Assembling takes the driver 20 to 400 ms a program, one after the other within a process; loading what was assembled
takes a millisecond. The driver keeps a cache of its own, but no pack holds that, and a container begins without it.
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

_FORM = b"convdispatch machine code 1\n"
_ANY = "any machine code"
"""The key in a collection's programs that says that the collection holds machine code."""
_MISSING = "a program without machine code"
"""The key in a collection's programs that says that not all of them have machine code."""
_SHARED = re.compile(r"\.shared\b[^;\[]*\[(\d+)\]")
_PTX = 1
"""CUDA's constant CU_JIT_INPUT_PTX."""
_MAJOR, _MINOR = 75, 76
"""CUDA's constants CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


@functools.lru_cache(maxsize=16)
def _identity(cuda: Cuda) -> str:
    """What machine code depends on besides its PTX: the driver that assembles it, and the kind of device."""
    version, found = c_int(), []
    cuda("cuDriverGetVersion", byref(version))
    for attribute in (_MAJOR, _MINOR):
        value = c_int()
        cuda("cuDeviceGetAttribute", byref(value), attribute, cuda.number)
        found.append(value.value)
    return f"driver {version.value}, compute capability {found[0]}.{found[1]}"


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
    place = folder()
    path = None if place is None else place / f"{key[:40]}.cubin"
    if path is None and not artifact_store.gathers():
        return None  # without a folder of ours, the CUDA driver's own cache has to do
    found = None if path is None else read_file(path, _FORM)
    if found is None:
        with phase("assemble"):
            found = _assembled(cuda, text)
        if found is not None and path is not None:
            write_file(path, _FORM, found)
    if found is not None:
        code = found
        artifact_store.note("programs", key, lambda: code)
    artifact_store.note("programs", _MISSING if found is None else _ANY, lambda: b"1")
    return found


def carried() -> bool:
    """Whether a pack in force holds machine code of all its programs, so that loading them takes no assembling."""
    return artifact_store.find("programs", _ANY) is not None and artifact_store.find("programs", _MISSING) is None


def note(cuda: Cuda, text: str) -> None:
    """Add the machine code of a text that this process loaded before to the collections that are gathering."""
    if artifact_store.gathers():
        machine_code(cuda, text)


def _assembled(cuda: Cuda, text: str) -> bytes | None:
    """The machine code made by the driver's linker, which alone returns what it makes; None where it refuses what its
    loader takes: it allows a kernel less static shared memory."""
    if sum(map(int, _SHARED.findall(text))) > MOST_STATIC_SHARED:
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
            given = ctypes.cast(c_char_p(content), c_void_p)
            cuda("cuLinkAddData_v2", state, _PTX, given, len(content), b"convdispatch", 0, None, None)
            code, size = c_void_p(), c_size_t()
            cuda("cuLinkComplete", state, byref(code), byref(size))
            return ctypes.string_at(code, size.value) if code.value and size.value else None
        finally:
            cuda("cuLinkDestroy", state)
