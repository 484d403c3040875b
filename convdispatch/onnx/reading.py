"""A model file to a ModelProto whose every size was compared with what is there, before memory is taken for it.

Weights may lie in files of their own: these must lie in the model's folder, whatever names or links say. Nothing in a
file is ever run; a graph is data.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..api.errors import InvalidArgument
from .call import Unsupported
from .raw_weights import without_weights

MOST_BYTES = 1 << 31
"""The most bytes of a protocol buffer, and so of a model file without external data."""
MOST_AXES = 64


def onnx_package() -> Any:
    """The onnx package. Raises InvalidArgument that says how to install it."""
    try:
        import onnx
    except ImportError:
        raise InvalidArgument("reading ONNX models needs the onnx package: pip install 'convdispatch[onnx]'") from None
    return onnx


class Storage(NamedTuple):
    """Where the values of initialisers are that their ModelProto lacks."""

    folder: Path | None = None
    """The folder of external data; None for a model without a path."""
    apart: Mapping[str, np.ndarray] = {}
    """The bytes of large initialisers, by name."""


def read(source: Any) -> tuple[Any, Storage]:
    """``(ModelProto, the values that it lacks)`` of a path, bytes, or a ModelProto.

    Raises InvalidArgument, in one sentence that names the file, for what is no model or lies about its sizes.
    """
    onnx = onnx_package()
    storage = Storage()
    if isinstance(source, onnx.ModelProto):
        model, name = source, "the model"
    elif isinstance(source, bytes | bytearray):
        name = "the model"
        model, apart = _parse(io.BytesIO(source), len(source), "the bytes")
        storage = Storage(None, apart)
    else:
        path = Path(source)
        name = str(path)
        model, apart = _parsed_file(path)
        storage = Storage(path.resolve().parent, apart)
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidArgument(f"{name} holds no graph: expected an ONNX model")
    _check_texts(model.graph, name)
    for index, (tensor, owner) in enumerate(_tensors(model.graph)):  # the graph's own initialisers come first
        _check(tensor, owner, storage if index < len(model.graph.initializer) else Storage(storage.folder), name)
    return model, storage


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
    """The ModelProto without the bytes of large initialisers, and these by name."""
    with contextlib.suppress(ValueError):  # protobuf says what is wrong
        message, weights = without_weights(file, size)
        model = _parsed(message, name)
        names = [tensor.name for tensor in model.graph.initializer]
        if len(set(names)) == len(names):
            return model, {names[index]: values for index, values in weights.items()}
    file.seek(0)
    return _parsed(file.read(), name), {}


def _parsed(message: bytes, name: str) -> Any:
    model = onnx_package().ModelProto()
    try:
        model.ParseFromString(message)
    except Exception as error:  # protobuf raises DecodeError, whose class differs between versions.
        raise InvalidArgument(f"{name} is no ONNX model: {error}") from None
    return model


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


def tensor_shape(tensor: Any) -> tuple[int, ...]:
    """A TensorProto's shape."""
    return tuple(tensor.dims)


def _external(tensor: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == onnx_package().TensorProto.EXTERNAL)


def _nbytes(tensor: Any, owner: str, name: str) -> int:
    """Bytes that the values must have. Raises InvalidArgument for a type or shape that is none."""
    onnx = onnx_package()
    shape = tensor_shape(tensor)
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
    count_needed, shape = _nbytes(tensor, owner, name), tensor_shape(tensor)
    if _is_external(tensor):
        _file_of(tensor, owner, storage.folder, name, count_needed)
        return
    if tensor.HasField("raw_data") or tensor.name in storage.apart:
        found = len(storage.apart.get(tensor.name, tensor.raw_data))
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
    location_fields = _external(tensor)
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


def without_initializers(model: Any, names: Collection[str]) -> Any:
    """A copy of the model in which the inputs ``names`` have no value of their own."""
    copy = type(model)()
    copy.CopyFrom(model)
    remaining = [tensor for tensor in copy.graph.initializer if tensor.name not in names]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(remaining)
    return copy


def to_array(tensor: Any, storage: Storage | None) -> np.ndarray:
    """A checked tensor's values."""
    onnx = onnx_package()
    raw = storage.apart.get(tensor.name) if storage else None
    if _is_external(tensor):
        folder, nbytes = storage.folder if storage else None, _nbytes(tensor, "a tensor", "the model")
        path, start = _file_of(tensor, f"initialiser {tensor.name!r}", folder, "the model", nbytes)
        raw = np.fromfile(path, np.uint8, nbytes, offset=start)
    if raw is None:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if supported(dtype) and sys.byteorder == "little":
        return raw.view(dtype).reshape(tensor_shape(tensor))
    copy = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name, raw_data=raw.tobytes())
    return np.asarray(onnx.numpy_helper.to_array(copy))


def dense(sparse: Any) -> np.ndarray:
    """A sparse initialiser's values where they stand."""
    values, indices = to_array(sparse.values, None), to_array(sparse.indices, None)
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
