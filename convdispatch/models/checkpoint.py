"""Reads a PyTorch checkpoint (.pth, .pt) into NumPy arrays, without torch and without running what it contains.

A checkpoint is a pickle, and a pickle is a program that may call anything. This reader accepts only the names of
OrderedDict, of the functions that rebuild tensors and parameters, and of storage types, and replaces each by an object
that can only describe a tensor. Every other name is refused. Both formats of PyTorch are read: the zip archive (since
1.6) and the older sequence of pickles followed by the raw storages.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..api.errors import InvalidArgument

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_STORAGES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_MALFORMED = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError)
_MALFORMED += (ImportError, OverflowError, MemoryError, RecursionError, zipfile.BadZipFile, NotImplementedError)


def read_checkpoint(
    path: str | os.PathLike[str], *, most_description: int = 64 << 20, most_copies: int = 4
) -> dict[str, np.ndarray]:
    """The tensors of a state dictionary, by name, in the file's order; each a new array in the machine's byte order.

    Sizes are compared with the file's before memory is taken. ``most_description``: bytes of the pickles that describe
    the tensors; ``most_copies``: how many times the file's size all tensors may take, for several may be views of one
    storage. Raises InvalidArgument when the file is missing or damaged, needs more than these, holds anything but
    tensors by name, or asks for a name outside the allow-list (which is then named).
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            read = _read_zip if zipfile.is_zipfile(file) else _read_legacy
            tensors = _tensors_of(read(file, most_description))
            total = sum(tensor.nbytes for _, tensor in tensors)
            if total > most_copies * size:
                raise InvalidArgument(
                    f"its tensors take {total} bytes, more than {most_copies} times the file's {size}"
                )
            return {key: value.array() for key, value in tensors}
    except InvalidArgument as error:
        raise InvalidArgument(f"checkpoint {name}: {error}") from None
    except OSError as error:
        raise InvalidArgument(f"checkpoint {name} cannot be read: {error.strerror or error}") from None
    except _MALFORMED as error:
        raise InvalidArgument(f"checkpoint {name} is damaged or no PyTorch checkpoint: {error}") from None


def _tensors_of(state: object) -> list[tuple[str, _Tensor]]:
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"expected tensors by name, got {type(state).__name__.lstrip('_')}")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, _Tensor):
            raise InvalidArgument(f"expected tensors by name, got {type(value).__name__} under {key!r}")
    return list(state.items())


# --- stand-ins for the classes that a pickle names -------------------------------------------------------------------


class _Inert:
    """Base of the objects that a pickle's program gets; the program can set none of their attributes."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"a checkpoint may not set {name}")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class _StorageType(_Inert):
    """Stands for torch.FloatStorage and its like: an element type, not callable."""

    __slots__ = ("dtype",)

    def __init__(self, code: str, order: str) -> None:
        self._set(dtype=np.dtype(order + code) if code != "?" else np.dtype(code))


class _Storage(_Inert):
    """A storage: consecutive elements in the file; in the old format ``data`` is set after all pickles are read."""

    __slots__ = ("data", "dtype", "numel")

    def __init__(self, dtype: np.dtype, numel: int, data: bytes | None = None) -> None:
        if not isinstance(numel, int) or numel < 0:
            raise pickle.UnpicklingError(f"a storage holds 0 elements or more, got {numel!r}")
        self._set(dtype=dtype, numel=numel, data=None)
        if data is not None:
            self.fill(data)

    def fill(self, data: bytes) -> None:
        if len(data) != self.numel * self.dtype.itemsize:
            raise pickle.UnpicklingError(f"a storage needs {self.numel * self.dtype.itemsize} bytes, got {len(data)}")
        self._set(data=data)


class _Tensor(_Inert):
    """A strided view of a storage, whose bounds are checked."""

    __slots__ = ("offset", "shape", "storage", "strides")

    def __init__(self, storage: _Storage, offset: int, shape: Sequence[int], strides: Sequence[int]) -> None:
        if not isinstance(storage, _Storage) or len(shape) != len(strides):
            raise pickle.UnpicklingError("a tensor needs a storage, and a stride for each axis")
        if not all(isinstance(n, int) and n >= 0 for n in (offset, *shape, *strides)):
            raise pickle.UnpicklingError(f"sizes must be 0 or more, got {offset!r}, {shape!r}, {strides!r}")
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last >= storage.numel:
            raise pickle.UnpicklingError(f"a tensor reaches element {last} of a storage of {storage.numel}")
        if math.prod(shape) > storage.numel:  # With a stride of 0 a few bytes could require any amount of memory.
            raise pickle.UnpicklingError(f"a tensor of shape {shape!r} is larger than its storage of {storage.numel}")
        self._set(storage=storage, offset=offset, shape=tuple(shape), strides=tuple(strides))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize

    def array(self) -> np.ndarray:
        dtype = self.storage.dtype
        if self.storage.data is None:
            raise pickle.UnpicklingError("a tensor's storage is missing from the file")
        if 0 in self.shape:
            return np.empty(self.shape, dtype.newbyteorder("="))
        strides = tuple(stride * dtype.itemsize for stride in self.strides)
        view = np.ndarray(self.shape, dtype, self.storage.data, self.offset * dtype.itemsize, strides)
        return np.array(view, dtype.newbyteorder("="), order="C")


class _Rebuild(_Inert):
    """Stands for torch._utils._rebuild_tensor_v2, and for _rebuild_parameter, which wraps a tensor."""

    __slots__ = ()

    def __call__(
        self, storage: object, offset: object = 0, shape: Any = (), strides: Any = (), *rest: object
    ) -> _Tensor:
        return storage if isinstance(storage, _Tensor) else _Tensor(storage, offset, shape, strides)


class _Unpickler(pickle.Unpickler):
    """An unpickler that accepts only names of the allow-list; ``storage`` resolves persistent ids."""

    def __init__(self, file: Any, order: str = "<", storage: Callable[..., _Storage] | None = None) -> None:
        super().__init__(file, encoding="utf-8")
        self._order, self._storage = order, storage

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
            return _Rebuild()
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _StorageType(_STORAGES[name], self._order)
        raise InvalidArgument(
            f"it asks for {module}.{name}, which is refused: a checkpoint of weights needs only OrderedDict, tensors "
            f"and the storage types {', '.join(_STORAGES)}"
        )

    def persistent_load(self, saved: Any) -> _Storage:
        if self._storage is None or not isinstance(saved, tuple) or len(saved) < 5 or saved[0] != "storage":
            raise pickle.UnpicklingError(f"unknown persistent id {str(saved)[:80]!r}")
        _, kind, key, _, numel = saved[:5]
        if not isinstance(kind, _StorageType) or not isinstance(key, str):
            raise pickle.UnpicklingError("a storage's persistent id has no element type or key")
        if len(saved) > 5 and saved[5] is not None:
            raise pickle.UnpicklingError("storage views, a form of PyTorch 0.1, are not read")
        return self._storage(key, kind.dtype, numel)


# --- the two container formats ---------------------------------------------------------------------------------------


def _read_zip(file: BinaryIO, most: int) -> object:
    with zipfile.ZipFile(file) as archive:
        total, file_size = sum(entry.file_size for entry in archive.infolist()), os.fstat(file.fileno()).st_size
        if total > file_size:  # the archive has entries that overlap, or states false sizes
            raise InvalidArgument(f"the archive's entries would take {total} bytes of a file of {file_size}")
        members = {name.partition("/")[2]: name for name in archive.namelist()}
        if "data.pkl" not in members:
            raise InvalidArgument("the archive has no data.pkl, so it is no PyTorch checkpoint")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise InvalidArgument("the archive is compressed, which PyTorch's never are")
        order = "<"
        if "byteorder" in members:
            order = {b"little": "<", b"big": ">"}[archive.read(members["byteorder"])]
        storages: dict[str, _Storage] = {}

        def storage(key: str, dtype: np.dtype, numel: int) -> _Storage:
            if key not in storages:
                storages[key] = _Storage(dtype, numel, archive.read(members["data/" + key]))
            return storages[key]

        size = archive.getinfo(members["data.pkl"]).file_size
        if size > most:
            raise InvalidArgument(f"data.pkl has {size} bytes, at most {most} are read")
        return _Unpickler(_checked_pickle(io.BytesIO(archive.read(members["data.pkl"])), most), order, storage).load()


def _read_legacy(file: BinaryIO, most: int) -> object:
    file.seek(0)
    magic, protocol = (_Unpickler(_checked_pickle(file, most)).load() for _ in range(2))
    if magic != _LEGACY_MAGIC or protocol != _LEGACY_PROTOCOL:
        raise InvalidArgument("it is neither a zip archive nor PyTorch's older format")
    system = _Unpickler(_checked_pickle(file, most)).load()
    order = "<" if system.get("little_endian", sys.byteorder == "little") else ">"
    storages: dict[str, _Storage] = {}

    def storage(key: str, dtype: np.dtype, numel: int) -> _Storage:
        return storages.setdefault(key, _Storage(dtype, numel))

    state = _Unpickler(_checked_pickle(file, most), order, storage).load()
    for key in _Unpickler(_checked_pickle(file, most)).load():  # The raw storages follow in the order of these keys.
        storage_at = storages[key]
        if int.from_bytes(_exactly(file, 8), "little" if order == "<" else "big") != storage_at.numel:
            raise pickle.UnpicklingError(f"storage {key} differs in length from its description")
        storage_at.fill(_exactly(file, storage_at.numel * storage_at.dtype.itemsize))
    return state


class _Bounded:
    """The next bytes of a file, of which at most ``most`` can be read."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._most = file, most

    def read(self, size: int) -> bytes:
        if size > self._most:
            raise InvalidArgument(f"a pickle of it asks for {size} bytes where at most {self._most} are left")
        self._most -= size
        return self._file.read(size)

    def readline(self) -> bytes:
        line = self._file.readline(self._most)
        self._most -= len(line)
        return line


def _checked_pickle(file: Any, most: int) -> io.BytesIO:
    """A copy of the pickle at the file's position, whose opcodes are checked; the file is positioned after it.

    A pickle chooses the indices of its memo, and Python's reader allocates memory for the largest index, so that a
    pickle of 139 bytes can require gigabytes. So no index may be larger than the number of bytes of the pickle.
    """
    begin = file.tell()
    file.seek(0, os.SEEK_END)
    limit = min(most, file.tell() - begin)
    file.seek(begin)
    largest = 0
    for command, argument, _ in pickletools.genops(_Bounded(file, limit)):
        if "PUT" in command.name and isinstance(argument, int):
            largest = max(largest, argument)
    size = file.tell() - begin
    if largest > size:
        raise InvalidArgument(f"its pickle of {size} bytes remembers under the number {largest}")
    file.seek(begin)
    return io.BytesIO(file.read(size))


def _exactly(file: BinaryIO, size: int) -> bytes:
    # The size comes from the file, so it is compared with the bytes that are left before memory is allocated.
    available = os.fstat(file.fileno()).st_size - file.tell()
    if size > available:
        raise EOFError(f"the file ends {size - available} bytes too early")
    return file.read(size)
