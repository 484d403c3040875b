"""One measurement at a time per device of a machine: a process that measures holds a lock, also against other clusters.

Dask's resources keep two tasks of one worker apart; the lock keeps apart two workers that offer the same device, and
two runtimes of one CPU, which share its processors. It is a lock of the system on a file, so it ends with its holder.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from ..device.cache_home import temporary

try:
    import fcntl
except ImportError:  # Windows has no ``fcntl`` file locks, so only Dask's resources keep two tasks of a worker apart.
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def exclusive(silicon: str) -> Iterator[None]:
    """Hold the lock of a piece of silicon inside the block; waits while another process of this user holds it."""
    if fcntl is None:
        yield
        return
    name = re.sub(r"[^a-z0-9]+", "-", silicon.lower())
    with (temporary() / f"measuring-{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
