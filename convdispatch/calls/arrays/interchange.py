"""Other libraries' views of a tensor's memory, and tensors over theirs: DLPack, CUDA's and NumPy's array interfaces.

Nothing is copied. On a CPU device memory is the host's; on an NVIDIA device with CUDA's driver, memory from the pool is
CUDA's too. OpenCL cannot see memory that another library made with CUDA alone: a tensor over it has a CUDA stream for
its queue, and commands for it go there.
Each export waits until the queue has computed the values; later writes through a view are ordered by the host
(``queue.finish()`` or the other library's own synchronisation). A tensor here has ``base_data``, ``queue``, ``offset``,
``shape``, ``strides`` (in bytes), ``dtype``, ``size`` and ``contiguous``.

DLPack: https://dmlc.github.io/dlpack, version 0.8 of the structures, in capsules named ``dltensor``.
"""

from __future__ import annotations

import ctypes
import math
import threading
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from ...api.dtypes import numpy_dtype
from ...api.errors import InvalidArgument
from ...device import runtime
from ...device.cuda_driver import cuda_of, structure
from ...device.memory import shared_pool
from ...device.places.stream import Stream, StreamMemory, dlpack_kind
from .operands import is_contiguous

CPU, CUDA = 1, 2
_UNUSED_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT_CODE = 4
_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_Device = structure(kind=c_int32, number=c_int32)
_Dtype = structure(code=c_uint8, bits=c_uint8, lanes=c_uint16)
_View = structure(
    data=c_void_p, device=_Device, ndim=c_int32, dtype=_Dtype, shape=POINTER(c_int64), strides=POINTER(c_int64),
    offset=c_uint64,
)  # fmt: skip
_Managed = structure(view=_View, context=c_void_p, deleter=c_void_p)
_python = ctypes.pythonapi
_exports: dict[int, Any] = {}
_lock = threading.Lock()


def host_address(queue: cl.CommandQueue, buffer: cl.MemoryObject, size: int) -> int | None:
    """The host address of a CPU device's buffer; None on another device. Waits for the queue."""
    if runtime.device_info(queue.device).type != "cpu":
        return None
    flags = cl.map_flags.READ | cl.map_flags.WRITE
    view, _ = cl.enqueue_map_buffer(queue, buffer, flags, 0, (max(size, 1),), np.uint8)
    address = view.ctypes.data
    # Mapping makes the values visible to the host; a CPU device's buffer does not move when it is unmapped.
    view.base.release(queue)
    queue.finish()
    return address


def _address(tensor: Any, stream: Any = None) -> tuple[int, int, int]:
    """The DLPack device type, device number and address of the first element, with values ready for ``stream``."""
    if isinstance(tensor.queue, Stream):
        if stream != -1:  # DLPack's streams None and 1 are the default stream; -1 asks for no synchronization
            tensor.queue.before(0 if stream in (None, 1) else int(stream))
        return *dlpack_device(tensor), tensor.queue.address_of(tensor.base_data) + tensor.offset
    host = host_address(
        tensor.queue,
        tensor.base_data,
        min(span(tensor.shape, tensor.strides, tensor.dtype) + tensor.offset, tensor.base_data.size),
    )
    if host is not None:
        return CPU, 0, host + tensor.offset
    cuda, address = cuda_of(tensor.queue.device), shared_pool.cuda_address(tensor.base_data)
    if cuda is None or address is None:
        raise AttributeError(
            f"memory on {tensor.queue.device.name.strip()} is OpenCL's alone: neither the host nor CUDA can see it"
        )
    tensor.queue.finish()
    return CUDA, cuda.number, address + tensor.offset


def array_interface(tensor: Any, kind: int = CPU) -> dict[str, Any]:
    """The value of ``__array_interface__``; of ``__cuda_array_interface__``, version 3, with ``kind=CUDA``. Raises
    AttributeError for memory of another kind, so that NumPy looks no further."""
    kind_of_memory, _, address = _address(tensor)
    if kind_of_memory != kind:
        what = "the host's: take .numpy() for a copy" if kind == CPU else "CUDA's"
        raise AttributeError(f"the memory is not {what}")
    strides = None if tensor.contiguous else tensor.strides
    data = (address if tensor.size else 0, False)
    interface = {"shape": tensor.shape, "typestr": tensor.dtype.str, "data": data, "strides": strides, "version": 3}
    return interface if kind == CPU else interface | {"stream": None}


def dlpack_device(tensor: Any) -> tuple[int, int]:
    """Returns (device type, device number) in DLPack's numbering."""
    if isinstance(tensor.queue, Stream):
        return tensor.queue.place.dlpack, tensor.queue.place.number
    kind, number = dlpack_device_of(tensor.queue)
    if not kind:
        raise BufferError(f"DLPack has no device for {tensor.queue.device.name.strip()} of OpenCL's alone")
    return kind, number


def dlpack(tensor: Any, stream: Any = None) -> Any:
    """A capsule over the tensor's memory, which lives as long as its consumer wants. Raises BufferError.

    The values are ready for any consumer, or, for a tensor on a CUDA stream, for work on ``stream``, DLPack's argument.
    """
    if any(step % tensor.dtype.itemsize for step in tensor.strides):
        raise BufferError(f"DLPack counts strides in elements, got {tensor.strides} bytes of {tensor.dtype}")
    try:
        location = _address(tensor, stream)
    except AttributeError as error:
        raise BufferError(str(error)) from None
    return capsule(location, tensor.shape, tensor.strides, tensor.dtype, tensor)


def capsule(
    where: tuple[int, int, int], shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, owner: Any
) -> Any:
    """A DLPack capsule of (device type, device number, address), strides in bytes; it keeps ``owner`` alive."""
    kind, number, address = where
    count = max(len(shape), 1)
    sizes = (c_int64 * count)(*shape)
    steps = (c_int64 * count)(*(step // dtype.itemsize for step in strides))
    managed = _Managed()
    managed.view = _View(address, _Device(kind, number), len(shape), _dtype(dtype), sizes, steps, 0)
    managed.deleter = ctypes.cast(_delete, c_void_p)
    address_of_managed = ctypes.addressof(managed)
    with _lock:
        _exports[address_of_managed] = (managed, sizes, steps, owner)
    return _new_capsule(address_of_managed, _UNUSED_NAME, ctypes.cast(_forget, c_void_p))


def _dtype(dtype: np.dtype) -> Any:
    if dtype.name == "bfloat16":
        return _Dtype(_BFLOAT_CODE, 16, 1)
    if dtype.kind not in _CODES:
        raise BufferError(f"DLPack has no {dtype}")
    return _Dtype(_CODES[dtype.kind], 8 * dtype.itemsize, 1)


def from_dlpack(kind: type, source: Any, queue: cl.CommandQueue | None = None) -> Any:
    """A tensor of class ``kind`` over the memory of ``source`` (``__dlpack__``), for work on ``queue``; no copy.

    On a CPU device any host memory can be used; on an NVIDIA device only memory that this package allocated. The
    source's own work must be done, or ordered by its ``__dlpack__``. Raises InvalidArgument.
    """
    kind_of_device, number = source.__dlpack_device__() if hasattr(source, "__dlpack_device__") else (CPU, 0)
    streams = dlpack_kind(int(kind_of_device)) if queue is None else None
    if streams is not None:
        queue = streams.numbered(int(number)).stream(0)  # type: ignore[assignment]
    if isinstance(queue, Stream):
        return _on_stream(kind, source, queue)
    queue = queue or runtime.queue()
    view, owner = imported(source.__dlpack__(), use=False)
    dtype, shape, strides, address, where = view.dtype, view.shape, view.strides, view.address, view.device
    own = dlpack_device_of(queue)
    if where[0] not in (CPU, own[0]) or (where[0] == CUDA and where != own) or (where[0] == CPU and own[0] != CPU):
        raise InvalidArgument(
            f"the source lies on DLPack device {where}, the queue's device is {own}: copy it there first"
        )
    if where[0] == CPU:
        size, flags, offset = span(shape, strides, dtype), cl.mem_flags.READ_WRITE, 0
        if size:
            host_bytes = np.frombuffer((c_uint8 * size).from_address(address), np.uint8)
            buffer = cl.Buffer(queue.context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=host_bytes)
        else:
            buffer = cl.Buffer(queue.context, flags, 1)
    else:
        block_and_offset = shared_pool.shared_block(address)
        if block_and_offset is None:
            raise InvalidArgument(
                "OpenCL cannot see what CUDA alone made: make the tensor here and hand it over (from_dlpack there)"
            )
        buffer, offset = block_and_offset
    buffer._owner = owner()
    return kind(buffer, shape, dtype, queue, strides, offset)


def _on_stream(kind: type, source: Any, stream: Stream) -> Any:
    """A tensor over another library's memory of a stream's device, for work on the stream."""
    device = stream.place.dlpack, stream.place.number
    view, owner = imported(source.__dlpack__(stream=stream.handle or 1), use=False)
    if view.device != device:
        raise InvalidArgument(
            f"the source lies on DLPack device {view.device}, the stream's device is {device}: copy it there first"
        )
    memory = StreamMemory(view.address, span(view.shape, view.strides, view.dtype), owner())
    return kind(memory, view.shape, view.dtype, stream, view.strides, 0)


class Imported(NamedTuple):
    """The contents of a DLPack capsule; strides are in bytes, and None for a contiguous array."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype
    device: tuple[int, int]

    @property
    def contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return self.strides is None or is_contiguous(self.shape, self.strides, self.dtype.itemsize)


def imported(capsule: Any, use: bool = True) -> tuple[Imported, Any]:
    """Returns (contents of a DLPack capsule, an owner that tells the source when the memory is no longer used). Raises
    InvalidArgument.

    With ``use=False`` a function that takes the capsule over and returns the owner is returned in the owner's place.
    """
    managed = ctypes.cast(_capsule_pointer(capsule, _UNUSED_NAME), POINTER(_Managed)).contents
    view = managed.view
    dtype, shape = _numpy_dtype(view.dtype), tuple(view.shape[: view.ndim])
    strides = None
    if view.strides:
        strides = tuple(step * dtype.itemsize for step in view.strides[: view.ndim])
        if any(step < 0 for step in strides):
            raise InvalidArgument(f"a tensor over foreign memory needs strides of 0 or more, got {strides} (bytes)")
    device = (view.device.kind, view.device.number)
    contents = Imported((view.data or 0) + view.offset, shape, strides, dtype, device)

    def take_over() -> _Owner:
        _rename_capsule(capsule, _USED_NAME)
        return _Owner(managed)

    return contents, take_over() if use else take_over


def dlpack_device_of(queue: cl.CommandQueue) -> tuple[int, int]:
    """The DLPack (device type, device number) of a queue; (0, 0), which DLPack does not use, for OpenCL-only memory."""
    if runtime.device_info(queue.device).type == "cpu":
        return CPU, 0
    cuda = cuda_of(queue.device)
    return (0, 0) if cuda is None else (CUDA, cuda.number)


def span(shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype) -> int:
    """Bytes from the start of the first element to the end of the last one."""
    if strides is None or not math.prod(shape):
        return math.prod(shape) * dtype.itemsize
    return sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + dtype.itemsize


def _numpy_dtype(dtype: Any) -> np.dtype:
    if dtype.lanes == 1 and dtype.code == _BFLOAT_CODE and dtype.bits == 16:
        return numpy_dtype("bfloat16")
    letters = {code: letter for letter, code in _CODES.items()}
    if dtype.lanes != 1 or dtype.bits % 8 or dtype.code not in letters:
        raise InvalidArgument(f"no NumPy dtype for DLPack's code {dtype.code}, {dtype.bits} bits, {dtype.lanes} lanes")
    return np.dtype(f"{letters[dtype.code]}{dtype.bits // 8}" if dtype.code != _CODES["b"] else "?")


class _Owner:
    """Tells the source that its memory is no longer used, when the last buffer over it goes."""

    def __init__(self, managed: Any) -> None:
        self._delete = _Deleter(managed.deleter) if managed.deleter else None
        self._place = ctypes.addressof(managed)

    def __del__(self) -> None:
        if self._delete is not None:
            self._delete(self._place)


@_Deleter
def _delete(address: int) -> None:
    """Called by the consumer when it is done with an exported tensor."""
    with _lock:
        export = _exports.pop(address, None)
    del export  # released outside of the lock, because this may give memory back to a pool


@_Deleter
def _forget(capsule: int) -> None:
    """The capsule's destructor: if no consumer took the exported tensor, it is released."""
    if _python_valid(capsule, _UNUSED_NAME):
        _delete(_python_pointer(capsule, _UNUSED_NAME))


# Function prototypes of this module's own: those of ctypes.pythonapi's attributes are shared by the whole process.
_new_capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _python))
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", _python))
_rename_capsule = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_SetName", _python))
_python_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _python))
_python_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _python))
