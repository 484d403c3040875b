"""The libraries whose arrays calls take: PyTorch, CuPy, and any with DLPack and the array API. Copies nothing.

PyTorch and CuPy are used by their own functions, other arrays by ``__dlpack__``. The library of an array's class is
cached; no library is imported that the caller has not imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...api.dtypes import ALL_DTYPES, dtype_name, numpy_dtype
from ...api.errors import InvalidArgument
from ...device.memory.allocator import NoDeviceMemory
from ...device.places.stream import KINDS, Stream, stream_kind
from .array_library import Library

_known: dict[type, Library | None] = {}

_FROM_ML_DTYPES = ("bfloat", "float8")
"""Beginnings of the names of dtypes that NumPy only has from the package ml_dtypes."""
_GRADIENT_LOST = (
    "conv() records no gradients, and a tensor that it was given requires one: call convdispatch.torch.conv2d (conv1d "
    "to conv_transpose3d), which do, or pass tensor.detach(), or call inside torch.no_grad()"
)


class Torch(Library):
    """PyTorch's tensors; workspaces come from its caching allocator."""

    name = "torch.Tensor"
    records_gradients = True

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._names = {getattr(torch, row.array_name): name for name, row in ALL_DTYPES.items()}
        self.streams: dict[tuple[int, int], Stream] = {}
        """The streams by the device's number and the stream's handle."""
        self.stream_kind = next((kind for kind in KINDS if stream_kind(kind).serves(torch)), "cuda")
        kind = stream_kind(self.stream_kind)
        self.device_type, (self.raw, self.current) = kind.torch_type, kind.torch_functions(torch)
        """The functions that return the handle of the current stream of a device, and the current device's number."""

    def device(self, array: Any) -> int | None:
        """See Library. Raises InvalidArgument for a tensor whose gradient would be lost."""
        if array.requires_grad and self.torch.is_grad_enabled():
            raise InvalidArgument(_GRADIENT_LOST)
        if array.is_cpu:
            return None
        if array.device.type != self.device_type:
            known = self.stream_kind.upper()
            raise InvalidArgument(f"a torch tensor must be on the CPU or a {known} device, got {array.device}")
        return array.get_device()

    def places(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """See Library; tensors are checked first by attributes that only tensors have."""
        try:
            for array in given:
                if array is not None and (array.requires_grad or not array.is_cpu):
                    break
            else:
                return (None,) * len(given)
            if any(array is not None and array.requires_grad for array in given):
                return super().places(given)
            devices = tuple([None if array is None else array.get_device() for array in given])
        except AttributeError:
            return super().places(given)
        return super().places(given) if -1 in devices else devices

    def pointer(self, array: Any, stream: Stream) -> tuple[int, Any]:
        return (array.data_ptr(), array) if array.is_contiguous() else (0, None)

    def pointers(self, arrays: Sequence[Any], stream: Stream) -> list[int]:
        return [array.data_ptr() if array.is_contiguous() else 0 for array in arrays]

    def dtype(self, array: Any) -> str:
        return self._names.get(array.dtype) or str(array.dtype).removeprefix("torch.")

    def stream(self, array: Any, number: int) -> Stream:
        raw = self.raw(number)
        stream = self.streams.get((number, raw))
        if stream is None:
            allocate = functools.partial(self._allocate, self.torch.device(self.device_type, number))
            place = stream_kind(self.stream_kind).numbered(number)
            stream = self.streams[number, raw] = place.stream(raw, allocate)
        return stream

    def is_current(self, stream: Stream) -> bool:
        """See Library. Only PyTorch's device number is compared; without a CUDA context the launch itself fails."""
        return bool(self.current() == stream.place.number)

    def _allocate(self, device: Any, size: int) -> tuple[int, Any]:
        try:
            block = self.torch.empty(size, dtype=self.torch.uint8, device=device)
        except self.torch.OutOfMemoryError as error:
            raise NoDeviceMemory(f"PyTorch has no memory left: {error}") from None
        return block.data_ptr(), block

    def compact(self, array: Any) -> Any:
        return array.contiguous()

    def empty(self, shape: tuple[int, ...], like: Any, stream: Stream, dtype: str | None = None) -> Any:
        return (
            like.new_empty(shape, dtype=getattr(self.torch, ALL_DTYPES[dtype].array_name))
            if dtype
            else like.new_empty(shape)
        )

    def host_address(self, array: Any) -> int:
        try:
            return array.data_ptr() if array.is_contiguous() and not array.is_neg() else 0
        except AttributeError:  # constant weights may be a NumPy array, which has no data_ptr()
            return 0

    def host(self, array: Any) -> np.ndarray:
        if array.requires_grad:
            array = array.detach()
        name = self._names.get(array.dtype, "")
        if name.startswith(_FROM_ML_DTYPES):  # PyTorch does not know the dtypes of the package ml_dtypes
            bits = {1: self.torch.uint8, 2: self.torch.int16}[array.itemsize]
            return array.view(bits).numpy().view(numpy_dtype(name))
        return array.numpy()

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        name = dtype_name(array.dtype)
        if name.startswith(_FROM_ML_DTYPES):
            bits = array.view(f"{'u' if array.itemsize == 1 else 'i'}{array.itemsize}")
            return self.torch.from_numpy(bits).view(getattr(self.torch, ALL_DTYPES[name].array_name))
        return self.torch.from_numpy(array)

    def fetch(self, array: Any) -> np.ndarray:
        return self.host(array.detach().cpu())


class CuPy(Library):
    """CuPy's arrays; workspaces come from its pool."""

    name = "cupy.ndarray"

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def device(self, array: Any) -> int | None:
        return int(array.device.id)

    def stream(self, array: Any, number: int) -> Stream:
        cuda = self.cupy.cuda
        with cuda.Device(number):
            place = stream_kind(self.stream_kind).numbered(number)
            return place.stream(cuda.get_current_stream().ptr, functools.partial(self._allocate, number))

    def _allocate(self, number: int, size: int) -> tuple[int, Any]:
        with self.cupy.cuda.Device(number):
            block = self.cupy.cuda.alloc(size)
        return block.ptr, block

    def pointer(self, array: Any, stream: Stream) -> tuple[int, Any]:
        return (array.data.ptr, array) if array.flags.c_contiguous else (0, None)

    def compact(self, array: Any) -> Any:
        with array.device:
            return self.cupy.ascontiguousarray(array)

    def empty(self, shape: tuple[int, ...], like: Any, stream: Stream, dtype: str | None = None) -> Any:
        with like.device:
            return self.cupy.empty(shape, numpy_dtype(dtype) if dtype else like.dtype)

    def fetch(self, array: Any) -> np.ndarray:
        return array.get()


def library_of(kind: type) -> Library | None:
    """The library of arrays of a class; None for NumPy's, OpenCL's, this package's tensors, and all other objects."""
    try:
        return _known[kind]
    except KeyError:
        library = _known[kind] = _find(kind)
        return library


def _find(kind: type) -> Library | None:
    if (
        issubclass(kind, np.ndarray | np.generic)
        or hasattr(kind, "base_data")
        or kind.__module__.startswith("pyopencl")
    ):
        return None
    names = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "torch" in names and issubclass(kind, sys.modules["torch"].Tensor):
        return _torch()
    if "cupy" in names and hasattr(kind, "__cuda_array_interface__"):
        return CuPy(sys.modules["cupy"])
    if all(hasattr(kind, name) for name in ("__dlpack__", "__dlpack_device__", "__array_namespace__")):
        from .array_api import Exchange

        return Exchange(kind)
    return None


@functools.lru_cache(maxsize=1)
def _torch() -> Torch:
    return Torch(sys.modules["torch"])
