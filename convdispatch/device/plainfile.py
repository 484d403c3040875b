"""Reads files that others may have written: regular files only, up to a limit of bytes; and writes files whole.

Reading a pipe or a device instead of a regular file could hang or never end. Whatever is wrong raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 256 << 20
"""The most bytes that a file of records, a trace or a report may have."""
DRAFT = ".part"
"""The suffix of a file that is being written; one that a killed process left may be deleted."""


def must_be_plain(path: str | Path, most: int = MOST_BYTES) -> None:
    """Raise OSError where ``path`` is no regular file, or larger than ``most`` bytes."""
    status = Path(path).stat()
    _check(status, most)


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """A regular file's content. Raises OSError, also if the path is no regular file or has more than ``most`` bytes."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        status = os.fstat(handle)
        _check(status, most)
        # A file object would take as long again, for a thousand small files of a cache.
        data = os.read(handle, status.st_size + 1)
        while len(data) != status.st_size and len(data) <= most:
            part = os.read(handle, min(1 << 20, most + 1 - len(data)))
            if not part:
                break
            data += part
    finally:
        os.close(handle)
    if len(data) > most:  # the file has grown since, or states a size of 0 as files in /proc do
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def read_text(path: str | Path, most: int = MOST_BYTES) -> str:
    """A regular file's text. Raises OSError, and UnicodeDecodeError where it is no UTF-8."""
    return read_bytes(path, most).decode("utf-8")


def _check(status: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, at most {most} are read")


def publish(path: str | Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write a file whole or not at all, in a folder that is created if it is missing. Raises OSError.

    ``durable``: the file is whole after a power failure too.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}{DRAFT}")
    try:
        with draft.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if durable:
        # Not every file system supports fsync of a folder.
        with contextlib.suppress(OSError):
            handle = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
