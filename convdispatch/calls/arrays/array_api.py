"""Arrays of any library with DLPack and the array API, such as JAX's, without a copy of operands or results.

Such arrays name no stream: the work goes to a stream of this thread, which DLPack's protocol orders after the commands
that write the operands and before those that read the result.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ...api.errors import InvalidArgument
from ...device.places.stream import Stream, StreamMemory, StreamPlace, dlpack_kind
from . import interchange
from .array_library import Library
from .operands import contiguous_strides

_LEGACY = 1
"""DLPack's number for the default stream, whose handle is 0."""
_threads = threading.local()


def own_stream(place: StreamPlace) -> Stream:
    """This thread's stream on a device."""
    streams = _threads.__dict__.setdefault("streams", {})
    if place not in streams:
        streams[place] = place.new_stream()
    return streams[place]


class Exported:
    """Memory on a stream as an object with ``__dlpack__``: the consumer's stream waits for the work so far."""

    def __init__(self, memory: StreamMemory, shape: tuple[int, ...], dtype: np.dtype, stream: Stream) -> None:
        self._memory, self.shape, self.dtype, self._stream = memory, shape, dtype, stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._stream.place.dlpack, self._stream.place.number

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        if stream != -1:
            self._stream.before(0 if stream in (None, _LEGACY) else int(stream))
        location = (*self.__dlpack_device__(), self._memory.address)
        strides = contiguous_strides(self.shape, self.dtype.itemsize)
        return interchange.capsule(location, self.shape, strides, self.dtype, self._memory)


class Exchange(Library):
    """A library whose arrays have ``__dlpack__`` and ``__array_namespace__``."""

    immutable = copies = True

    def __init__(self, kind: type) -> None:
        self.name = f"{kind.__module__.partition('.')[0]} array"
        self._devices: dict[tuple[int, int], StreamPlace | None] = {}
        """Devices by DLPack's type and number."""

    def device(self, array: Any) -> StreamPlace | None:
        kind, number = where = array.__dlpack_device__()
        if where not in self._devices:
            known = dlpack_kind(int(kind))
            if known is None and int(kind) != interchange.CPU:
                raise InvalidArgument(f"arrays lie on the CPU or a CUDA device, got DLPack's device ({kind}, {number})")
            self._devices[where] = None if known is None else known.numbered(int(number))
        return self._devices[where]

    def title(self, device: Any) -> str:
        return str(device)

    def stream(self, array: Any, device: Any) -> Stream:
        return own_stream(device)

    def pointer(self, array: Any, stream: Stream) -> tuple[int, Any]:
        """See Library; for an array that is not contiguous, the address of a copy."""
        view, owner = interchange.imported(array.__dlpack__(stream=stream.handle or _LEGACY))
        if not view.contiguous:
            return self.pointer(self.compact(array), stream)
        return view.address, (owner, array)

    def compact(self, array: Any) -> Any:
        return array.__array_namespace__().asarray(array, copy=True)

    def empty(self, shape: tuple[int, ...], like: Any, stream: Stream, dtype: str | None = None) -> Any:
        names = like.__array_namespace__()
        return names.empty(shape, dtype=getattr(names, dtype) if dtype else like.dtype, device=like.device)

    def finished(self, array: Any, stream: Stream) -> Any:
        """A new array over the memory of the written array, whose readers wait for the stream."""
        address, held = self.pointer(array, stream)
        shape, dtype = tuple(array.shape), np.dtype(array.dtype)
        memory = StreamMemory(address, array.nbytes, held)
        return array.__array_namespace__().from_dlpack(Exported(memory, shape, dtype, stream))

    def keep(self, stream: Stream, held: Any) -> None:
        """Keep operands alive until the stream's work so far is done, because their library would reuse the memory."""
        stream.keep(held)

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        namespace = like.__array_namespace__()
        try:
            return namespace.from_dlpack(array)
        except Exception:  # from_dlpack refuses some dtypes and alignments; asarray then makes a copy
            return namespace.asarray(array)

    def adopted(self, array: np.ndarray, like: Any) -> Any:
        if self.device(like) is None:
            return self.from_host(array, like)
        return like.__array_namespace__().asarray(array, device=like.device)

    def fetch(self, array: Any) -> np.ndarray:
        return np.asarray(array)
