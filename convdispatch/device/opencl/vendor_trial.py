"""Loads a vendor's OpenCL library in a child process first: one that crashes, exits or hangs ends only the child.

Asked once for each library as it lies on the disk; the answer is kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import platformdirs

from .. import jsontext, plainfile
from ..cache_home import temporary

LOAD_S = 60.0
"""Seconds that a library may take to load and to name its platforms, on a busy machine."""
_LINKER = Path("/etc/ld.so.cache")
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
sys.stdout.write("survived")
sys.stdout.flush()
os._exit(0)
"""


@functools.lru_cache(maxsize=64)
def how_it_ends(library: str) -> str | None:
    """How a library ends the process that loads it, in words; None where it does not, whether it loads or not."""
    key, known = _key(library), _read()
    if key not in known:
        known = {**_read(), key: _try(library)}
        _write(dict(list(known.items())[-64:]))
    return known[key] or None


def forget() -> None:
    """Try every library anew."""
    how_it_ends.cache_clear()
    for file in _files():
        with contextlib.suppress(OSError):
            file.unlink()


def _try(library: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", _CHILD, library]
    try:
        child = subprocess.run(command, capture_output=True, timeout=LOAD_S)
    except subprocess.TimeoutExpired:
        return f"it hangs as it loads: no answer within {LOAD_S:g} s"
    except OSError:  # no child process can be started, so nothing is known about the library
        return ""
    if child.returncode < 0:
        return f"it crashes as it loads ({signal.Signals(-child.returncode).name})"
    return "" if b"survived" in child.stdout else f"it ends the process as it loads (exit {child.returncode})"


def _key(library: str) -> str:
    """A key of the library's file as it is on the disk; for a bare name, what the linker knows of it."""
    for path in (Path(library), _LINKER):
        with contextlib.suppress(OSError):
            stated = path.stat()
            return f"{library} {stated.st_mtime_ns} {stated.st_size}"
    return library


def _files() -> list[Path]:
    name = f"vendors-{os.getuid() if hasattr(os, 'getuid') else 0}.json"
    return [
        Path(platformdirs.user_cache_dir("convdispatch")) / name,
        temporary() / name,
    ]


def _read() -> dict[str, str]:
    for file in _files():
        with contextlib.suppress(OSError, ValueError):
            known = jsontext.loads(plainfile.read_text(file))
            if isinstance(known, dict) and all(isinstance(value, str) for value in known.values()):
                return known
    return {}


def _write(known: dict[str, str]) -> None:
    for file in _files():
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(known), encoding="utf-8")
            draft.replace(file)
            return
