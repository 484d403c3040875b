"""Conv and ConvTranspose, whose padding modes are converted to numbers; Gemm and MatMul."""

from __future__ import annotations

import functools
import math

import numpy as np

from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .elementwise import formula
from .integers import convolution_of_integers, product_of_integers
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


# --- Gemm and MatMul: with constant matrices the linear maps that convolutions compute, else batched products --------


def _linear(call: BoundNode, x: Tensor, rows: np.ndarray, bias: Tensor | None) -> Tensor:
    """``x @ rows.T + bias`` with a constant matrix ``rows`` ``[n, k]``; rows of x are pictures of one pixel."""
    *leading_shape, k = x.shape
    flat = functional.view(x, (math.prod(leading_shape), k))
    return functional.view(functional.linear(flat, call.upload(rows), bias), (*leading_shape, len(rows)))


@operator("Gemm")
def _gemm(call: BoundNode) -> Tensor:
    a, b = call.tensor(0), call.raw(1)
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if alpha == 1 and beta == 1 and not call.get("transA", 0) and a.ndim == 2:
        bias_index = 2 if call.has(2) else -1
        wide = bias_index < 0 or call.shape(2) in ((b.shape[0 if call.get("transB", 0) else 1],),)
        of_integers = product_of_integers(call, bias_index, transposed=bool(call.get("transB", 0))) if wide else None
        if of_integers is not None:
            return of_integers
    if call.get("transA", 0):
        a = functional.contiguous(a.transpose(1, 0))
    if a.ndim != 2:  # Older models leave it to Gemm to flatten its operand.
        a = functional.view(a, (a.shape[0], -1))
    c = call.raw(2) if call.has(2) and beta != 0 else None
    if isinstance(b, np.ndarray) and b.dtype.kind == "f" and a.size and b.size:
        transposed, derive = bool(call.get("transB", 0)), call.interpreter.derive
        rows = b if transposed else derive(("rows",), b, lambda: np.ascontiguousarray(b.T))
        if alpha != 1:
            rows = derive(("times", alpha), rows, functools.partial(np.multiply, rows, b.dtype.type(alpha)))
        n = len(rows)
        if isinstance(c, np.ndarray) and c.size in (1, n) and (not c.shape or c.shape[-1] in (1, n)):
            wide = derive(("bias", n, beta), c, lambda: np.broadcast_to(c.reshape(-1) * c.dtype.type(beta), n).copy())
            return _linear(call, a, rows, call.upload(wide))
        y = _linear(call, a, rows, None)
    else:
        y = functional.matmul(a, call.tensor(1).transpose(1, 0) if call.get("transB", 0) else call.tensor(1), call.math)
        y = y if alpha == 1 else formula(call, "y * alpha", y=y, alpha=alpha)
    if c is None:
        return y
    beta_operand = {} if beta == 1 else {"beta": beta}
    return formula(call, "y + beta * c" if beta_operand else "y + c", y=y, c=call.tensor(2), **beta_operand)


@operator("MatMul")
def _matmul(call: BoundNode) -> Tensor:
    x, y = call.raw(0), call.raw(1)
    of_integers = product_of_integers(call)
    if of_integers is not None:
        return of_integers
    if x.dtype.kind in "iu":
        raise call.refuse("multiplies matrices of integers that the net computes, which is not here")
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.size and len(x.shape) > 1 and np.prod(x.shape):
        rows = call.interpreter.derive(("rows",), y, lambda: np.ascontiguousarray(y.T))
        return _linear(call, call.tensor(0), rows, None)
    mode = call.math if x.dtype == np.float32 else "float32"
    return functional.matmul(call.tensor(0), call.tensor(1), mode)  # type: ignore[no-any-return]
