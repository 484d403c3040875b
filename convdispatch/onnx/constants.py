"""What a Constant node holds, in each of its forms, and a DequantizeLinear makes of constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .reading import to_array

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
            return to_array(attribute.t, None)
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
