"""Reductions over axes, and where the largest and smallest are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...elementwise import apply, argmax, reduce, topk
from ...elementwise.tensor import Tensor
from ..call import BoundNode, operator

_SIMPLE = {
    "ReduceSum": ("sum", "x", ""),
    "ReduceMean": ("mean", "x", ""),
    "ReduceMax": ("max", "x", ""),
    "ReduceMin": ("min", "x", ""),
    "ReduceProd": ("prod", "x", ""),
    "ReduceL1": ("sum", "abs(x)", ""),
    "ReduceL2": ("sum", "square(x)", "sqrt(s)"),
    "ReduceSumSquare": ("sum", "square(x)", ""),
    "ReduceLogSum": ("sum", "x", "log(s)"),
}
"""For each operator the reduction, the formula of what is reduced, and the formula that is applied to the result."""
_EMPTY = {
    "ReduceMax": -np.inf,
    "ReduceMin": np.inf,
    "ReduceProd": 1,
    "ReduceLogSum": -np.inf,
    "ReduceLogSumExp": -np.inf,
}


def _axes(call: BoundNode) -> tuple[tuple[int, ...], bool]:
    ndim = len(call.shape(0))
    axes = call.either("axes", 1)
    if not axes:
        if call.get("noop_with_empty_axes", 0):
            return (), True
        axes = range(ndim)
    axes_found = tuple(axis + ndim if axis < 0 else axis for axis in axes)
    if any(not 0 <= axis < ndim for axis in axes_found):
        raise call.refuse(f"reduces axes {list(axes)} of {ndim}")
    return axes_found, False


@operator(*_SIMPLE, "ReduceLogSumExp")
def _reduction(call: BoundNode) -> Any:
    x, kind = call.tensor(0), call.node.op_type
    (axes, nothing), keep = _axes(call), bool(call.get("keepdims", 1))
    if nothing and kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        return x
    if not x.size and not all(x.shape[a] for a in axes):
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes)
        value = _EMPTY.get(kind, 0)
        if not np.isfinite(value) and x.dtype.kind in "iu":
            value = np.iinfo(x.dtype).max if value > 0 else np.iinfo(x.dtype).min
        elif x.dtype.kind == "b":
            value = value > 0
        return np.full(shape, value, x.dtype)
    if kind == "ReduceLogSumExp":
        largest = reduce("max", "x", axes, keepdims=True, x=x)
        total = reduce("sum", "exp(x - m)", axes, keepdims=True, x=x, m=largest)
        y = apply("m + log(t)", m=largest, t=total)
        return _narrow(y if keep else _squeezed(y, axes), x.dtype)
    operation, text, final_formula = _SIMPLE[kind]
    if not axes:
        y = apply(text, x=x, dtype=x.dtype)
    else:
        y = reduce(operation, text, axes, keepdims=keep, x=x)
    y = apply(final_formula, s=y) if final_formula else y
    return _narrow(y, x.dtype)


def _squeezed(y: Tensor, axes: tuple[int, ...]) -> Tensor:
    return y.reshape(*(size for a, size in enumerate(y.shape) if a not in axes))


def _narrow(y: Tensor, dtype: np.dtype) -> Tensor:
    text = "trunc(x)" if dtype.kind in "iu" and y.dtype.kind == "f" else "x"
    return y if y.dtype == dtype else apply(text, x=y, dtype=dtype)  # type: ignore[no-any-return]


@operator("ArgMax", "ArgMin")
def _arg(call: BoundNode) -> Tensor:
    options = {"keepdims": bool(call.get("keepdims", 1)), "last": bool(call.get("select_last_index", 0))}
    return argmax(call.tensor(0), call.axis(0), largest=call.node.op_type == "ArgMax", **options)  # type: ignore


@operator("TopK")
def _topk(call: BoundNode) -> tuple[Tensor, Tensor]:
    (k,) = call.either("k", 1) if call.has(1) else [call.get("k")]
    return topk(call.tensor(0), k, call.axis(-1), largest=bool(call.get("largest", 1)))  # type: ignore[no-any-return]


@operator("CumSum")
def _cumulative(call: BoundNode) -> Tensor:
    """A product with a triangle of ones, for rows of moderate length."""
    x, (axis,) = call.tensor(0), call.ints(1)
    axis %= x.ndim
    n = x.shape[axis]
    if n * math.prod(x.shape) > 1 << 28:
        raise call.refuse(f"sums {n} elements one after the other, which is not here for so many")
    positions = np.arange(n)
    mask = positions[:, None] < positions[None] if call.get("exclusive", 0) else positions[:, None] <= positions[None]
    mask = mask[::-1, ::-1] if call.get("reverse", 0) else mask
    shape = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
    expanded = x[(*[slice(None)] * (axis + 1), None)].expand(*x.shape[: axis + 1], n, *x.shape[axis + 1 :])
    triangle = call.upload(mask.reshape(n, n, *[1] * (len(shape) - axis - 2)))
    y = reduce("sum", "where(t, x, 0)", axis, x=expanded, t=triangle)
    return _narrow(y, x.dtype)
