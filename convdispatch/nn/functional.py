"""What a net needs beside ``conv()``: pooling, softmax, linear maps, and the folding of batch norms into weights.

Every function takes tensors and returns tensors on the same queue, and none of them waits. Layouts are ``conv()``'s.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.conv import conv
from ..api.dtypes import storage_macros
from ..api.errors import InvalidArgument
from ..kernels import Launch, build, config_macros, kernel_text
from ..tensor import Tensor

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["fold_batch_norm", "global_average_pool", "linear", "softmax"]

_PACKAGE = "convdispatch.nn"
_SOFTMAX_ITEMS = 64
_NAMES = ("x", "offset", "y")


def fold_batch_norm(
    w: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    epsilon: float = 1e-5,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias of the convolution that equals ``w`` (``[oc, ...]``) followed by a batch norm at inference.

    ``(conv(x, w) + bias - mean) * scale / sqrt(variance + epsilon) + shift``; computed in float64, returned in w's
    dtype.
    """
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    start = 0.0 if bias is None else bias.astype(np.float64)
    folded = w * factor.reshape(-1, *[1] * (w.ndim - 1))
    return folded.astype(w.dtype), (shift + (start - mean) * factor).astype(w.dtype)


def linear(x: Tensor, w: Any, bias: Any = None, *, activation: str | None = None, layout: str = "nchw") -> Tensor:
    """``x`` ``[mb, in]`` times the transpose of ``w`` ``[out, in, 1, 1]`` (``[out, 1, 1, in]`` for "nhwc").

    Returns ``[mb, out]``: a linear map is the convolution of a 1×1 picture, and chooses its solver like any other.
    """
    mb, features = x.shape
    picture = x.reshape(mb, features, 1, 1) if layout == "nchw" else x.reshape(mb, 1, 1, features)
    y = conv(picture, w, bias, activation=activation, layout=layout)
    return y.reshape(mb, y.size // mb if mb else 0)


def global_average_pool(x: Tensor, layout: str = "nchw") -> Tensor:
    """The mean of each channel of each picture, ``[mb, c]``; ``x`` has any number of spatial axes."""
    x = x if x.contiguous else x.copy()
    mb, channels = x.shape[0], x.shape[1 if layout == "nchw" else -1]
    y = Tensor.empty((mb, channels), x.dtype, x.queue)
    if not y.size:
        return y
    area = x.size // y.size
    if not area:
        raise InvalidArgument(f"an average needs at least one pixel, got shape {x.shape}")
    average = _average(x.context, x.dtype.name, channels, area, layout == "nhwc", mb)
    average(x.queue, (x.base_data, _elements(x), y.base_data))
    return y


def softmax(x: Tensor) -> Tensor:
    """``exp(x) / sum(exp(x))`` along the last axis, safe for large values."""
    x = x if x.contiguous else x.copy()
    y = Tensor.empty(x.shape, x.dtype, x.queue)
    if y.size:
        launch = _softmax(x.context, x.dtype.name, x.shape[-1], math.prod(x.shape[:-1]))
        launch(x.queue, (x.base_data, _elements(x), y.base_data))
    return y


def _elements(x: Tensor) -> np.int64:
    return np.int64(x.offset // x.dtype.itemsize)


# Each compiles once for what shapes its text, and is looked up afterwards.


@functools.lru_cache(maxsize=256)
def _average(context: cl.Context, dtype: str, channels: int, area: int, nhwc: bool, mb: int) -> Launch:
    values = config_macros({"channels": channels, "area": area, "nhwc": nhwc})
    program = build(context, storage_macros(dtype) + values + kernel_text(_PACKAGE, "pool.cl"))
    return Launch(program, "average", (mb * channels,), None, "x offset y", names=_NAMES)


@functools.lru_cache(maxsize=256)
def _softmax(context: cl.Context, dtype: str, width: int, rows: int) -> Launch:
    values = config_macros({"width": width, "items": _SOFTMAX_ITEMS})
    program = build(context, storage_macros(dtype) + values + kernel_text(_PACKAGE, "softmax.cl"))
    return Launch(program, "softmax", (rows * _SOFTMAX_ITEMS,), (_SOFTMAX_ITEMS,), "x offset y", names=_NAMES)
