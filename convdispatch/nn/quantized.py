"""Operations on integers of 8 bits that stand for numbers, ``number = scale * (integer - zero_point)``: ONNX's.

Scales and zero points are numbers here: one for a whole tensor. None has a gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..api.quantization import Quantization
from ..calls.conv import conv
from ..device.tracing import operation
from ..elementwise import apply, reduce
from ..elementwise.interleaving import quantized_pixels
from ..elementwise.tensor import Tensor
from .convolution import dense

DEQUANTIZED = "({0} - {2!r}) * {1!r}"
"""The formula that dequantizes an integer {0} with scale {1} and zero point {2}."""


def quantized_formula(text: str, scale: float, zero_point: int, dtype: Any) -> str:
    """A formula's value as an integer: rounded half to even, saturated."""
    limits = np.iinfo(dtype)
    low, high = limits.min - zero_point, limits.max - zero_point
    return f"clip(round(({text}) / {float(scale)!r}), {low}, {high}) + {zero_point}"


@operation
def quantize(x: Tensor, scale: float, zero_point: int, dtype: str) -> Tensor:
    """ONNX's QuantizeLinear: ``saturate(round(x / scale) + zero_point)``."""
    return apply(quantized_formula("x", scale, zero_point, dtype), dtype=np.dtype(dtype), x=x)  # type: ignore


@operation
def quantize_pixels(x: Tensor, scale: float, zero_point: int, dtype: str) -> Tensor:
    """``quantize`` of pictures with channels first, as pictures with channels last."""
    quantized = quantized_pixels(x, scale, zero_point, dtype)
    return quantize(x.transpose(0, 2, 3, 1), scale, zero_point, dtype) if quantized is None else quantized  # type: ignore


@operation
def dequantize(x: Tensor, scale: float, zero_point: int, dtype: str = "float32") -> Tensor:
    """ONNX's DequantizeLinear: ``(x - zero_point) * scale``."""
    return apply(DEQUANTIZED.format("x", float(scale), int(zero_point)), dtype=np.dtype(dtype), x=x)  # type: ignore


@operation
def dequantized_average(x: Tensor, scale: float, zero_point: int, *, layout: str = "nchw") -> Tensor:
    """The mean over each picture's pixels, as numbers, float32: its shape is x's with one pixel."""
    axes = tuple(range(2, x.ndim)) if layout == "nchw" else tuple(range(1, x.ndim - 1))
    text = DEQUANTIZED.format("x", float(scale), int(zero_point))
    return reduce("mean", text, axes, keepdims=True, x=x)  # type: ignore[no-any-return]


@operation
def quantized_convolution(
    x: Tensor,
    w: Any,
    bias: np.ndarray | None = None,
    *,
    quantization: Quantization,
    x_zero_point: Tensor | None = None,
    residual: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """``conv(x, w, bias, quantization=...)``. With ``x_zero_point``, a tensor of one integer, that is x's zero point.

    ``bias`` is int32, in host memory; ``options`` are conv's geometry and activation. Raises as ``conv`` does.
    """
    if x_zero_point is not None:
        quantization = replace(quantization, x_zero_point=int(x_zero_point.numpy().reshape(())))
    return conv(dense(x), w, bias, quantization=quantization, residual=dense(residual), **options)  # type: ignore


def moving_table(words: Tensor, place: Tensor, x_zero_point: Tensor) -> Tensor:
    """A quantized convolution's table with a tensor's one integer where ``place`` is 1, which is 0 elsewhere."""
    return apply("t + m * z", dtype=np.int32, t=words, m=place, z=x_zero_point)  # type: ignore[no-any-return]
