"""Loads a plan's kernels when it is made.

CUDA loads a kernel at its first launch, which then waits until the context has no work. Left to the first enqueue that
is a wait for all other queues, and one for ever where their work waits for an event that the host would complete next.
So a new plan runs once. (Capturing it into a graph that never runs would need no memory; cuDNN 9.19 then corrupted the
heap of its process.)
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_ulonglong, c_void_p
from typing import Any

from convdispatch.api import ConvDispatchError

from .graph import variant_pack
from .library import Descriptor, library

_ALIGNED = 256


def load(cuda: Any, handle: c_void_p, stream: c_void_p, plan: Descriptor, sizes: Sequence[int]) -> bool:
    """Run a plan once on the handle's stream, on memory taken for the moment, and wait; whether there was memory.

    ``sizes`` are the bytes of x, w, y and workspace. Where memory is short nothing is loaded: then the plan's first
    enqueue may wait. Memory is had and given back in the stream's order, which waits for no other stream.

    Raises CudnnError where the engine cannot run after all.
    """
    places, total = [], 0
    for size in sizes:
        places.append(total)
        total += -(-size // _ALIGNED) * _ALIGNED
    block = c_ulonglong()
    try:
        cuda("cuMemAllocAsync", byref(block), total, stream)
    except ConvDispatchError:
        return False
    try:
        pack = variant_pack([block.value + place if size else 0 for place, size in zip(places, sizes)])
        library()("cudnnBackendExecute", handle, plan.handle, pack.handle)
    finally:
        cuda("cuMemFreeAsync", block, stream)
        cuda("cuStreamSynchronize", stream)
    return True
