"""What a node computes of values that are known on the host: by onnx's own reference, after a look at the size.

Shapes, constants and what is made of them never reach the device: they are known before the net runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from .reading import to_array

MOST_BYTES = 1 << 31
"""The most bytes of one folded value; a larger value is no weight but an attack, or a mistake."""
_SMALL = 4096
"""The most elements of a constant whose values shape inference gets; of larger ones it gets only the shape."""


class Unfoldable(Exception):
    """The reference cannot say it: the node must run on the device."""


def evaluate(node: Any, values: Mapping[str, np.ndarray], opsets: Mapping[str, int], where: str) -> list[np.ndarray]:
    """The outputs of ``node`` for its inputs' ``values``.

    Raises InvalidArgument where the result would be larger than MOST_BYTES, Unfoldable where the reference has no such
    operator or fails.
    """
    import onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    inputs = [helper.make_tensor_value_info(n, _type(v), v.shape) for n, v in values.items()]
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
    graph = helper.make_graph([node], "fold", inputs, outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports)
    _refuse_giants(model, values, where)
    try:
        with np.errstate(all="ignore"):
            values_found = ReferenceEvaluator(model).run(None, dict(values))
    except MemoryError:
        raise
    except Exception as error:  # ONNX's reference evaluator raises exceptions of any type for what it cannot compute.
        raise Unfoldable(str(error)) from error
    if not all(isinstance(value, np.ndarray | np.generic) for value in values_found):
        raise Unfoldable("no tensors")
    results = iter(values_found)
    return [np.asarray(next(results)) if name else np.empty(0) for name in node.output]


def _refuse_giants(model: Any, values: Mapping[str, np.ndarray], where: str) -> None:
    """Infer the outputs' shapes, which allocates nothing, and reject shapes that would exhaust the memory."""
    import onnx
    from onnx import numpy_helper

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name, value in values.items():
        if value.size <= _SMALL and value.dtype != object:
            probe.graph.initializer.append(numpy_helper.from_array(value, name))
    try:
        inferred = onnx.shape_inference.infer_shapes(probe, data_prop=True)
    except Exception:  # A shape that cannot be inferred does not follow from values, so the result cannot be large.
        return
    for output in inferred.graph.output:
        kind = output.type.tensor_type
        sizes = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value")]
        if len(sizes) == len(kind.shape.dim) and kind.elem_type:
            check_size(sizes, kind.elem_type, where)


def check_size(shape: Sequence[int], kind: int, where: str) -> None:
    """Raise InvalidArgument for a tensor of more than MOST_BYTES."""
    from onnx import helper

    try:
        itemsize = np.dtype(helper.tensor_dtype_to_np_dtype(kind)).itemsize
    except (KeyError, ValueError, TypeError):
        itemsize = 1
    nbytes = math.prod(shape) * itemsize
    if nbytes > MOST_BYTES:
        raise InvalidArgument(f"{where} would make a constant of shape {tuple(shape)}, {nbytes} bytes: refused")


def _type(value: np.ndarray) -> int:
    from onnx import helper

    try:
        return int(helper.np_dtype_to_tensor_dtype(value.dtype))
    except (KeyError, ValueError, TypeError):
        raise Unfoldable(f"no type for {value.dtype}") from None


_NUMBERS = {
    "value_float": ("f", np.float32),
    "value_floats": ("floats", np.float32),
    "value_int": ("i", np.int64),
    "value_ints": ("ints", np.int64),
}


def value_of(node: Any) -> np.ndarray | None:
    """The value of a Constant node; None for one that only onnx's reference reads (strings, sparse tensors)."""
    for attribute in node.attribute:
        if attribute.name == "value" and not attribute.ref_attr_name:
            return to_array(attribute.t)
        if attribute.name in _NUMBERS and not attribute.ref_attr_name:
            field, dtype = _NUMBERS[attribute.name]
            return np.array(getattr(attribute, field), dtype)
    return None


def scalar(value: Any) -> float | int | None:
    """The number that a constant of one element is; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiub":
        number = value.reshape(()).item()
        return number if np.isfinite(number) else None
    return None


def dequantized(operands: Sequence[Any], attributes: Mapping[str, Any]) -> np.ndarray | None:
    """``(x - zero) * scale`` with one scale, or one for each element of an axis; None for scales of blocks."""
    x, scale, zero = [*operands, None][:3]
    if scale.ndim > 1 or attributes.get("block_size") or x.dtype.kind not in "iu":
        return None
    zero = np.zeros((), np.int64) if zero is None else zero
    wide = [1] * x.ndim
    if x.ndim and scale.size > 1:
        wide[attributes.get("axis", 1)] = scale.size
    shape = wide if scale.size > 1 else ()
    shifted = x.astype(np.int64) - zero.astype(np.int64).reshape(shape if zero.size > 1 else ())
    numbers = shifted.astype(np.float32) * scale.astype(np.float32).reshape(shape)
    return numbers.astype(scale.dtype)  # type: ignore[no-any-return]
