"""The interface to another library's arrays: their device, address and stream, and new arrays of the same library.

A device with streams is a number, unless a library knows several kinds of them: then it is a ``StreamPlace``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...api.dtypes import dtype_name
from ...device.places.stream import Stream, stream_kind


class Library:
    """Operations on one library's arrays."""

    name: str
    immutable = False
    """Whether the library's arrays are immutable, so that they cannot be ``out``."""
    records_gradients = False
    """Whether the library's arrays are PyTorch tensors, whose changes since the last call are quick to detect."""

    stream_kind = "cuda"
    """The kind of the streams of the library's devices, a name in ``KINDS`` of ``device/places/stream``."""

    def device(self, array: Any) -> Any:
        """The array's device with streams; None for host memory."""
        raise NotImplementedError

    def title(self, device: Any) -> str:
        """What errors call a device with streams."""
        return f"{stream_kind(self.stream_kind).title} {device}"

    def place(self, array: Any) -> Any:
        """The ``device`` of an operand; None for host memory, for a missing operand and for NumPy constants."""
        if array is None:
            return None
        try:
            return self.device(array)
        except AttributeError:  # `array` is a Constant, or no array at all
            try:
                return self.device(getattr(array, "array", None))
            except AttributeError:
                return None

    copies = False
    """Whether reading an array's address may make a copy, so that it is read only once a call."""

    def places(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """The ``place`` of each operand, and whatever else distinguishes such operands from others."""
        return (*[self.place(array) for array in given], *map(type, given))

    def pointer(self, array: Any, stream: Stream) -> tuple[int, Any]:
        """Returns (address of the first element, an object that must live until the work is on the stream); the address
        is 0 for an array that is not contiguous in C order."""
        raise NotImplementedError

    def pointers(self, arrays: Sequence[Any], stream: Stream) -> list[int]:
        """The addresses of arrays that live until the work is launched; 0 for an array that is not contiguous."""
        return [self.pointer(array, stream)[0] for array in arrays]

    def dtype(self, array: Any) -> str:
        """The dtype's name: the header's, or NumPy's own."""
        return dtype_name(np.dtype(array.dtype))

    def stream(self, array: Any, device: Any) -> Stream:
        """The caller's current stream on the array's device."""
        raise NotImplementedError

    def is_current(self, stream: Stream) -> bool:
        """Whether the stream's device is the calling thread's current device."""
        return stream.place.is_current()

    def compact(self, array: Any) -> Any:
        """A contiguous copy on the device, in the order of the current stream."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], like: Any, stream: Stream, dtype: str | None = None) -> Any:
        """A new array with undefined values on the device of ``like``, of its dtype or another."""
        raise NotImplementedError

    def finished(self, array: Any, stream: Stream) -> Any:
        """The array that the caller gets for a result, its own or one from ``empty``, once the call is launched."""
        return array

    def keep(self, stream: Stream, held: Any) -> None:
        """Keep operands alive while the stream uses them, where the library does not do so itself."""

    def host_address(self, array: Any) -> int | None:
        """The address of a host array that is contiguous in C order; 0 for other arrays. None for a library whose
        arrays are used as NumPy views."""
        return None

    def host(self, array: Any) -> np.ndarray:
        """NumPy's view of an array in host memory."""
        return np.asarray(array)

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        """An array of this library over NumPy's memory."""
        return array

    def adopted(self, array: np.ndarray, like: Any) -> Any:
        """A NumPy array as an array of this library, where ``like`` is; only for libraries of immutable arrays."""
        raise NotImplementedError

    def fetch(self, array: Any) -> np.ndarray:
        """A copy on the host; waits."""
        raise NotImplementedError
