"""Loads a vendor's OpenCL library in a child process first: if it crashes, exits or hangs, only the child ends.

Each library is tried once for each version of its file; the result is in the store's table of trials.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from ..cache.keys import key_of
from ..cache.store import TRIALS
from ..child import trial

LOAD_S = 60.0
"""The most seconds that a library may take to load and to list its platforms, on a busy machine."""
_LINKER_CACHE = Path("/etc/ld.so.cache")
_CHILD = """
import ctypes, os, sys
try:
    library = ctypes.CDLL(sys.argv[1])
    address = library.clGetExtensionFunctionAddress
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    found = address(b"clIcdGetPlatformIDsKHR")
    if found:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p)
        kind(found)(0, None, ctypes.addressof(ctypes.c_uint()))
except (OSError, AttributeError):
    pass  # what the linker refuses, the OpenCL loader passes over
sys.stdout.write("\\2survived")
sys.stdout.flush()
os._exit(0)
"""


@functools.lru_cache(maxsize=64)
def how_it_ends(library: str) -> str | None:
    """A text on how a library ends the process that loads it; None if it does not, whether it loads or not."""
    key = key_of("vendor library", _file_state(library))
    fault = (TRIALS.get(key) or {}).get("fault")
    if not isinstance(fault, str):
        fault = _try(library)
        if fault is not None:
            TRIALS.put(key, {"fault": fault}, f"loading {library}")
    return fault or None


def _try(library: str) -> str | None:
    return trial(["-I", "-S", "-c", _CHILD, library], "loads", LOAD_S)


def _file_state(library: str) -> str:
    """A library's name with the time and size of its file, or for a bare name with those of the linker's cache."""
    for path in (Path(library), _LINKER_CACHE):
        with contextlib.suppress(OSError):
            status = path.stat()
            return f"{library} {status.st_mtime_ns} {status.st_size}"
    return library
