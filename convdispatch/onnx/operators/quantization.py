"""QuantizeLinear and DequantizeLinear: numbers to integers and back, rounding by rounding as ONNX says.

With scales of whole tensors they are operations that an inference form folds into their neighbours, so that a quantized
net's integers stay integers from layer to layer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...elementwise import apply
from ...elementwise.tensor import Tensor
from ...nn import functional, quantized
from ..call import BoundNode, operator
from ..reading import dtype_of
from .elementwise import formula, scalar

_BYTES = ("int8", "uint8")


class Integers(NamedTuple):
    """What a DequantizeLinear was given: integers, and scales and zero points that are known."""

    values: Any
    scale: np.ndarray
    zero: np.ndarray
    axis: int


def integers_of(call: BoundNode, place: int) -> Integers | None:
    """The integers behind an operand that a DequantizeLinear made; None for another one, and for scales of blocks."""
    maker = call.scope.makers.get(call.node.input[place]) if call.has(place) else None
    if maker is None or maker[0].op_type != "DequantizeLinear" or maker[0].domain not in ("", "ai.onnx"):
        return None
    node, scope = maker
    inputs = [scope.find(name)[0] if name else None for name in node.input]
    attributes = {each.name: each.i for each in node.attribute}
    values, scale = inputs[:2]
    zero = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros((), values.dtype)
    if not isinstance(scale, np.ndarray) or not isinstance(zero, np.ndarray) or attributes.get("block_size"):
        return None
    if scale.ndim > 1 or not positive(scale):
        return None
    return Integers(values, scale, zero, attributes.get("axis", 1) % max(1, len(values.shape)))


def positive(scale: np.ndarray) -> bool:
    """Whether scales are finite numbers above 0."""
    values = scale.astype(np.float32)
    return bool(np.isfinite(values).all() and (values > 0).all())


def zero_of(call: BoundNode, place: int, dtype: Any) -> np.ndarray:
    """A zero point, which may be left out."""
    return call.known(place) if call.has(place) else np.zeros((), dtype)


def _along(call: BoundNode, index: int, ndim: int) -> Any:
    """A scale or zero point as it broadcasts with x: a number, or one for each element of an axis."""
    value = call.raw(index)
    number = scalar(value)
    if number is not None:
        return number
    tensor = call.tensor(index)
    if tensor.ndim != 1:
        if tensor.size == 1:
            return functional.view(tensor, ())
        raise call.refuse("scales blocks of an axis, which is not here: requantize the tensor whole or by an axis")
    if tensor.size == 1:
        return tensor
    shape = [1] * ndim
    shape[call.axis(1, ndim)] = tensor.size
    return functional.view(tensor, shape)


def _numbers(call: BoundNode, dtype: Any) -> tuple[float, int] | None:
    """One known scale above 0 and zero point for the whole tensor of bytes, or None."""
    scale, zero = scalar(call.raw(1)), scalar(call.raw(2)) if call.has(2) else 0
    if scale is None or zero is None or not (scale > 0 and math.isfinite(scale)) or np.dtype(dtype).name not in _BYTES:
        return None
    return float(scale), int(zero)


@operator("QuantizeLinear")
def _quantize(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    kind = call.get("output_dtype", 0)
    dtype = np.dtype(call.raw(2).dtype) if call.has(2) else dtype_of(kind, call) if kind else np.dtype(np.uint8)
    if dtype.kind not in "iu":
        raise call.refuse(f"quantises to {dtype.name}, which is not here: int8 and uint8 are")
    numbers = _numbers(call, dtype)
    if numbers is not None and x.dtype.name in ("float32", "float16"):
        return quantized.quantize(x, *numbers, dtype.name)  # type: ignore[no-any-return]
    limits = np.iinfo(dtype)
    zero = _along(call, 2, x.ndim) if call.has(2) else 0
    operands = {"x": x, "s": _along(call, 1, x.ndim), "z": zero}
    return apply(f"clip(round(x / s) + z, {limits.min}, {limits.max})", dtype=dtype, **operands)  # type: ignore[no-any-return]


@operator("DequantizeLinear")
def _dequantize(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    dtype = np.dtype(call.raw(1).dtype)
    numbers = _numbers(call, x.dtype)
    if numbers is not None and dtype.name in ("float32", "float16"):
        return quantized.dequantize(x, *numbers, dtype.name)  # type: ignore[no-any-return]
    operands = {"x": x, "s": _along(call, 1, x.ndim)}
    if call.has(2):
        operands["z"] = _along(call, 2, x.ndim)
    return formula(call, "(x - z) * s" if "z" in operands else "x * s", dtype, **operands)
