"""What a Constant node holds, in each of its forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from .reading import to_array

__all__ = ["value_of"]

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
