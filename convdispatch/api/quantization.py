"""Quantization: the scales and zero points of a quantized convolution, and the table of numbers that its kernels read.

    y = saturate(round(activation(multiplier[n] * sum[n])) + y_zero_point), multiplier = x_scale * w_scale[n] / y_scale
    sum[n] = bias[n] + sum over taps of (x - x_zero_point) * w

Of floats of 8 bits, x and w of one dtype, sums are float32 and the bias is a number:

    y = saturate(round(activation(multiplier[n] * sum[n] + bias[n]) / y_scale)), multiplier = x_scale * w_scale[n]

Names and rounding are ONNX's (``QLinearConv``): the multiplier is computed in float32 from left to right, the int32 sum
becomes the nearest float32, their product is rounded half to even. With a residual the numbers are added in float32,
and their sum is divided by y_scale, as a graph of ONNX does. Every solver gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .activations import parse_activation
from .dtypes import ALL_DTYPES, HEADER, INTEGERS, QUANTIZED_INPUTS
from .errors import InvalidArgument

__all__ = ["Quantization", "Table"]

_LARGEST = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Quantization:
    """The scales and zero points of a convolution: ``number = scale * (integer - zero_point)``. w's zero point is 0.

    ``w_scale`` is one number, or one an output channel. ``dtype`` is y's: ``"int8"`` and ``"uint8"`` are requantized,
    ``"int32"`` is the sum as it is, ``"float32"`` and ``"float16"`` are ``x_scale * w_scale * sum``; these have no
    ``y_scale`` and no ``y_zero_point``. Of x in ``"float8_e4m3"`` or ``"float8_e5m2"``, y is one of these, with a
    ``y_scale``, or ``"float32"``, ``"float16"``, ``"bfloat16"``; there are no zero points.

    A residual of 8 bits has ``residual_scale`` and ``residual_zero_point``. With ``sum_scale`` the convolution is
    rounded to 8 bits by itself (``sum_scale``, ``sum_zero_point``) before the residual is added, as a graph does that
    has a node of its own for the addition.

    Raises InvalidArgument for what is no scale, and for zero points outside of their dtype.
    """

    x_scale: float = 1.0
    x_zero_point: int = 0
    w_scale: float | Sequence[float] | np.ndarray = 1.0
    y_scale: float | None = None
    y_zero_point: int = 0
    dtype: str = "int32"
    residual_scale: float = 1.0
    residual_zero_point: int = 0
    sum_scale: float | None = None
    sum_zero_point: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ALL_DTYPES or self.dtype == "float64":
            known = ", ".join(name for name in ALL_DTYPES if name != "float64")
            raise InvalidArgument(
                f"y is of {known}, got dtype={self.dtype!r}; 4 bits and scales of blocks are not here: "
                "unpack to int8, or dequantize and convolve in float16"
            )
        for name in ("x_scale", "y_scale", "residual_scale", "sum_scale"):
            value = getattr(self, name)
            if value is not None and not (np.ndim(value) == 0 and math.isfinite(value) and value > 0):
                raise InvalidArgument(f"{name} must be a finite number above 0, got {value!r}")
        scales = np.asarray(self.w_scale, np.float32)
        if scales.ndim > 1 or not (np.isfinite(scales).all() and (scales > 0).all()):
            raise InvalidArgument(
                "w_scale must be a finite number above 0, or one an output channel; scales of blocks are not here: "
                "requantize the weights by channels"
            )
        if self.dtype not in INTEGERS and self.y_zero_point:
            raise InvalidArgument(f"y of {self.dtype} has no y_zero_point")
        if self.dtype not in QUANTIZED_INPUTS and self.y_scale is not None:
            raise InvalidArgument(f"y of {self.dtype} has no y_scale")
        if self.dtype in INTEGERS:
            self._in_range("y_zero_point", self.dtype)
            self._in_range("residual_zero_point", self.dtype)
            self._in_range("sum_zero_point", self.dtype)
        elif self.sum_scale is not None:
            raise InvalidArgument(f"sum_scale is for y of integers of 8 bits, got {self.dtype}")

    def _in_range(self, name: str, dtype: str) -> None:
        limits, value = np.iinfo(dtype), getattr(self, name)
        if not limits.min <= value <= limits.max:
            raise InvalidArgument(f"{name} must lie within {dtype}, {limits.min} to {limits.max}, got {value}")

    def multipliers(self, channels: int, *, residual: bool = False) -> np.ndarray:
        """The factors by which the sums are multiplied: float32, one per output channel. Raises InvalidArgument.

        With a residual, sums without ``sum_scale`` become numbers first, which are added and then divided by y_scale.
        """
        w_scale = np.asarray(self.w_scale, np.float32).reshape(-1)
        if w_scale.size not in (1, channels):
            raise InvalidArgument(f"w_scale must have 1 or {channels} numbers, one a channel, got {w_scale.size}")
        if self.dtype == "int32":
            return np.ones(channels, np.float32)
        target = self.sum_scale if self.sum_scale is not None else None if residual else self.y_scale
        factors = np.float32(self.x_scale) * w_scale
        factors = factors if target is None else factors / np.float32(target)
        return np.ascontiguousarray(np.broadcast_to(factors, (channels,)))

    def bounds(self, activation: str | None) -> tuple[float, float]:
        """The least and the largest y without its zero point. Raises InvalidArgument for unsupported activations."""
        low, high = -math.inf, math.inf
        if activation is not None:
            name, numbers = parse_activation(activation)
            if name == "relu":
                low = 0.0
            elif name in ("relu6", "clip") and self.dtype != "int32":
                low, high = (0.0, 6.0) if name == "relu6" else numbers[:2]
            else:
                fused = "relu" if self.dtype == "int32" else "relu, relu6 and clip"
                raise InvalidArgument(
                    f"a quantized convolution of {self.dtype} fuses {fused}, got {activation!r}: let y be float32 and "
                    "apply it, or look its 256 values up in a table"
                )
        if self.dtype not in INTEGERS:
            return low, high
        scale, limits = np.float32(self.y_scale or 1.0), np.iinfo(self.dtype)
        if activation is not None:
            low, high = (float(np.rint(np.float32(limit) / scale)) for limit in (low, high))
        return max(low, limits.min - self.y_zero_point), min(high, limits.max - self.y_zero_point)

    def float8_table(
        self, channels: int, bias: Any = None, *, activation: str | None = None, residual: bool = False
    ) -> np.ndarray:
        """``table`` for x and w of float8, with a float32 bias. Raises InvalidArgument."""
        if self.x_zero_point:
            raise InvalidArgument(f"x of float8 has no x_zero_point, got {self.x_zero_point}")
        words = np.zeros(HEADER + 2 * channels, np.int32)
        floats = words.view(np.float32)
        floats[Table.low], floats[Table.high] = self.bounds(activation)
        floats[Table.residual_scale], floats[Table.y_scale] = self.residual_scale, self.y_scale or 1.0
        if bias is not None:
            floats[HEADER : HEADER + channels] = _checked_bias(bias, np.float32, channels)
        floats[HEADER + channels :] = self.multipliers(channels, residual=True)
        return words

    def table(
        self, channels: int, bias: Any = None, *, activation: str | None = None, residual: bool = False
    ) -> np.ndarray:
        """The int32 table that kernels read instead of a bias; ``Table`` lists its words.

        ``bias`` is int32, in units of ``x_scale * w_scale``. Raises InvalidArgument.
        """
        words = np.zeros(HEADER + 2 * channels, np.int32)
        floats = words.view(np.float32)
        words[Table.x_zero], words[Table.y_zero] = self.x_zero_point, self.y_zero_point
        low, high = self.bounds(activation)
        floats[Table.low], floats[Table.high] = low, high
        words[Table.least], words[Table.most] = max(low, -_LARGEST - 1), min(high, _LARGEST)
        floats[Table.sum_scale], floats[Table.residual_scale], floats[Table.y_scale] = 1.0, 1.0, 1.0
        floats[Table.sum_low], floats[Table.sum_high] = -math.inf, math.inf
        if residual and self.dtype in INTEGERS:
            words[Table.residual_zero] = self.residual_zero_point
            floats[Table.residual_scale], floats[Table.y_scale] = self.residual_scale, self.y_scale or 1.0
            if self.sum_scale is not None:
                limits = np.iinfo(self.dtype)
                words[Table.rounds] = 1
                floats[Table.sum_scale] = self.sum_scale
                floats[Table.sum_low] = limits.min - self.sum_zero_point
                floats[Table.sum_high] = limits.max - self.sum_zero_point
        elif self.sum_scale is not None:
            raise InvalidArgument("sum_scale is the convolution's own where a residual is added: give residual")
        if bias is not None:
            words[HEADER : HEADER + channels] = _checked_bias(bias, np.int32, channels)
        floats[HEADER + channels :] = self.multipliers(channels, residual=residual and self.dtype in INTEGERS)
        magnitudes = [floats[value] for value in (Table.sum_scale, Table.residual_scale, Table.y_scale)]
        magnitudes += [floats[HEADER + channels :].min(initial=1), floats[HEADER + channels :].max(initial=1)]
        words[Table.usual] = all(2.0**-40 < value < 2.0**40 for value in magnitudes)
        if self.dtype in INTEGERS and (low, high) == self.bounds(None):
            largest = floats[HEADER + channels :].max(initial=0)
            if residual:  # with a residual, y is the sum of two numbers that were each rounded to 8 bits
                sides = floats[Table.sum_scale] + floats[Table.residual_scale]
                largest = sides / floats[Table.y_scale] / 2**20 if words[Table.rounds] else np.inf
            words[Table.saturates] = largest < 1
        return words


def _checked_bias(bias: Any, dtype: type, channels: int) -> np.ndarray:
    """``bias`` as an array. Raises InvalidArgument."""
    array = np.asarray(bias)
    if array.dtype == dtype and array.shape == (channels,):
        return array
    unit, remedy = ", in units of x_scale * w_scale", ": np.rint(bias / (x_scale * w_scale)).astype(np.int32)"
    unit, remedy = (unit, remedy) if dtype is np.int32 else ("", "")
    raise InvalidArgument(
        f"a quantized convolution's bias is {np.dtype(dtype)} of shape ({channels},){unit}, "
        f"got {array.dtype} of shape {array.shape}{remedy}"
    )


class Table:
    """The indices of the table's words, int32 or float32; ``bias[channels]`` and ``multiplier[channels]`` follow.

    ``usual`` is 1 if no scale is so large or small that a division by it needs care; ``saturates`` is 1 if all numbers
    divided by y's scale fit in int32, and y's bounds are those of its dtype.
    """

    x_zero, y_zero, residual_zero, rounds, residual_scale, sum_scale, low, high = range(8)
    sum_low, sum_high, least, most, y_scale, usual, saturates = range(8, 15)
