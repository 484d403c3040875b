"""Finds cuDNN and declares the part of its backend interface that the plugin calls. Nothing loads at import."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from convdispatch.api import ConvDispatchError

INSTALL = "pip install 'convdispatch[cudnn]'"
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_HELPERS = {
    # Distribution: the libraries in it that cuDNN's engines load on demand. NVRTC compiles code, cuBLAS multiplies.
    "nvidia-cuda-nvrtc": ("libnvrtc.so.13",),
    "nvidia-cuda-nvrtc-cu12": ("libnvrtc.so.12",),
    "nvidia-cublas": ("libcublasLt.so.13", "libcublas.so.13"),
    "nvidia-cublas-cu12": ("libcublasLt.so.12", "libcublas.so.12"),
}
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (POINTER(c_void_p),),
    "cudnnSetStream": (c_void_p, c_void_p),
    "cudnnBackendCreateDescriptor": (c_int, POINTER(c_void_p)),
    "cudnnBackendDestroyDescriptor": (c_void_p,),
    "cudnnBackendFinalize": (c_void_p,),
    "cudnnBackendSetAttribute": (c_void_p, c_int, c_int, c_int64, c_void_p),
    "cudnnBackendGetAttribute": (c_void_p, c_int, c_int, c_int64, POINTER(c_int64), c_void_p),
    "cudnnBackendExecute": (c_void_p, c_void_p, c_void_p),
}
_TYPES = {
    # Kind of an attribute's values: (number of cudnnBackendAttributeType_t, C type).
    "handle": (0, c_void_p),
    "dtype": (1, c_int),
    "bool": (2, c_bool),
    "int": (3, c_int64),
    "float": (4, c_float),
    "double": (5, c_double),
    "pointer": (6, c_void_p),
    "mode": (7, c_int),
    "heuristics": (8, c_int),
    "knob": (9, c_int),
    "note": (11, c_int),
    "descriptor": (15, c_void_p),
}


class CudnnError(ConvDispatchError):
    """A call that cuDNN refused; the message contains cuDNN's own message."""


class Library:
    """The loaded cuDNN library; ``library(name, ...)`` calls the C function ``name`` and raises CudnnError."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.handle = handle
        handle.cudnnGetVersion.restype = c_size_t
        handle.cudnnGetErrorString.restype = c_char_p
        self.version: int = handle.cudnnGetVersion()
        for name, arguments in _SIGNATURES.items():
            function = getattr(handle, name)
            function.restype, function.argtypes = c_int, arguments

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.handle, name)(*arguments)
        if status:
            raise CudnnError(f"{name}: {self.handle.cudnnGetErrorString(c_int(status)).decode()} ({status})")

    def create(self) -> c_void_p:
        """Create a cuDNN handle for the current CUDA context."""
        handle = c_void_p()
        self("cudnnCreate", byref(handle))
        return handle


def _files(package: str, *names: str) -> list[str]:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [str(file.locate()) for name in names for file in files if file.name == name]


@functools.lru_cache(maxsize=1)
def _load() -> tuple[Library | None, str | None]:
    for package, names in _HELPERS.items():
        for path in _files(package, *names):
            with contextlib.suppress(OSError):
                ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    reasons = []
    for path in [*(path for package in _PACKAGES for path in _files(package, "libcudnn.so.9")), "libcudnn.so.9"]:
        try:
            loaded = Library(ctypes.CDLL(path))
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
            continue
        return loaded, None
    return None, f"needs the library of cudnn 9, which is not there ({INSTALL}): {'; '.join(reasons)}"


def missing() -> str | None:
    """The reason why cuDNN cannot be loaded, or None when it can."""
    return _load()[1]


def library() -> Library:
    """The cuDNN library, loaded once. Raises ConvDispatchError with the reason why it cannot be loaded."""
    loaded, reason = _load()
    if loaded is None:
        raise ConvDispatchError(f"cuDNN: {reason}")
    return loaded


class Descriptor:
    """An owned cuDNN backend descriptor: attributes are set by number, then ``finalize``."""

    def __init__(self, kind: int) -> None:
        self._library, self.handle, self._value_descriptors = library(), c_void_p(), []
        self._library("cudnnBackendCreateDescriptor", kind, byref(self.handle))

    def __del__(self) -> None:
        if self.handle:
            self._library.handle.cudnnBackendDestroyDescriptor(self.handle)

    def set(self, attribute: int, kind: str, *values: Any) -> Descriptor:
        """Set an attribute to values of a kind (see the table of types); returns itself."""
        number, c_type = _TYPES[kind]
        if kind == "descriptor":
            self._value_descriptors += values
            values = tuple(value.handle for value in values)
        array = (c_type * len(values))(*values)
        self._library("cudnnBackendSetAttribute", self.handle, attribute, number, len(values), array)
        return self

    def finalize(self) -> Descriptor:
        """Finalize the descriptor and return it. Raises CudnnError if cuDNN does not support it."""
        self._library("cudnnBackendFinalize", self.handle)
        return self

    def get(self, attribute: int, kind: str, most: int = 1) -> list[Any]:
        """Up to ``most`` values of an attribute."""
        number, c_type = _TYPES[kind]
        count, array = c_int64(), (c_type * most)()
        self._library("cudnnBackendGetAttribute", self.handle, attribute, number, most, byref(count), array)
        return list(array[: min(count.value, most)])

    def get_descriptors(self, attribute: int, kind: int, most: int | None = None) -> list[Descriptor]:
        """The descriptors that an attribute holds, as new objects; ``most``: their largest number."""
        number, _ = _TYPES["descriptor"]
        count = c_int64(most or 0)
        if most is None:
            self._library("cudnnBackendGetAttribute", self.handle, attribute, number, 0, byref(count), None)
        descriptors = [Descriptor(kind) for _ in range(count.value)]
        if descriptors:
            array = (c_void_p * len(descriptors))(*(descriptor.handle for descriptor in descriptors))
            arguments = (self.handle, attribute, number, len(descriptors), byref(count), array)
            self._library("cudnnBackendGetAttribute", *arguments)
        return descriptors[: count.value]
