"""Finds oneDNN's library and declares the part of its C interface that the plugin calls. Nothing loads at import."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.metadata
import platform
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

from convdispatch.api import ConvDispatchError

INSTALL = "pip install 'convdispatch[onednn]'"
_DISTRIBUTIONS = ("onednn-cpu-gomp", "onednn-cpu-iomp", "onednn-cpu-tbb")
_THREADS = {1: "one thread", 2: "OpenMP", 4: "TBB", 8: "a thread pool", 512: "SYCL"}
_STATUS = {
    1: "out of memory",
    2: "invalid arguments",
    3: "unimplemented",
    4: "last implementation reached",
    5: "runtime error",
    6: "not required",
}
CPU, IN_ORDER = 1, 1

_Pointer = POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "dnnl_engine_create": (_Pointer, c_int, c_size_t),
    "dnnl_set_primitive_cache_capacity": (c_int,),
    "dnnl_stream_create": (_Pointer, c_void_p, c_uint),
    "dnnl_memory_desc_create_with_strides": (_Pointer, c_int, POINTER(c_int64), c_int, POINTER(c_int64)),
    "dnnl_memory_desc_create_with_tag": (_Pointer, c_int, POINTER(c_int64), c_int, c_int),
    "dnnl_memory_desc_clone": (_Pointer, c_void_p),
    "dnnl_memory_desc_destroy": (c_void_p,),
    "dnnl_memory_create": (_Pointer, c_void_p, c_void_p, c_void_p),
    "dnnl_memory_destroy": (c_void_p,),
    "dnnl_memory_set_data_handle": (c_void_p, c_void_p),
    "dnnl_primitive_attr_create": (_Pointer,),
    "dnnl_primitive_attr_destroy": (c_void_p,),
    "dnnl_primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "dnnl_primitive_attr_set_post_ops": (c_void_p, c_void_p),
    "dnnl_post_ops_create": (_Pointer,),
    "dnnl_post_ops_destroy": (c_void_p,),
    "dnnl_post_ops_append_sum": (c_void_p, c_float, c_int, c_int),
    "dnnl_post_ops_append_eltwise": (c_void_p, c_int, c_float, c_float),
    "dnnl_convolution_forward_primitive_desc_create": (_Pointer, c_void_p, c_int, c_int, *(c_void_p,) * 9),
    "dnnl_convolution_backward_data_primitive_desc_create": (_Pointer, c_void_p, c_int, *(c_void_p,) * 9),
    "dnnl_convolution_backward_weights_primitive_desc_create": (_Pointer, c_void_p, c_int, *(c_void_p,) * 10),
    "dnnl_reorder_primitive_desc_create": (_Pointer, *(c_void_p,) * 5),
    "dnnl_primitive_desc_next_impl": (c_void_p,),
    "dnnl_primitive_desc_query": (c_void_p, c_int, c_int, c_void_p),
    "dnnl_primitive_desc_destroy": (c_void_p,),
    "dnnl_primitive_create": (_Pointer, c_void_p),
    "dnnl_primitive_get_primitive_desc": (c_void_p, _Pointer),
    "dnnl_primitive_destroy": (c_void_p,),
    "dnnl_primitive_execute": (c_void_p, c_void_p, c_int, c_void_p),
}


class OneDNNError(ConvDispatchError):
    """oneDNN refused a call; ``status`` is its ``dnnl_status_t``, for example 3 if it has no implementation."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: {_STATUS.get(status, f'status {status}')}")
        self.status = status


class _Version(ctypes.Structure):
    _fields_ = [
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    ]


class Library:
    """The loaded oneDNN library with its one CPU engine and stream; a call that fails raises OneDNNError."""

    def __init__(self, handle: ctypes.CDLL, path: str) -> None:
        self.path, self.handle = path, handle
        handle.dnnl_version.restype = POINTER(_Version)
        version = handle.dnnl_version().contents
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        self.major, self.threads = version.major, _THREADS.get(version.cpu_runtime, "unknown")
        if version.major != 3 or self.threads not in ("one thread", "OpenMP", "TBB"):
            return
        for name, arguments in _SIGNATURES.items():
            function = getattr(handle, name)
            function.restype, function.argtypes = c_int, arguments
        query = handle.dnnl_primitive_desc_query_md
        query.restype, query.argtypes = c_void_p, (c_void_p, c_int, c_int)
        handle.dnnl_memory_desc_get_size.restype = c_size_t
        handle.dnnl_memory_desc_get_size.argtypes = (c_void_p,)
        handle.dnnl_memory_desc_equal.argtypes = (c_void_p, c_void_p)
        # oneDNN's primitive cache is turned off: it mixes up layouts (see Convolution.primitive). Callers cache plans.
        self.call("set_primitive_cache_capacity", 0)
        self.engine = self.make("engine_create", CPU, 0)
        self.stream = self.make("stream_create", self.engine, IN_ORDER)

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``dnnl_<name>``. Raises OneDNNError."""
        status = getattr(self.handle, "dnnl_" + name)(*arguments)
        if status:
            raise OneDNNError("dnnl_" + name, status)

    def make(self, name: str, *arguments: Any) -> c_void_p:
        """Call ``dnnl_<name>``, whose first argument is where it stores the object that it creates; return that."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle

    def address(self, name: str) -> int:
        """Address of ``dnnl_<name>``, for code that calls it without Python."""
        return ctypes.cast(getattr(self.handle, "dnnl_" + name), c_void_p).value or 0


def _paths() -> list[str]:
    candidates = []
    for name in _DISTRIBUTIONS:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        candidates += [str(Path(file.locate()).resolve()) for file in files if file.name == "libdnnl.so.3"]
    candidates.append(str(Path(sys.prefix) / "lib" / "libdnnl.so.3"))
    system = ctypes.util.find_library("dnnl")
    return [path for path in candidates if Path(path).exists()] + ([system] if system else [])


@functools.lru_cache(maxsize=1)
def _load() -> tuple[Library | None, str | None]:
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.platform != "linux":
        return None, f"linux on x86-64 only, got {sys.platform} on {platform.machine()}"
    reasons = []
    for path in _paths():
        try:
            loaded = Library(ctypes.CDLL(path), path)
        except OSError as error:
            reasons.append(f"{path} does not load: {error}")
            continue
        if loaded.major != 3 or loaded.threads in ("SYCL", "a thread pool", "unknown"):
            reasons.append(
                f"onednn 3 with its own threads only, got {loaded.version} with {loaded.threads} ({loaded.path})"
            )
            continue
        return loaded, None
    return None, "; ".join(reasons) or f"needs the library of onednn, which is not installed ({INSTALL})"


def missing() -> str | None:
    """The reason why oneDNN cannot be loaded, or None when it can."""
    return _load()[1]


def library() -> Library:
    """The oneDNN library, loaded once. Raises ConvDispatchError with the reason why it cannot be loaded."""
    loaded, reason = _load()
    if loaded is None:
        raise ConvDispatchError(f"oneDNN: {reason}")
    return loaded
