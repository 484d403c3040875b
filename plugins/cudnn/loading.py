"""Loads a plan's kernels when it is made.

CUDA loads a kernel at its first launch, which then waits until the context has no work. Left to the first enqueue that
is a wait for all other queues, and one for ever where their work waits for an event that the host would complete next.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from ctypes import byref, c_ulonglong, c_void_p
from typing import Any

from convdispatch.api import ConvDispatchError

from .graph import variant_pack
from .library import Descriptor, library

__all__ = ["load"]

_NON_BLOCKING = 1
_ALIGNED = 256
_ROOM = 1 << 20
"""Bytes at each address of a capture. Nothing is read or written there, but an engine may begin by setting memory to
zero, and CUDA captures that within an allocation only."""


def load(cuda: Any, handle: c_void_p, plan: Descriptor, sizes: Sequence[int], way: str) -> bool:
    """Have the driver load a plan's kernels, waiting for the device if need be; whether it did.

    ``sizes`` are the bytes of x, w, y and workspace. The ``"graph"`` way captures the work and makes it ready to run;
    an engine that cannot be captured is run once, as all are in the ``"run"`` way, on memory taken for the moment.
    Where that is short nothing is loaded: then the plan's first enqueue may wait.

    Raises CudnnError where the engine cannot run after all.
    """
    return (way == "graph" and _captured(cuda, handle, plan, sizes)) or _run(cuda, handle, plan, sizes)


def _captured(cuda: Any, handle: c_void_p, plan: Descriptor, sizes: Sequence[int]) -> bool:
    try:
        start = _ground(cuda)
        places = [start + number * _ROOM if size else 0 for number, size in enumerate(sizes)]
        with _on_own_stream(cuda, handle) as stream:
            return cuda.captured(stream, lambda: _execute(handle, plan, places))
    except ConvDispatchError:
        return False


def _run(cuda: Any, handle: c_void_p, plan: Descriptor, sizes: Sequence[int]) -> bool:
    places, total = [], 0
    for size in sizes:
        places.append(total)
        total += -(-size // _ALIGNED) * _ALIGNED
    block = c_ulonglong()
    try:
        cuda("cuMemAlloc_v2", byref(block), total)
    except ConvDispatchError:
        return False
    try:
        with _on_own_stream(cuda, handle) as stream:
            _execute(handle, plan, [block.value + place if size else 0 for place, size in zip(places, sizes)])
            cuda("cuStreamSynchronize", stream)
    finally:
        cuda("cuMemFree_v2", block)
    return True


@functools.lru_cache(maxsize=16)
def _ground(cuda: Any) -> int:
    """Start of a device's memory that captures name, made once."""
    block = c_ulonglong()
    cuda("cuMemAlloc_v2", byref(block), 4 * _ROOM)
    return block.value


@contextlib.contextmanager
def _on_own_stream(cuda: Any, handle: c_void_p) -> Iterator[c_void_p]:
    """A new stream for a handle, for the moment: a capture that fails may spoil it."""
    stream = cuda.make("cuStreamCreate", _NON_BLOCKING)
    try:
        library()("cudnnSetStream", handle, stream)
        yield stream
    finally:
        library()("cudnnSetStream", handle, None)
        cuda("cuStreamDestroy_v2", stream)


def _execute(handle: c_void_p, plan: Descriptor, places: Sequence[int]) -> None:
    library()("cudnnBackendExecute", handle, plan.handle, variant_pack(places).handle)
