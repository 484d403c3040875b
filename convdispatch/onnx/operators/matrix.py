"""Gemm and MatMul: with constant matrices the linear maps that convolutions compute, else batched products."""

from __future__ import annotations

import functools
import math

import numpy as np

from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .elementwise import formula
from .integers import product_of_integers


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
