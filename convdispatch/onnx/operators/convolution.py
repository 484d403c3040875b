"""The operators Conv and ConvTranspose: ONNX's padding modes are converted to numbers."""

from __future__ import annotations

import numpy as np

from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .integers import convolution_of_integers
from .shaping import padded
from .windows import AUTO_PADS, convolution_windows, same_pads


def _bias(call: BoundNode) -> Tensor | None:
    return call.tensor(2) if call.has(2) else None


@operator("Conv")
def _convolution(call: BoundNode) -> Tensor:
    windows = convolution_windows(call)
    sizes, pads = windows.sizes, windows.pads(call)
    of_integers = convolution_of_integers(call, pads)
    if of_integers is not None:
        return of_integers
    x, crop = call.tensor(0), any(p < 0 for pair in pads for p in pair)
    if crop:  # A negative pad crops the edge of the input.
        x = x[(slice(None), slice(None), *(slice(max(0, -n), s - max(0, -f)) for s, (n, f) in zip(sizes, pads)))]
        pads = [(max(0, before), max(0, after)) for before, after in pads]
    options = windows.options(call) | {"padding": tuple(pads), "math": _math(call)}
    return functional.convolution(x, call.tensor(1), _bias(call), **options)  # type: ignore[no-any-return]


@operator("ConvTranspose")
def _transposed(call: BoundNode) -> Tensor:
    windows = convolution_windows(call)
    sizes, kernel, strides, dilations = windows
    ndim, mode = len(sizes), call.word("auto_pad", AUTO_PADS)
    extra = list(call.get("output_padding", [0] * ndim))
    output_shape = call.get("output_shape")
    if output_shape is not None and len(output_shape) == ndim + 2:
        output_shape = output_shape[2:]
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if output_shape is None and mode.startswith("SAME"):
        output_shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if output_shape is None:
        pads = windows.pads(call)
    else:
        natural = [(i - 1) * s + r + e for i, s, r, e in zip(sizes, strides, reach, extra, strict=True)]
        totals = [size - target for size, target in zip(natural, output_shape, strict=True)]
        pads = [same_pads(total, mode) for total in totals]
        extra = [e + max(0, -total) for e, total in zip(extra, totals, strict=True)]
    x, options = call.tensor(0), windows.options(call) | {"math": _math(call)}
    # A negative pad, and output padding beyond the convolution's rounding, become zeros around the result.
    zeros_after: list[tuple[int, int]] = []
    for axis in range(ndim):
        pad_before, pad_after = pads[axis]
        added = 0
        if extra[axis] >= max(strides[axis], dilations[axis]) or (
            extra[axis] >= strides[axis] and pad_after < extra[axis]
        ):
            added, extra[axis] = extra[axis], 0
        zeros_after.append((max(0, -pad_before), max(0, -pad_after) + added))
        pads[axis] = (max(0, pad_before), max(0, pad_after))
    options |= {"padding": tuple(pads), "output_padding": tuple(extra)}
    zeros, bias = any(before or behind for before, behind in zeros_after), _bias(call)
    y = functional.transposed_convolution(x, call.tensor(1), None if zeros else bias, **options)
    if not zeros:
        return y  # type: ignore[no-any-return]
    y = padded(y, {axis + 2: pair for axis, pair in enumerate(zeros_after)}, "constant", 0.0)
    if bias is None:
        return y
    return functional.apply("y + b", y=y, b=functional.view(bias, (1, -1, *[1] * ndim)))  # type: ignore[no-any-return]


def _math(call: BoundNode) -> str:
    float32 = np.dtype(call.raw(0).dtype) == np.float32
    return call.math if float32 or call.math == "reproducible" else "float32"
