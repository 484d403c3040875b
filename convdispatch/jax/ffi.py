"""XLA's foreign calls in Python: a handler by ctypes over the C API (``xla/ffi/api/c_api.h``), so nothing is compiled.

XLA calls the handler with a frame: attributes, and the addresses of operands and results. The structures in this module
are those of the API's major version 0, whose layouts have not changed since 0.1; sizes in the frame are compared.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

from ..device.cuda_driver import structure

_METADATA = 1
"""The kind of the extension by which XLA queries the version of a handler."""
_EXECUTE = 3
_INTERNAL, _RESOURCE_EXHAUSTED = 13, 8
"""XLA's error codes INTERNAL and RESOURCE_EXHAUSTED."""


def _structure(**fields: Any) -> Any:
    """A structure of the API with these fields after the two that almost all begin with."""
    return structure(size=c_size_t, extension=c_void_p, **fields)


_Base = structure(size=c_size_t, kind=c_int32, next=c_void_p)
_Version = _structure(major=c_int32, minor=c_int32)
_Metadata = structure(size=c_size_t, version=_Version, traits=c_uint32, state=c_int64)
_MetadataExtension = structure(base=_Base, metadata=POINTER(_Metadata))
_Text = structure(start=c_void_p, length=c_size_t)
_FUNCTIONS = (
    "internal error_create error_message error_destroy register stream_get type_register context_get state_set "
    "state_get allocate free schedule threads future_create future_available future_error run_id device_ordinal"
)
_Api = _structure(version=_Version, **dict.fromkeys(_FUNCTIONS.split(), c_void_p))
_Buffers = _structure(count=c_int64, types=c_void_p, given=POINTER(c_void_p))
_Attributes = _structure(count=c_int64, types=c_void_p, names=c_void_p, values=POINTER(c_void_p))
_Frame = _structure(
    api=POINTER(_Api),
    context=c_void_p,
    stage=c_int32,
    operands=_Buffers,
    results=_Buffers,
    attributes=_Attributes,
    future=c_void_p,
)
_Buffer = _structure(dtype=c_int32, data=c_void_p, rank=c_int64, dims=POINTER(c_int64))
_ErrorArguments = _structure(message=c_char_p, code=c_int32)
_MessageArguments = _structure(error=c_void_p, message=c_char_p)
_DestroyArguments = _structure(error=c_void_p)
_StreamArguments = _structure(context=c_void_p, stream=c_void_p)
_OrdinalArguments = _structure(context=c_void_p, number=c_int32)
_AllocateArguments = _structure(context=c_void_p, bytes=c_size_t, alignment=c_size_t, data=c_void_p)
_FreeArguments = _structure(context=c_void_p, bytes=c_size_t, data=c_void_p)
_Function = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_FRAME_BYTES = _Frame.future.offset
"""The number of bytes of a call frame that are read."""


class Frame:
    """One call: ``text`` is its attribute, ``operands`` and ``results`` are addresses. Valid while the handler runs."""

    __slots__ = ("_frame", "operands", "results", "text")

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        text = _Text.from_address(frame.attributes.values[0])
        self.text = ctypes.string_at(text.start, text.length)
        self.operands, self.results = _addresses(frame.operands), _addresses(frame.results)

    @property
    def stream(self) -> int:
        """The handle of the CUDA stream on which XLA makes the call."""
        return self._called("stream_get", _StreamArguments).stream or 0

    @property
    def device(self) -> int:
        """The number of the CUDA device; 0 for versions of XLA that do not pass it."""
        if self._frame.api.contents.size < _Api.device_ordinal.offset + ctypes.sizeof(c_void_p):
            return 0
        return int(self._called("device_ordinal", _OrdinalArguments).number)

    def allocate(self, size: int) -> tuple[int, Callable[[], Any]]:
        """Allocate memory by XLA's allocator: its address on the stream's device, and a function that frees it in the
        stream's order. Raises MemoryError with XLA's message."""
        address = self._called("allocate", _AllocateArguments, size, 1).data or 0
        return address, lambda: self._called("free", _FreeArguments, size, address)

    def _called(self, name: str, kind: Any, *values: Any) -> Any:
        """The arguments of this structure after a call of XLA's function. Raises MemoryError with XLA's message."""
        arguments = kind(ctypes.sizeof(kind), None, self._frame.context, *values)
        api = self._frame.api.contents
        error = _Function(getattr(api, name))(ctypes.addressof(arguments))
        if not error:
            return arguments
        request = _MessageArguments(ctypes.sizeof(_MessageArguments), None, error)
        _Function(api.error_message)(ctypes.addressof(request))
        message = (request.message or b"no reason").decode(errors="replace")
        destroyed = _DestroyArguments(ctypes.sizeof(_DestroyArguments), None, error)
        _Function(api.error_destroy)(ctypes.addressof(destroyed))
        raise MemoryError(f"XLA refused {name}: {message}")


def _addresses(buffers: Any) -> list[int]:
    return [_Buffer.from_address(buffers.given[index]).data or 0 for index in range(buffers.count)]


def handler(compute: Callable[[Frame], None]) -> tuple[Any, Any]:
    """``(capsule, object to keep alive)`` of a handler that calls ``compute`` with each frame; exceptions become errors
    of XLA with the same text."""
    from jax import ffi

    @_Function
    def call(address: int) -> int | None:
        frame = _Frame.from_address(address)
        try:
            if frame.extension and _Base.from_address(frame.extension).kind == _METADATA:
                _introduce(frame)
            elif frame.stage == _EXECUTE:
                if frame.size < _FRAME_BYTES:
                    raise RuntimeError(f"XLA's call frame has {frame.size} bytes, expected {_FRAME_BYTES} or more")
                _keep_thread()
                compute(Frame(frame))
            return None
        except BaseException as error:  # No Python exception may pass through XLA's C++ frames.
            code = _RESOURCE_EXHAUSTED if isinstance(error, MemoryError) else _INTERNAL
            message = f"convdispatch: {type(error).__name__}: {error}".encode()
            given = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, code)
            return _Function(frame.api.contents.error_create)(ctypes.addressof(given))  # type: ignore[no-any-return]

    return ffi.pycapsule(ctypes.cast(call, c_void_p).value), call


_threads = threading.local()


def _keep_thread() -> None:
    """Make Python keep the thread-local state of a thread of XLA, such as its queues and kernels, which it would
    otherwise drop whenever the thread leaves the handler."""
    if not hasattr(_threads, "foreign"):
        _threads.foreign = isinstance(threading.current_thread(), threading._DummyThread)
        if _threads.foreign:
            ctypes.pythonapi.PyGILState_Ensure()


def _introduce(frame: Any) -> None:
    """Report XLA's own version as that of the handler, because all versions with major 0 have the same layouts."""
    metadata = _MetadataExtension.from_address(frame.extension).metadata.contents
    version = frame.api.contents.version
    metadata.version = _Version(ctypes.sizeof(_Version), None, 0, version.minor if version.major == 0 else 0)
    metadata.traits, metadata.state = 0, 0
