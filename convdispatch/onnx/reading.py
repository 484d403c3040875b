"""A model file to a ModelProto whose every size was compared with what is there, before memory is taken for it.

Weights may lie in files of their own: these must lie in the model's folder, whatever names or links say. Nothing in a
file is ever run; a graph is data.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..api.errors import InvalidArgument
from .call import Unsupported

MOST_BYTES = 1 << 31
"""The most bytes of a protocol buffer, and so of a model file without external data."""
MOST_AXES = 64
ALIGNED, _LEAST_APART = 128, 4096
"""Weights apart begin at multiples of ALIGNED bytes, so that processors use them there; shorter ones stay."""
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # the numbers of these fields in ModelProto, GraphProto and TensorProto


def onnx_package() -> Any:
    """The onnx package. Raises InvalidArgument that says how to install it."""
    try:
        import onnx
    except ImportError:
        raise InvalidArgument("reading ONNX models needs the onnx package: pip install 'convdispatch[onnx]'") from None
    return onnx


Storage = tuple[Path | None, Mapping[str, np.ndarray]]
"""The folder of external data, None for a model without a path, and the bytes of initialisers apart, by name."""


def read(source: Any) -> tuple[Any, Storage]:
    """``(ModelProto, the values that it lacks)`` of a path, bytes, or a ModelProto.

    Raises InvalidArgument, in one sentence that names the file, for what is no model or lies about its sizes.
    """
    onnx = onnx_package()
    name, folder, apart = "the model", None, dict[str, np.ndarray]()
    if isinstance(source, onnx.ModelProto):
        model = source
    elif isinstance(source, bytes | bytearray):
        model, apart = _parse(io.BytesIO(source), len(source), "the bytes")
    else:
        path = Path(source)
        name, folder = str(path), path.resolve().parent
        model, apart = _parsed_file(path)
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidArgument(f"{name} holds no graph: expected an ONNX model")
    _check_texts(model.graph, name)
    for index, (tensor, owner) in enumerate(_tensors(model.graph)):  # the graph's own initialisers come first
        _check(tensor, owner, (folder, apart if index < len(model.graph.initializer) else {}), name)
    return model, (folder, apart)


def _parsed_file(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    try:
        if not path.is_file():
            raise InvalidArgument(f"{path} is no file: expected an ONNX model")
        size = path.stat().st_size
        if size >= MOST_BYTES:
            raise InvalidArgument(
                f"{path} has {size} bytes, a model file at most {MOST_BYTES - 1}: save its weights apart"
            )
        with path.open("rb") as file:
            return _parse(file, size, str(path))
    except (OSError, ValueError) as error:  # A NUL character in the path raises ValueError.
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"{str(path)[:200]!r} cannot be read: {getattr(error, 'strerror', error)}") from None


def _parse(file: BinaryIO, size: int, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The ModelProto of a file of ``size`` bytes without the bytes of large initialisers, and these by name: they go
    from the file to where they stay, and are copied no more."""
    model, apart = onnx_package().ModelProto(), dict[str, np.ndarray]()
    # One block has larger pages than an array for each weight. Alignment adds less than one byte in 32.
    block, used = np.empty(size + size // 32 + ALIGNED, np.uint8), 0

    def fill(message: Any, end: int, within: int = 0) -> None:
        nonlocal used
        kept, raw = [], None
        for number, start, begin, stop in _fields(file, end):
            if begin and (within, number) == (0, _GRAPH):
                message.graph.SetInParent()
                fill(message.graph, stop, _GRAPH)
            elif begin and (within, number) == (_GRAPH, _INITIALIZER):
                fill(message.initializer.add(), stop, _INITIALIZER)
            elif begin and (within, number) == (_INITIALIZER, _RAW_DATA) and stop - begin >= _LEAST_APART:
                used += -(block.ctypes.data + used) % ALIGNED
                raw, used = block[used : used + stop - begin], used + stop - begin
                file.readinto(raw.data)  # type: ignore[attr-defined]
            else:
                file.seek(start)
                kept.append(file.read(stop - start))
        message.MergeFromString(b"".join(kept))
        if within == _INITIALIZER:
            apart.pop(message.name, None)
            apart.update({} if raw is None else {message.name: raw})

    try:
        fill(model, size)
    except Exception as error:  # protobuf raises DecodeError, whose class differs between versions.
        raise InvalidArgument(f"{name} is no ONNX model: {error}") from None
    return model, apart


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int, int, int]]:
    """``(number, start, start of a content that has a length, or 0, end)`` of the fields of a message from
    here to ``end``: each a number and a wire type, then its content. Raises ValueError."""
    while (start := file.tell()) < end:
        key = _varint(file)
        number = _varint(file) if key & 7 in (0, 2) else 0
        begin = file.tell()
        stop = begin + {0: 0, 1: 8, 2: number, 5: 4}.get(key & 7, end)  # by wire type
        if stop > end:
            raise ValueError("a field has no type, or is longer than what holds it")
        yield key >> 3, start, begin if key & 7 == 2 else 0, stop
        file.seek(stop)


def _varint(file: BinaryIO) -> int:
    """A number in groups of seven bits, the least significant first."""
    number = 0
    for shift in range(0, 70, 7):
        byte = (file.read(1) or b"\xff")[0]
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("a number does not end")


def _check_texts(graph: Any, name: str) -> None:
    """Raise InvalidArgument where a node's words are no UTF-8: protocol buffers give bytes then."""
    for node in graph.node:
        for text in (node.op_type, node.domain, node.name, *node.input, *node.output):
            if not isinstance(text, str):
                raise InvalidArgument(f"{name}: a node has the word {text[:40]!r}, which is no UTF-8")
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                _check_texts(subgraph, name)


def _tensors(graph: Any) -> Iterator[tuple[Any, str]]:
    """Every tensor in a graph and its subgraphs, with a name to tell it by."""
    for tensor in graph.initializer:
        yield tensor, f"initialiser {tensor.name!r}"
    for sparse in graph.sparse_initializer:
        for tensor in (sparse.values, sparse.indices):
            yield tensor, f"sparse initialiser {sparse.values.name!r}"
    for node in graph.node:
        for attribute in node.attribute:
            for tensor in (attribute.t, *attribute.tensors):
                if tensor.data_type:
                    yield tensor, f"node {node.name or node.output[0] if node.output else node.op_type!r}"
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _tensors(subgraph)


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == onnx_package().TensorProto.EXTERNAL)


def _nbytes(tensor: Any, owner: str, name: str) -> int:
    """Bytes that the values must have. Raises InvalidArgument for a type or shape that is none."""
    onnx = onnx_package()
    shape = tuple(tensor.dims)
    if len(shape) > MOST_AXES or any(size < 0 for size in shape):
        raise InvalidArgument(
            f"{name}: {owner} has the shape {shape[:8]}, expected at most {MOST_AXES} sizes of 0 or more"
        )
    try:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, ValueError, TypeError):
        raise InvalidArgument(f"{name}: {owner} has the unknown type {tensor.data_type}") from None
    bits = 4 if "INT4" in kind or "FLOAT4" in kind else 2 if "INT2" in kind else dtype.itemsize * 8
    return (math.prod(shape) * bits + 7) // 8


def _check(tensor: Any, owner: str, storage: Storage, name: str) -> None:
    """The values are there, all of them, and no more."""
    onnx = onnx_package()
    if tensor.data_type == onnx.TensorProto.STRING:
        return
    count_needed, shape, (folder, apart) = _nbytes(tensor, owner, name), tuple(tensor.dims), storage
    if _is_external(tensor):
        _file_of(tensor, owner, folder, name, count_needed)
        return
    if tensor.HasField("raw_data") or tensor.name in apart:
        found = len(apart.get(tensor.name, tensor.raw_data))
        if found != count_needed:
            raise InvalidArgument(f"{name}: {owner} of shape {shape} needs {count_needed} bytes, {found} are there")
        return
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    count_found, count = len(getattr(tensor, field)), math.prod(shape)
    packed = 8 * count_needed // max(1, count) if count else 8
    count_needed = -(-count * packed // 8) if packed < 8 else count * (2 if "COMPLEX" in str(tensor.data_type) else 1)
    if count_found not in (count_needed, 2 * count):
        raise InvalidArgument(f"{name}: {owner} of shape {shape} needs {count_needed} values, {count_found} are there")


def _file_of(tensor: Any, owner: str, folder: Path | None, name: str, wanted: int) -> tuple[Path, int]:
    """The file that holds the values, and the byte they begin at. Raises InvalidArgument, before anything is read."""
    location_fields = {entry.key: entry.value for entry in tensor.external_data}
    location = location_fields.get("location", "")
    if folder is None:
        raise InvalidArgument(f"{name}: {owner} lies in the file {location!r}: load the model by its path")
    try:
        path = (folder / location).resolve()
    except (OSError, ValueError) as error:  # A NUL character, or symbolic links in a circle, raise an error.
        raise InvalidArgument(f"{name}: {owner} lies in {location[:80]!r}, which is no place: {error}") from None
    if not location or not path.is_relative_to(folder) or os.path.isabs(location):  # noqa: PTH117 (a string)
        raise InvalidArgument(f"{name}: {owner} lies in {location!r}, outside the model's folder: refused")
    try:
        start = int(location_fields.get("offset", "0"))
        length = int(location_fields.get("length", str(wanted)))
    except ValueError:
        raise InvalidArgument(f"{name}: {owner} has an offset or length that is no number") from None
    try:
        size = path.stat().st_size if path.is_file() else -1
    except OSError as error:  # A file name that is too long raises OSError.
        raise InvalidArgument(f"{name}: {owner} lies in {location[:80]!r}, which is no place: {error}") from None
    if size < 0:
        raise InvalidArgument(f"{name}: {owner} lies in {location!r}, which is no file")
    if length != wanted or start < 0 or start + length > size:
        raise InvalidArgument(
            f"{name}: {owner} needs {wanted} bytes, its place is {length} from {start} on of {size} in {location!r}"
        )
    return path, start


def to_array(tensor: Any, storage: Storage = (None, {})) -> np.ndarray:
    """A checked tensor's values."""
    onnx, (folder, apart) = onnx_package(), storage
    raw = apart.get(tensor.name)
    if _is_external(tensor):
        nbytes = _nbytes(tensor, "a tensor", "the model")
        path, start = _file_of(tensor, f"initialiser {tensor.name!r}", folder, "the model", nbytes)
        raw = np.fromfile(path, np.uint8, nbytes, offset=start)
    if raw is None:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if supported(dtype):
        return raw.view(dtype).reshape(tuple(tensor.dims))
    copy = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name, raw_data=raw.tobytes())
    return np.asarray(onnx.numpy_helper.to_array(copy))


def dense(sparse: Any) -> np.ndarray:
    """A sparse initialiser's values where they stand."""
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    shape = tuple(sparse.dims)
    if np.prod(shape, dtype=np.float64) * values.itemsize > 1 << 31:
        raise InvalidArgument(f"the sparse initialiser {sparse.values.name!r} has the shape {shape}: refused")
    filled = np.zeros(shape, values.dtype)
    try:
        if indices.ndim == 1:
            filled.reshape(-1)[indices] = values
        else:
            filled[tuple(indices.T)] = values
    except IndexError:
        raise InvalidArgument(f"the sparse initialiser {sparse.values.name!r} has indices outside {shape}") from None
    return filled


_HELD = frozenset({
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64",
})  # fmt: skip


def supported(dtype: Any) -> bool:
    """Whether kernels hold elements of a NumPy dtype."""
    return np.dtype(dtype).name in _HELD


def dtype_of(kind: Any, call: Any = None) -> np.dtype:
    """NumPy's dtype of one of ONNX's numbers or names for a type. Raises Unsupported for one that kernels lack."""
    import onnx

    if isinstance(kind, str):  # Before operator set 6 types are given by name.
        kind = onnx.TensorProto.DataType.Value(kind)
    try:
        name = onnx.TensorProto.DataType.Name(kind)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, ValueError, TypeError):
        name, dtype = str(kind), np.dtype(object)
    if not supported(dtype):
        where = f"{call.name}: " if call is not None else ""
        raise Unsupported(f"{where}elements of type {name} are not here; there are {', '.join(sorted(_HELD))}")
    return dtype
