"""Tensors in a file of the safetensors format: a length, a JSON header, the bytes. Nothing in it can run.

Written here byte by byte (the format is that small, and no dependency is needed); read back with every bound checked,
for a checkpoint may be damaged. An interrupted save leaves the old file as it was.
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..api.dtypes import numpy_dtype
from ..api.errors import InvalidArgument
from ..device import jsontext, plainfile
from ..elementwise.tensor import Tensor

_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {code: name for name, code in _CODES.items()}
_LARGEST_HEADER = 100_000_000


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors or arrays by name, and texts by name as ``metadata``, to a safetensors file; replaces it whole.

    Raises InvalidArgument for a dtype that the format lacks, a name that is no text, or a file that cannot be written.
    """
    target = Path(path)
    arrays = {name: _array(name, value) for name, value in tensors.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data_end = 0
    for name, array in arrays.items():
        code = _CODES.get(array.dtype.name)
        if code is None:
            raise InvalidArgument(f"safetensors holds {', '.join(_CODES)}; {name} is {array.dtype.name}")
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [data_end, data_end + array.nbytes]}
        data_end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = b"".join([struct.pack("<Q", len(text)), text, *(array.tobytes() for array in arrays.values())])
    try:
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}")
        plainfile.publish(target, content, durable=True)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{target} cannot be written: {_reason(error)}") from None


def try_place(path: str | os.PathLike[str]) -> None:
    """Raise InvalidArgument where no file of this name could be written now; nothing is left behind."""
    target = Path(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=f".{target.name}.", suffix=".part") as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{target} cannot be written: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _array(name: Any, value: Any) -> np.ndarray:
    if not isinstance(name, str) or name == "__metadata__":
        raise InvalidArgument(f"a tensor's name is a text other than __metadata__, got {name!r}")
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """``(arrays by name, metadata)`` of a safetensors file.

    Raises InvalidArgument, which names the file, when it is missing, damaged or no safetensors file.
    """
    source = Path(path)
    try:
        data = source.read_bytes()
    except (OSError, ValueError) as error:  # A path that contains a NUL character raises ValueError.
        raise InvalidArgument(f"checkpoint {source} cannot be read: {_reason(error)}") from None
    try:
        return _parse(data)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, OverflowError) as error:
        raise InvalidArgument(f"checkpoint {source} is damaged or no safetensors file: {error}") from None


def _parse(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    if len(data) < 8:
        raise ValueError(f"{len(data)} bytes hold no header")
    (length,) = struct.unpack_from("<Q", data)
    if length > min(len(data) - 8, _LARGEST_HEADER):
        raise ValueError(f"the header should have {length} bytes, the file has {len(data) - 8}")
    header = jsontext.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("the header is no table of tensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the metadata are no texts by name")
    body, arrays, end = memoryview(data)[8 + length :], {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, (start, stop) = entry["shape"], entry["data_offsets"]
        if entry["dtype"] not in _NAMES:
            raise ValueError(f"{name} is of the unknown type {entry['dtype']!r}")
        dtype = numpy_dtype(_NAMES[entry["dtype"]])
        if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
            raise ValueError(f"{name} has sizes or offsets that are no whole numbers")
        if start != end or stop - start != math.prod(shape) * dtype.itemsize or stop > len(body):
            raise ValueError(f"{name} of shape {shape} cannot lie at bytes {start} to {stop} of {len(body)}")
        array = np.frombuffer(body[start:stop], dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype)
        arrays[name] = array.reshape(shape).astype(dtype)
        end = stop
    if end != len(body):
        raise ValueError(f"{len(body) - end} bytes at the end belong to no tensor")
    return {name: arrays[name] for name in header}, metadata
