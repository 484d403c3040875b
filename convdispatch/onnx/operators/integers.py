"""Convolutions and products of integers: ONNX's own, and those between a dequantization and constant weights.

The zero point is subtracted from constant weights first. Differences of more than 8 bits are split into two or three
int8 arrays whose sum they are, and the results of their convolutions are added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...api.quantization import Quantization
from ...elementwise import apply
from ...elementwise.tensor import Tensor
from ...nn import functional, quantized
from ..call import BoundNode, operator
from .elementwise import scalar
from .quantization import Integers, integers_of, positive, zero_of
from .windows import convolution_windows

_EXACT = 1 << 24
"""The bound below which all whole numbers are exact in float32."""


def _bytes(call: BoundNode, values: np.ndarray, zero: np.ndarray) -> list[np.ndarray]:
    """Weights less their zero point along the first axis as int8 arrays whose sum they are, made once: one, two, or
    three where a difference is 255."""
    parts: list[np.ndarray] = []
    if values.dtype == np.int8 and not zero.any():
        parts = [values]
    else:
        wide = (-1, *[1] * (values.ndim - 1)) if zero.size > 1 else ()
        remainder = values.astype(np.int16) - zero.astype(np.int16).reshape(wide)
        while not parts or remainder.any():
            parts.append(np.clip(remainder, -128, 127).astype(np.int8))
            remainder = remainder - parts[-1]
    key = zero.tobytes()
    return [call.interpreter.derive(("bytes", i, key), values, lambda part=part: part) for i, part in enumerate(parts)]


def _summed(
    call: BoundNode,
    x: Tensor,
    parts: Sequence[np.ndarray],
    bias: np.ndarray | None,
    quantization: Quantization,
    zero: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The convolution with the sum of ``parts``; y of several is worked out of whole sums."""
    options["x_zero_point"] = zero
    if len(parts) == 1:
        w = call.upload(parts[0])
        return quantized.quantized_convolution(x, w, bias, quantization=quantization, **options)
    sums = Quantization(x_zero_point=quantization.x_zero_point)
    y = None
    for part in reversed(parts):
        added = bias if part is parts[0] else None
        y = quantized.quantized_convolution(x, call.upload(part), added, quantization=sums, residual=y, **options)
    if quantization.dtype == "int32":
        return y  # type: ignore[no-any-return]
    channels = len(parts[0])
    factors = quantization.multipliers(channels).reshape(1, channels, *[1] * (y.ndim - 2))
    text, dtype = "y * m", np.dtype(quantization.dtype)
    if dtype.kind in "iu":
        text = quantized.quantized_formula(text, 1.0, quantization.y_zero_point, dtype)
    return apply(text, dtype=dtype, y=y, m=call.upload(factors))  # type: ignore[no-any-return]


def _bias(values: Any, scale: np.ndarray, integers: Integers | None) -> np.ndarray | bool | None:
    """A bias in units of ``scale``, int32; False where it is not known or too large."""
    if values is None:
        return None
    if not isinstance(values, np.ndarray):
        return False
    if integers is not None and isinstance(integers.values, np.ndarray) and integers.values.dtype == np.int32:
        same = np.allclose(integers.scale, scale, rtol=1e-5, atol=0) and not integers.zero.any()
        if same and integers.values.ndim == 1:
            return integers.values
    rounded = np.rint(values.astype(np.float64).reshape(-1) / scale)
    return rounded.astype(np.int32) if np.isfinite(rounded).all() and (abs(rounded) < 1 << 30).all() else False


def _between(call: BoundNode, x_place: int, w_place: int, axis: int) -> tuple[Integers, Integers] | None:
    """Integers of x, which the net computes, and of w, which is constant and has scales along ``axis``."""
    x, w = integers_of(call, x_place), integers_of(call, w_place)
    if x is None or w is None or not isinstance(x.values, Tensor) or not isinstance(w.values, np.ndarray):
        return None
    narrow = all(each.values.dtype.name in ("int8", "uint8") for each in (x, w))
    if not narrow or x.scale.size != 1 or x.scale.dtype.name not in ("float32", "float16"):
        return None
    return (x, w) if w.scale.size == 1 or w.axis == axis else None


def convolution_of_integers(call: BoundNode, pads: Sequence[tuple[int, int]]) -> Tensor | None:
    """Conv of dequantized integers and dequantized constants; None for any other."""
    operands = _between(call, 0, 1, 0) if all(p >= 0 for pair in pads for p in pair) else None
    if operands is None:
        return None
    x, w = operands
    options = convolution_windows(call).options(call) | {"padding": tuple(pads)}
    return _numbers(call, x, w, _bytes(call, w.values, w.zero), 2, **options)


def _numbers(
    call: BoundNode, x: Integers, w: Integers, parts: Sequence[np.ndarray], bias_place: int, **options: Any
) -> Tensor | None:
    """A convolution whose result is numbers."""
    scale = np.float32(x.scale.reshape(())) * w.scale.astype(np.float32).reshape(-1)
    bias = None
    if bias_place >= 0 and call.has(bias_place):
        bias = _bias(call.raw(bias_place), scale.astype(np.float64), integers_of(call, bias_place))
        if bias is False:
            return None
    quantization = Quantization(
        float(x.scale.reshape(())),
        int(x.zero.reshape(())),
        w.scale.astype(np.float32).reshape(-1),
        dtype=x.scale.dtype.name,
    )
    return _summed(call, x.values, parts, bias, quantization, **options)  # type: ignore[arg-type]


def product_of_integers(call: BoundNode, bias_place: int = -1, *, transposed: bool = False) -> Tensor | None:
    """``x @ w + bias`` of dequantized integers and a dequantized constant matrix; None for any other."""
    operands = _between(call, 0, 1, 0 if transposed else 1)
    if operands is None or len(operands[0].values.shape) < 2 or operands[1].values.ndim != 2:
        return None
    x, w = operands
    rows = _rows(call, w.values, transposed)
    turned = Integers(rows, w.scale, w.zero, 0)
    return _of_rows(
        call,
        x.values,
        _bytes(call, rows, w.zero),
        lambda given, parts: _numbers(call, x._replace(values=given), turned, parts, bias_place),
    )


def _rows(call: BoundNode, matrix: np.ndarray, transposed: bool = False) -> np.ndarray:
    """A constant matrix with a row for each element of a result's row, made once."""
    make = lambda: np.ascontiguousarray(matrix if transposed else matrix.T)  # noqa: E731
    return call.interpreter.derive(("rows", transposed), matrix, make)  # type: ignore[no-any-return]


def _of_rows(call: BoundNode, x: Tensor, parts: Sequence[np.ndarray], compute: Any) -> Tensor | None:
    """A product as a convolution of pictures of one pixel."""
    *leading_shape, k = x.shape
    pixels = functional.view(x, (math.prod(leading_shape), k, 1, 1))
    kernels = [
        call.interpreter.derive(("pixel",), part, lambda part=part: part.reshape(*part.shape, 1, 1)) for part in parts
    ]
    y = compute(pixels, kernels)
    return None if y is None else functional.view(y, (*leading_shape, len(parts[0])))


def _scale(call: BoundNode, index: int) -> np.ndarray:
    scale = call.known(index)
    if scale.ndim > 1 or not positive(scale):
        raise call.refuse(f"takes scales above 0, one or one a channel, got {scale.tolist()}")
    return scale.astype(np.float32).reshape(-1)


def _channels(call: BoundNode, index: int, channels: int) -> None:
    size = call.known(index).size
    if size not in (1, channels):
        raise call.refuse(f"takes 1 or {channels} numbers at {call.node.input[index]!r}, got {size}")


def _quantization(call: BoundNode, w_place: int, y_zero: np.ndarray) -> Quantization:
    """A QLinear operator's scales and zero points: x's follow x, w's follow w at ``w_place``, y's come last."""
    x_zero = zero_of(call, 2, call.raw(0).dtype)
    return Quantization(
        float(_scale(call, 1)[0]),
        int(x_zero.reshape(())),
        _scale(call, w_place + 1),
        float(_scale(call, 6)[0]),
        int(y_zero.reshape(())),
        dtype=y_zero.dtype.name,
    )


@operator("QLinearConv")
def _qlinear_convolution(call: BoundNode) -> Tensor:
    x, w = call.tensor(0), call.known(3)
    windows = convolution_windows(call, 3)
    options = windows.options(call) | {"padding": tuple(windows.pads(call))}
    _channels(call, 4, len(w))
    quantization = _quantization(call, 3, zero_of(call, 7, x.dtype))
    bias = call.known(8) if call.has(8) else None
    return _summed(call, x, _bytes(call, w, zero_of(call, 5, w.dtype)), bias, quantization, **options)


def _moving(call: BoundNode, index: int) -> tuple[int, Tensor | None]:
    """x's zero point: a number, or a tensor of one that the net computes."""
    value = call.raw(index) if call.has(index) else np.zeros((), np.uint8)
    if isinstance(value, Tensor):
        if value.size != 1:
            raise call.refuse("has a zero point a row of x that the net computes, which is not here")
        return 0, value
    if value.size != 1:
        raise call.refuse("has a zero point a row of x, which is not here: give one for all of x")
    return int(value.reshape(())), None


@operator("ConvInteger")
def _integer_convolution(call: BoundNode) -> Tensor:
    x, w = call.tensor(0), call.known(1)
    windows, (zero, moving) = convolution_windows(call), _moving(call, 2)
    options = windows.options(call) | {"padding": tuple(windows.pads(call))}
    parts = _bytes(call, w, zero_of(call, 3, w.dtype))
    return _summed(call, x, parts, None, Quantization(x_zero_point=zero), moving, **options)


@operator("MatMulInteger")
def _integer_product(call: BoundNode) -> Tensor:
    b, has_one_zero_point = call.raw(1), not call.has(2) or math.prod(call.shape(2)) == 1
    if has_one_zero_point and _is_matrix(call, b):
        zero, moving = _moving(call, 2)
        quantization = Quantization(x_zero_point=zero)
        return _product(call, b, zero_of(call, 3, b.dtype), quantization, moving)
    return apply("s", dtype=np.int32, s=_exact_product(call, (0, 2), (1, 3)))  # type: ignore[no-any-return]


def _is_matrix(call: BoundNode, b: Any) -> bool:
    """Whether b is a constant matrix, by which rows of the first operand are multiplied."""
    a = call.raw(0)
    return isinstance(b, np.ndarray) and b.ndim == 2 and len(a.shape) > 1 and bool(b.size and math.prod(a.shape))


def _product(
    call: BoundNode, b: np.ndarray, zero: np.ndarray, quantization: Quantization, moving: Tensor | None = None
) -> Tensor:
    """The product with a constant matrix as a convolution; ``moving`` is x's zero point where the net computes it."""
    parts = _bytes(call, _rows(call, b), zero)
    product = _of_rows(
        call, call.tensor(0), parts, lambda x, parts: _summed(call, x, parts, None, quantization, moving)
    )
    assert product is not None
    return product


def _exact_product(call: BoundNode, *pairs: tuple[int, int]) -> Tensor:
    """The product of two tensors of integers less their zero points, by whole numbers in a floating-point dtype."""
    length = call.shape(pairs[0][0])[-1]
    dtype = np.float32 if length * 255 * 255 < _EXACT else np.float64
    factors = []
    for side, (value, zero) in enumerate(pairs):
        operand = call.tensor(value)
        point = scalar(call.raw(zero)) if call.has(zero) else 0
        if point is None:
            tensor = call.tensor(zero)
            point = functional.view(tensor, (-1, 1)) if tensor.ndim == 1 and tensor.size > 1 and not side else tensor
        factors.append(apply("x - z", dtype=dtype, x=operand, z=point))
    a, b = factors
    vector_sides = [each for each, factor in ((0, a), (1, b)) if factor.ndim == 1]
    a = functional.view(a, (1, *a.shape)) if a.ndim == 1 else a
    b = functional.view(b, (*b.shape, 1)) if b.ndim == 1 else b
    y = functional.matmul(a, b, "ieee" if dtype == np.float32 else "float32")
    shape = list(y.shape)
    for each in vector_sides:
        shape.pop(-1 if each else len(shape) - 2)
    return functional.view(y, shape) if vector_sides else y


@operator("QLinearMatMul")
def _qlinear_product(call: BoundNode) -> Tensor:
    b, y_zero = call.raw(3), zero_of(call, 7, call.raw(0).dtype)
    if math.prod(call.shape(1)) == 1 and call.known(2).size == 1 and _is_matrix(call, b):
        return _product(call, b, call.known(5), _quantization(call, 3, y_zero))
    sums = _exact_product(call, (0, 2), (3, 5))
    scales = [call.known(index).astype(np.float32) for index in (1, 4, 6)]
    scales[0] = scales[0].reshape(-1, 1) if scales[0].ndim == 1 and scales[0].size > 1 else scales[0]
    factor = scales[0] * scales[1] / scales[2]
    number = scalar(factor)
    m = number if number is not None else call.upload(factor)
    text = quantized.quantized_formula("s * m", 1.0, int(y_zero.reshape(-1)[0]), y_zero.dtype)
    if y_zero.size > 1:
        raise call.refuse("has a zero point a row of y, which is not here: give one for all of y")
    return apply(text, dtype=y_zero.dtype, s=sums, m=m)  # type: ignore[no-any-return]
