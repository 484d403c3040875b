"""Activations with their parameters: those that ``conv()`` fuses by name, the others as formulas."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...api.activations import ACTIVATIONS
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .elementwise import formula, scalar

_NAMED = {
    each.onnx.operator: name for name, each in ACTIVATIONS.items() if each.onnx and each.onnx.attributes is not None
}
"""The activations whose parameters, if any, are attributes, by ONNX operator."""


@operator(*_NAMED)
def _named(call: BoundNode) -> Tensor:
    name = _NAMED[call.node.op_type]
    onnx_activation = ACTIVATIONS[name].onnx
    numbers = (
        [float(call.get(key, default)) for key, default in (onnx_activation.attributes or {}).items()]
        if onnx_activation
        else []
    )
    return functional.activate(call.tensor(0), f"{name}({','.join(map(repr, numbers))})" if numbers else name)


@operator("Clip")
def _clip(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    if call.opset < 11:
        bounds: list[Any] = [call.get("min"), call.get("max")]
    else:
        bounds = [call.raw(index) if call.has(index) else None for index in (1, 2)]
        bounds = [scalar(bound) if scalar(bound) is not None else bound for bound in bounds]
        bounds = [None if isinstance(b, np.ndarray) and not np.isfinite(b).all() else b for b in bounds]
    low, high = bounds
    if x.dtype.kind == "f" and not any(isinstance(bound, Tensor | np.ndarray) for bound in bounds):
        if low == 0 and high is None:
            return functional.activate(x, "relu")
        if low == 0 and high == 6:
            return functional.activate(x, "relu6")
        if low is not None and high is not None and low <= high:
            return functional.activate(x, f"clip({float(low)!r},{float(high)!r})")
    bounds_by_name = {name: bound for name, bound in (("low", low), ("high", high)) if bound is not None}
    bounds_by_name = {n: call.upload(b) if isinstance(b, np.ndarray) else b for n, b in bounds_by_name.items()}
    if not bounds_by_name:
        return x
    text = "max(x, low)" if "low" in bounds_by_name else "x"
    return formula(call, f"min({text}, high)" if "high" in bounds_by_name else text, x=x, **bounds_by_name)


@operator("PRelu")
def _parametric(call: BoundNode) -> Tensor:
    x, slope = call.tensor(0), call.raw(1)
    number = scalar(slope)
    if number is not None and x.dtype.kind == "f" and len(slope.shape) <= x.ndim:
        return functional.activate(x, f"leaky_relu({number!r})")
    wide = call.tensor(1)
    if call.opset < 7 and wide.ndim == 1 and x.ndim > 2:
        wide = functional.view(wide, (*wide.shape, *[1] * (x.ndim - 2)))
    return formula(call, "where(x < 0, x * s, x)", x=x, s=wide)


@operator("Gelu")
def _gelu(call: BoundNode) -> Tensor:
    tanh = call.word("approximate", ("none", "tanh")) == "tanh"
    return functional.activate(call.tensor(0), "gelu_tanh" if tanh else "gelu")


@operator("Swish")
def _swish(call: BoundNode) -> Tensor:
    alpha = float(call.get("alpha", 1.0))
    if alpha == 1:
        return functional.activate(call.tensor(0), "silu")
    return formula(call, "x * sigmoid(a * x)", x=call.tensor(0), a=alpha)


@operator("Softmax", "LogSoftmax")
def _softmax(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    function = functional.softmax if call.node.op_type == "Softmax" else functional.log_softmax
    if not x.size:
        return x
    if call.opset >= 13:
        return function(x, call.axis(-1))
    # Before operator set 13, Softmax treats all axes from ``axis`` on as one.
    axis = call.axis(1)
    if axis == x.ndim - 1 or (axis < x.ndim and all(size == 1 for size in x.shape[axis + 1 :])):
        return function(x, axis)
    flat = functional.view(x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))
    return functional.view(function(flat, 1), x.shape)


@operator("Hardmax")
def _hardmax(call: BoundNode) -> Tensor:
    from ...elementwise import argmax

    x, old = call.tensor(0), call.opset < 13
    axis = call.axis(1 if old else -1)
    flat = functional.view(x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))) if old else x
    axis = 1 if old else axis
    index = argmax(flat, axis, keepdims=True)
    shape = [1] * flat.ndim
    shape[axis] = flat.shape[axis]
    numbers = call.upload(np.arange(flat.shape[axis], dtype=np.int64).reshape(shape))
    y = formula(call, "where(p == n, 1, 0)", x.dtype, p=index, n=numbers)
    return functional.view(y, x.shape)
