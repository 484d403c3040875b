"""Reads files that others may have put there: regular files only, and no more of one than it may have.

A pipe, a device or a folder in a file's place would hang its reader, or never end. Whatever is wrong is an OSError.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 256 << 20
"""The most bytes that are read of a file of records, of a trace or of a report."""


def must_be_plain(path: str | Path, most: int = MOST_BYTES) -> None:
    """Raise OSError where ``path`` is no regular file, or larger than ``most`` bytes."""
    found = Path(path).stat()
    _check(found, most)


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """A regular file's content. Raises OSError, also where it is none or has more than ``most`` bytes."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(handle, "rb") as file:
        _check(os.fstat(handle), most)
        data = file.read(most + 1)
    if len(data) > most:  # the file has grown, or states a size of 0, as the files of /proc do
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def read_text(path: str | Path, most: int = MOST_BYTES) -> str:
    """A regular file's text. Raises OSError, and UnicodeDecodeError where it is no UTF-8."""
    return read_bytes(path, most).decode("utf-8")


def _check(found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, at most {most} are read")
