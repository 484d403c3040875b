"""Products that are one activation, however a file writes them: ``x * sigmoid(x)``, ``x * hardsigmoid(x)`` and
``x * relu6(x + 3) / 6``, which convolutions take in. And of what a node is made: ``with_number``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...elementwise.tensor import Tensor
from ..call import BoundNode
from ..constants import scalar

_NEAR = 1e-6
"""The largest difference from 1 / 6 of a constant that counts as a sixth, because files round it to float32."""


def gate(call: BoundNode) -> tuple[Tensor, str] | None:
    """The x of a ``Mul`` or ``Div`` that ends such a product, and the activation's name; None for any other node."""
    if call.opset < 7:  # Before operator set 7 an attribute says along which axis operands broadcast.
        return None
    left, right = call.raw(0), call.raw(1)
    # A scalar may have more axes than x; then the result's shape differs from that of x.
    shape = np.broadcast_shapes(left.shape, right.shape)
    for x, factor in ((left, right), (right, left)) if call.node.op_type == "Mul" else ():
        name = _gated(call, factor, x)
        if name is not None and x.shape == shape:
            return x, name
    undivided = _sixth(call, call.node.op_type, (left, right))
    maker, operands, _ = _made(call, undivided)
    if maker == "Mul":
        for x, clipped in (operands, operands[::-1]):
            if _is_float(x) and x.shape == shape and _above_three(call, clipped) is x:
                return x, "hardswish"
    return None


def _gated(call: BoundNode, factor: Any, x: Any) -> str | None:
    """What x times this factor is called, if the factor is made of x."""
    maker, operands, attributes = _made(call, factor)
    if not _is_float(x) or maker is None:
        return None
    if maker in ("Sigmoid", "HardSigmoid"):
        slope, middle = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
        same = maker == "Sigmoid" or (abs(slope * 6 - 1) < _NEAR and middle == 0.5)
        return {"Sigmoid": "silu", "HardSigmoid": "hardswish"}[maker] if same and operands[0] is x else None
    return "hardswish" if _above_three(call, _sixth(call, maker, operands)) is x else None


def _sixth(call: BoundNode, kind: str, operands: Any) -> Any:
    """The v of ``v / 6`` or ``v * (1 / 6)``; None for another node."""
    if kind == "Div" and scalar(operands[1]) == 6:
        return operands[0]
    for value, factor in (operands, operands[::-1]) if kind == "Mul" else ():
        number = scalar(factor)
        if number is not None and abs(number * 6 - 1) < _NEAR:
            return value
    return None


def _above_three(call: BoundNode, value: Any) -> Any:
    """The x of ``clip(x + 3, 0, 6)``; None for another value."""
    maker, operands, attributes = _made(call, value)
    if maker != "Clip":
        return None
    bounds = [attributes.get(key) for key in ("min", "max")]
    for index, bound in enumerate(operands[1:3]):
        bounds[index] = bounds[index] if bound is None else scalar(bound)
    x, three = with_number(call, operands[0], "Add")
    return x if bounds == [0, 6] and three == 3 else None


def with_number(call: BoundNode, value: Any, kind: str) -> tuple[Any, float | int | None]:
    """The operand of the ``kind`` of node that made a value, and the number beside it; a power's is the second one."""
    maker, operands, _ = _made(call, value)
    for tensor_index, number_index in ((0, 1), (1, 0)) if kind != "Pow" else ((0, 1),):
        if maker == kind and isinstance(operands[tensor_index], Tensor) and scalar(operands[number_index]) is not None:
            return operands[tensor_index], scalar(operands[number_index])
    return None, None


def _made(call: BoundNode, value: Any) -> tuple[str | None, Any, dict[str, Any]]:
    """Operator, operands and attributes of what made a value."""
    return call.interpreter.made.get(id(value), (None, (), {}))  # type: ignore[no-any-return]


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.kind == "f"
