"""Arithmetic, comparisons and functions, element by element, as formulas."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...elementwise import apply
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from ..folding import scalar
from ..reading import dtype_of

__all__ = ["QUOTIENT", "formula", "pair", "scalar"]

_FUNCTIONS = {
    "Abs": "abs", "Sign": "sign", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Erf": "erf", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos",
    "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
}  # fmt: skip
_ARITHMETIC = {"Add": "x + y", "Sub": "x - y", "Mul": "x * y"}
_TESTS = {
    "Equal": "x == y", "Less": "x < y", "Greater": "x > y", "LessOrEqual": "x <= y", "GreaterOrEqual": "x >= y",
    "And": "x and y", "Or": "x or y", "Xor": "(x != 0) != (y != 0)",
}  # fmt: skip
_MAGNITUDE = "abs(x) // abs(y)"
QUOTIENT = f"where((x < 0) != (y < 0), -({_MAGNITUDE}), {_MAGNITUDE})"
_MOST_OPERANDS = 8


def pair(call: BoundNode) -> dict[str, Any]:
    """The operands x and y: constants of one element as numbers, and y placed as operator sets before 7 say."""
    operands = {}
    rank = len(np.broadcast_shapes(call.shape(0), call.shape(1))) if call.opset >= 7 else len(call.shape(0))
    for index, name in enumerate("xy"):
        value = call.raw(index)
        number = scalar(value) if len(value.shape) <= rank and isinstance(call.raw(1 - index), Tensor) else None
        # A scalar takes the other operand's rank, so a scalar of more axes must stay an array.
        if number is not None and len(value.shape) <= len(call.shape(1 - index)):
            operands[name] = number
        elif isinstance(value, np.ndarray) and call.opset >= 7 and 0 < len(value.shape) < rank:
            # A constant gets as many axes as the tensors have, so that it broadcasts in either layout.
            wide = (1,) * (rank - len(value.shape)) + value.shape
            operands[name] = call.upload(
                call.interpreter.derive(("wide", rank), value, functools.partial(value.reshape, wide))
            )
        else:
            operands[name] = call.tensor(index)
    if call.opset < 7 and call.get("broadcast") and isinstance(operands["y"], Tensor):
        x, y = call.shape(0), operands["y"]
        axis = call.get("axis", len(x) - y.ndim)
        trailing_axes = len(x) - axis - y.ndim
        operands["y"] = functional.view(y, (*y.shape, *[1] * trailing_axes)) if trailing_axes > 0 else y
    return operands


def formula(call: BoundNode, text: str, dtype: Any = None, **operands: Any) -> Tensor:
    """A formula over operands, of the first tensor's dtype unless another is given."""
    dtypes = {value.dtype for value in operands.values() if isinstance(value, Tensor)}
    if dtype is None:
        dtype = next(value.dtype for value in operands.values() if isinstance(value, Tensor))
        # The dtype is left out where it is the operands' own, because a sum with a dtype would not be fused.
        if len(dtypes) == 1 and dtype.kind == "f":
            return apply(text, **operands)  # type: ignore[no-any-return]
    return apply(text, dtype=dtype, **operands)  # type: ignore[no-any-return]


@operator(*_FUNCTIONS)
def _function(call: BoundNode) -> Tensor:
    x = call.tensor(0)
    if x.dtype.kind in "iub" and call.node.op_type in ("Floor", "Ceil", "Round"):
        return x
    return formula(call, f"{_FUNCTIONS[call.node.op_type]}(x)", x=x)


_OF_ONE = {"Neg": "-x", "Reciprocal": "1 / x", "Not": "not x", "IsNaN": "isnan(x)"}


@operator(*_OF_ONE)
def _of_one(call: BoundNode) -> Tensor:
    dtype = np.dtype(bool) if call.node.op_type in ("Not", "IsNaN") else None
    return formula(call, _OF_ONE[call.node.op_type], dtype, x=call.tensor(0))


@operator(*_ARITHMETIC)
def _arithmetic(call: BoundNode) -> Tensor:
    gated = gate(call)
    if gated is not None:
        return functional.activate(*gated)
    return formula(call, _ARITHMETIC[call.node.op_type], **pair(call))


@operator("Mod")
def _modulo(call: BoundNode) -> Tensor:
    operands = pair(call)
    if not call.get("fmod", 0):
        return formula(call, "x % y", **operands)
    is_integer = next(value for value in operands.values() if isinstance(value, Tensor)).dtype.kind in "iu"
    return formula(call, f"x - y * ({QUOTIENT})" if is_integer else "x - y * trunc(x / y)", **operands)


@operator("Pow")
def _power(call: BoundNode) -> Tensor:
    operands = pair(call)
    dtype = np.dtype(call.raw(0).dtype)
    power = operands["y"]
    if isinstance(power, int | float) and isinstance(operands["x"], Tensor):
        if float(power).is_integer() and 1 <= power <= 4:
            return formula(call, f"x ** {int(power)}", dtype, x=operands["x"])
        if power == 0.5:
            return formula(call, "sqrt(x)", dtype, x=operands["x"])
        return formula(call, f"x ** {float(power)!r}", dtype, x=operands["x"])
    wide = "+ 0.0" if dtype.kind in "iu" else ""
    text = f"round(pow(x {wide}, y {wide}))" if dtype.kind in "iu" else "pow(x, y)"
    return formula(call, text, dtype, **operands)


@operator(*_TESTS)
def _test(call: BoundNode) -> Tensor:
    return formula(call, _TESTS[call.node.op_type], np.dtype(bool), **pair(call))


@operator("IsInf")
def _is_infinite(call: BoundNode) -> Tensor:
    sides = {1: "x == inf", -1: "x == -inf"}
    texts = [sides[s] for s, n in ((1, "detect_positive"), (-1, "detect_negative")) if call.get(n, 1)]
    return formula(call, " or ".join(texts) or "x != x and x == x", np.dtype(bool), x=call.tensor(0))


@operator("Identity", "Dropout")
def _same(call: BoundNode) -> Any:
    x = call.raw(0)
    if call.node.op_type == "Identity":
        return x
    training = bool(call.known(2).item()) if call.has(2) else False
    if training and (not call.has(1) or call.known(1).item() != 0):
        raise call.refuse("drops elements in training; a net that is run drops none")
    mask = np.ones(tuple(x.shape), bool) if len(call.node.output) > 1 and call.node.output[1] else None
    return (x,) if mask is None else (x, mask)


@operator("Where")
def _where(call: BoundNode) -> Tensor:
    names = dict(zip("cxy", (call.raw(0), call.raw(1), call.raw(2)), strict=True))
    dtype = np.dtype(call.raw(1).dtype)
    rank = len(np.broadcast_shapes(*(value.shape for value in names.values())))
    tensor = any(isinstance(v, Tensor) and len(v.shape) == rank for v in names.values())
    operands = {
        name: number if tensor and name != "c" and (number := scalar(value)) is not None else call.tensor(index)
        for index, (name, value) in enumerate(names.items())
    }
    return formula(call, "where(c, x, y)", dtype, **operands)


@operator("Max", "Min", "Sum", "Mean")
def _many(call: BoundNode) -> Any:
    kind, count = call.node.op_type, len(call.operands)
    if count == 1:
        return call.raw(0)
    result: Any = None
    names = [f"x{i}" for i in range(count)]
    values = dict(zip(names, (call.tensor(i) for i in range(count)), strict=True))
    for start in range(0, count, _MOST_OPERANDS - 1):
        part = {name: values[name] for name in names[start : start + _MOST_OPERANDS - 1]}
        operands = part if result is None else {"r": result, **part}
        text = f"{kind.lower()}({', '.join(operands)})" if kind in ("Max", "Min") else " + ".join(operands)
        result = formula(call, text, **operands) if len(operands) > 1 else next(iter(operands.values()))
    return formula(call, "x / n", x=result, n=float(count)) if kind == "Mean" else result


@operator("Cast")
def _cast(call: BoundNode) -> Tensor:
    x, dtype = call.tensor(0), call.interpreter.computed(dtype_of(call.get("to"), call))
    if x.dtype == dtype:
        return x
    text = "x != 0" if dtype == np.dtype(bool) else "trunc(x)" if dtype.kind in "iu" and x.dtype.kind == "f" else "x"
    return apply(text, x=x, dtype=dtype)  # type: ignore[no-any-return]


@operator("BitwiseNot", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift")
def _bits(call: BoundNode) -> Tensor:
    raise call.refuse("bit operations of values that the net computes are not here")


_NEAR = 1e-6
"""The largest difference from 1 / 6 of a constant that counts as a sixth, because files round it to float32."""


def gate(call: BoundNode) -> tuple[Tensor, str] | None:
    """The x of a ``Mul`` or ``Div`` that ends a product that is one activation, and the activation's name; None for any
    other node. Convolutions take in ``x * sigmoid(x)``, ``x * hardsigmoid(x)`` and ``x * relu6(x + 3) / 6``."""
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
    maker, operands, _ = _made(call, operands[0])
    for x, number in (operands, operands[::-1]) if maker == "Add" and bounds == [0, 6] else ():
        if isinstance(x, Tensor) and scalar(number) == 3:
            return x
    return None


def _made(call: BoundNode, value: Any) -> tuple[str | None, Any, dict[str, Any]]:
    """Operator, operands and attributes of what made a value."""
    return call.interpreter.made.get(id(value), (None, (), {}))  # type: ignore[no-any-return]


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.kind == "f"


@operator("Div")
def _divide(call: BoundNode) -> Tensor:
    gated = gate(call)
    if gated is not None:
        return functional.activate(*gated)  # type: ignore[no-any-return]
    operands = pair(call)
    is_integer = next(value for value in operands.values() if isinstance(value, Tensor)).dtype.kind in "iu"
    return formula(call, QUOTIENT if is_integer else "x / y", **operands)
