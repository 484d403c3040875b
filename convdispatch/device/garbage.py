"""Garbage collection is put off while a process starts.

A full collection scans all objects, which takes 0.1 s once PyTorch is loaded. Imports, and plans of a net's first
step, create so many objects that one or two full collections would run meanwhile and free next to nothing. At the end
the new objects are moved to the oldest generation, because the next collection would scan all of them.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_MIN_NEW_OBJECTS = 10_000
"""New objects from which moving them to the oldest generation pays; Python itself collects after 700 to 2000."""
_MIN_PROGRAM_FROZEN = 1_000
"""More frozen objects than the interpreter itself has (375 in Python 3.12), so that the program froze some."""
_lock = threading.RLock()
_blocks = 0
_was_enabled = False
"""Whether garbage was collected before the outermost block."""


@contextlib.contextmanager
def collection_put_off() -> Iterator[None]:
    """Python collects no garbage inside the block, in any thread. Where it did not before, it does not after."""
    global _blocks, _was_enabled
    with _lock:
        if not _blocks:
            _was_enabled = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and _was_enabled:
                if gc.get_count()[0] > _MIN_NEW_OBJECTS and gc.get_freeze_count() < _MIN_PROGRAM_FROZEN:
                    # freeze() and unfreeze() move all objects to the oldest generation, which full collections scan.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
