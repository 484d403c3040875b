"""Garbage collection is put off while a process starts.

A full collection walks all objects that there are, which with PyTorch's takes 0.1 s. Imports, and plans of a net's
first step, make enough new ones that one or two would fall among them, and find next to nothing. What is new at the
end counts as old: the next collection would walk all of it.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_MANY = 10_000
"""The number of new objects from which the freeze below is worth its time; Python itself collects after 700 to 2000."""
_INTERPRETERS = 1_000
"""More frozen objects than a process may begin with, before anybody froze any: 375 under Python 3.12."""
_lock = threading.RLock()
_blocks = 0
_collects = False
"""Whether garbage was collected before the outermost block."""


@contextlib.contextmanager
def collection_put_off() -> Iterator[None]:
    """Python collects no garbage inside the block, in any thread. Where it did not before, it does not after."""
    global _blocks, _collects
    with _lock:
        if not _blocks:
            _collects = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and _collects:
                if gc.get_count()[0] > _MANY and gc.get_freeze_count() < _INTERPRETERS:
                    # freeze() and unfreeze() move all objects to the oldest generation, which full collections scan.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
