"""The user's folders, and one for caches where the user's own cannot be written: read-only systems, containers,
accounts without a home.

pyopencl caches its generated calls in a folder of the user's cache, and calls no kernel if it cannot create the folder.
So before ``pyopencl.invoker`` is imported, and if that folder cannot be written, the whole cache moves to a folder
among the temporary files. Its files are executed, so it must belong to the user and be closed to others.
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
_HOMES = (_VARIABLE, "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME", "APPDATA", "LOCALAPPDATA", "USERPROFILE")
"""The environment variables that decide where a user's folders are."""


def user_folder(kind: str) -> Path:
    """The user's folder of a kind (``cache``, ``config`` or ``data``) for this library."""
    return _user_folder(kind, *map(os.environ.get, _HOMES))


@functools.lru_cache(maxsize=16)
def _user_folder(kind: str, *_: str | None) -> Path:
    """The folder for these environment variables, cached because that is as slow as reading a file."""
    return Path(getattr(platformdirs, f"user_{kind}_dir")("convdispatch"))


@functools.lru_cache(maxsize=1)
def provide_cache() -> None:
    """Move the process's caches to ``temporary()`` where the user's cannot be written, with one warning."""
    user_cache = Path(platformdirs.user_cache_dir("pytools", "pytools"))
    reason = _refusal(user_cache)
    # pyopencl.invoker chooses its cache folder when it is imported
    if reason is None or "pyopencl.invoker" in sys.modules:
        return
    folder = temporary()
    os.environ[_VARIABLE] = str(folder)
    # On some systems platformdirs ignores XDG_CACHE_HOME.
    if _refusal(Path(platformdirs.user_cache_dir("pytools", "pytools"))):
        os.environ["PYOPENCL_NO_CACHE"] = "1"
    message = f"the cache {user_cache} cannot be written ({reason}), {folder} is used: {_VARIABLE} names another"
    warnings.warn(message, ConvDispatchWarning, stacklevel=2)


def _refusal(folder: Path) -> str | None:
    """The reason why a folder, which is created if it is missing, cannot be written; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def temporary() -> Path:
    """A folder among the temporary files that is this user's alone: the same for every process where that is safe."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"convdispatch-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == user:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="convdispatch-"))
