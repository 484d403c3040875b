"""Tensors of one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..device import runtime
from .apply import compute
from .tensor import Tensor


def fill(tensor: Tensor, value: float) -> Tensor:
    """Set every element, of a view too; returns the tensor."""
    if not tensor.size:
        return tensor
    if tensor.contiguous:
        pattern = np.array(value, tensor.dtype)
        runtime.fill(tensor.queue, tensor.base_data, pattern, tensor.offset, tensor.nbytes)
    else:
        compute("x = value", {"x": tensor, "value": float(value)})
    return tensor


def full(shape: Sequence[int], value: float, dtype: Any = np.float32, queue: cl.CommandQueue | None = None) -> Tensor:
    """Return a new tensor filled with one value."""
    return fill(Tensor.empty(shape, dtype, queue), value)


def zeros(shape: Sequence[int], dtype: Any = np.float32, queue: cl.CommandQueue | None = None) -> Tensor:
    """Return a new tensor of zeros."""
    return full(shape, 0, dtype, queue)
