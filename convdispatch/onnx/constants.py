"""What a Constant node holds, in each of its forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from .reading import to_array

__all__ = ["scalar", "value_of"]

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
