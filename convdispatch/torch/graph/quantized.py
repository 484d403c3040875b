"""PyTorch's quantized programs (PT2E) by convdispatch: integer tensors between layers, and integer convolutions.

An exported program says what is rounded by operators of ``quantized_decomposed``, which stand around each operation of
numbers; weights are int8 behind a dequantization. A convolution between such is one of integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ...api.quantization import Quantization
from ...elementwise.tensor import Tensor
from ...nn import functional, quantized

BYTES = (torch.int8, torch.uint8)
_LIBRARY = "quantized_decomposed"
QUANTIZING = (f"{_LIBRARY}.quantize_per_tensor.default", f"{_LIBRARY}.quantize_per_tensor.tensor")
DEQUANTIZING = (f"{_LIBRARY}.dequantize_per_tensor.default", f"{_LIBRARY}.dequantize_per_tensor.tensor")
_PER_CHANNEL = f"{_LIBRARY}.dequantize_per_channel.default"


class Missing(Exception):
    """Raised for an operation without a counterpart; the text says what is missing."""


class _Integers(NamedTuple):
    """The integers from which floating-point numbers were dequantized, with scales and zero points of the tensor or of
    its first axis."""

    values: Any
    scale: np.ndarray
    zero: np.ndarray


def _form(scale: Any, zero: Any, lowest: int, highest: int, dtype: Any) -> tuple[float, int, str]:
    name = str(dtype).removeprefix("torch.")
    scale, zero = float(scale), int(zero)
    if dtype not in BYTES or (lowest, highest) != (np.iinfo(name).min, np.iinfo(name).max):
        raise Missing(f"integers of {name} from {lowest} to {highest}")
    if not (np.isfinite(scale) and scale > 0):
        raise Missing(f"a scale of {scale}")
    return scale, zero, name


def quantize(net: Any, x: Any, scale: Any, zero: Any, least: int, most: int, dtype: Any) -> Tensor:
    """Quantize floating-point numbers, by one scale; raises Missing for a range that is not the dtype's."""
    return quantized.quantize(x, *_form(scale, zero, least, most, dtype))  # type: ignore[no-any-return]


def dequantize(
    net: Any, x: Any, scale: Any, zero: Any, least: int, most: int, dtype: Any, *, out_dtype: Any = None
) -> Tensor:
    """Dequantize integers; the result is known to be made of these integers from then on."""
    if out_dtype not in (None, torch.float32):
        raise Missing(f"integers to {out_dtype}")
    factor, point, _ = _form(scale, zero, least, most, dtype)
    dequantized: Tensor = quantized.dequantize(x, factor, point)
    net.integers.hold(dequantized, _Integers(x, np.float32([factor]), np.int64([point])))
    return dequantized


class Known:
    """Which tensors and constants are dequantized integers, by id; each is referenced, so that its id is not reused."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, _Integers]] = {}

    def hold(self, numbers: Any, integers: _Integers) -> None:
        """Note that ``numbers`` were dequantized from ``integers``."""
        self._found[id(numbers)] = numbers, integers

    def of(self, numbers: Any) -> _Integers | None:
        """The integers from which numbers were dequantized, or None."""
        entry = self._found.get(id(numbers))
        return None if entry is None else entry[1]

    def note(self, node: Any, constants: dict[Any, torch.Tensor]) -> None:
        """Note the integers of a constant that was dequantized from them, and of its transpose."""
        name, constant = str(node.target), constants[node]
        source_integers = self.of(constants.get(node.args[0]))
        if (
            name in ("aten.t.default", "aten.permute.default", "aten.transpose.int")
            and source_integers
            and constant.ndim == 2
        ):
            self.hold(constant, source_integers)
        elif name in (*DEQUANTIZING, _PER_CHANNEL):
            values, scale, zero, *axis_and_range = (constants.get(each, each) for each in node.args)
            if values.dtype is torch.int8 and (name != _PER_CHANNEL or axis_and_range[0] == 0):
                numbers = (torch.as_tensor(each).reshape(-1).numpy() for each in (scale, zero))
                self.hold(constant, _Integers(values, *numbers))

    def convolution(self, net: Any, x: Any, w: Any, bias: Any, geometry: dict[str, Any]) -> Tensor | None:
        """The convolution of integers, as floating-point numbers; None if x or w is not dequantized, or w has a zero
        point."""
        input_integers, weights = self.of(x), self.of(w)
        if input_integers is None or weights is None or weights.zero.any() or not (weights.scale > 0).all():
            return None
        factor = input_integers.scale.astype(np.float64) * weights.scale.astype(np.float64)
        integer_bias = None
        if bias is not None:
            rounded_bias = np.rint(bias.detach().numpy().astype(np.float64) / factor)
            if not (np.isfinite(rounded_bias).all() and (abs(rounded_bias) < 1 << 30).all()):
                return None
            integer_bias = rounded_bias.astype(np.int32)
        scale, zero = float(input_integers.scale[0]), int(input_integers.zero[0])
        quantization = Quantization(scale, zero, weights.scale.astype(np.float32), dtype="float32")
        options = {name: value for name, value in geometry.items() if name != "math"}
        values = weights.values.reshape(
            *weights.values.shape, *[1] * (input_integers.values.ndim - weights.values.ndim)
        )
        return quantized.quantized_convolution(  # type: ignore[no-any-return]
            input_integers.values, net.put(values), integer_bias, quantization=quantization, **options
        )

    def product(self, net: Any, x: Any, w: Any, bias: Any) -> Tensor | None:
        """``x @ w.T + bias`` of integers, as a convolution of images of one pixel; None as ``convolution``."""
        input_integers = self.of(x)
        if input_integers is None or len(x.shape) != 2:
            return None
        pixels = input_integers._replace(values=functional.view(input_integers.values, (*x.shape, 1, 1)))
        numbers = object()
        self.hold(numbers, pixels)
        y = self.convolution(net, numbers, w, bias, {})
        return None if y is None else functional.view(y, y.shape[:2])
