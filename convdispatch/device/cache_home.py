"""A place for caches where the user's own cannot be written: read-only systems, containers, accounts without a home.

pyopencl keeps its generated calls in a folder of the user's cache and calls no kernel where that cannot be made. So
before that part of it is imported, and where the folder refuses, the whole cache moves to a folder of the user's among
the temporary files. What lies in it is run, so it must be the user's own and closed to others.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import tempfile
import warnings
from pathlib import Path

import platformdirs

from ..api.errors import ConvDispatchWarning

_VARIABLE = "XDG_CACHE_HOME"


@functools.lru_cache(maxsize=1)
def provide_cache() -> None:
    """Move the process's caches to ``temporary()`` where the user's cannot be written, with one warning."""
    wanted = Path(platformdirs.user_cache_dir("pytools", "pytools"))
    reason = _refusal(wanted)
    # pyopencl.invoker chooses its cache folder when it is imported
    if reason is None or "pyopencl.invoker" in sys.modules:
        return
    place = temporary()
    os.environ[_VARIABLE] = str(place)
    # On this system platformdirs ignores XDG_CACHE_HOME.
    if _refusal(Path(platformdirs.user_cache_dir("pytools", "pytools"))):
        os.environ["PYOPENCL_NO_CACHE"] = "1"
    words = f"the cache {wanted} cannot be written ({reason}): caches are in {place} ({_VARIABLE} names another place)"
    warnings.warn(words, ConvDispatchWarning, stacklevel=2)


def _refusal(folder: Path) -> str | None:
    """Why nothing can be written into a folder, which is made where it is missing; None where something can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def temporary() -> Path:
    """A folder among the temporary files that is this user's alone: the same for every process where that is safe."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(tempfile.gettempdir()) / f"convdispatch-{user}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == user:
            return place
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="convdispatch-"))
