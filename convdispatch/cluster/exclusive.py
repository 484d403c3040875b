"""One at a time on one machine: whoever measures on a device holds a lock, also against workers of other clusters.

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
except ImportError:  # Windows: workers of one device are kept apart by Dask's resources alone
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def exclusive(silicon: str) -> Iterator[None]:
    """Inside the block no other process of this user on this machine is in such a block; waits for its turn."""
    if fcntl is None:
        yield
        return
    name = re.sub(r"[^a-z0-9]+", "-", silicon.lower())
    with (temporary() / f"measuring-{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
