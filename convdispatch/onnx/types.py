"""ONNX's element types as NumPy's, those that kernels hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from .call import Unsupported

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
