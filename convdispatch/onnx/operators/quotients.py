"""Quotients, and what exporters write out that ends in one: several nodes that are one operation here."""

from __future__ import annotations

import math
from typing import Any

from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .elementwise import QUOTIENT, formula, pair
from .gates import gate, with_number

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")


@operator("Div")
def _divide(call: BoundNode) -> Tensor:
    response_norm = _response_norm(call)
    if response_norm is not None:
        return response_norm
    gated = gate(call)
    if gated is not None:
        return functional.activate(*gated)  # type: ignore[no-any-return]
    operands = pair(call)
    is_integer = next(value for value in operands.values() if isinstance(value, Tensor)).dtype.kind in "iu"
    return formula(call, QUOTIENT if is_integer else "x / y", **operands)


def _response_norm(call: BoundNode) -> Tensor | None:
    """``x / (k + alpha * mean) ** beta``, the mean of x² over neighbouring channels, as PyTorch's exporter writes its
    ``local_response_norm``: x² as pictures of one channel, with zeros around and averaged; None for another quotient.
    """
    x, divisor = call.raw(0), call.raw(1)
    if not isinstance(x, Tensor) or x.dtype.kind != "f" or x.ndim < 3:
        return None
    constants = []
    for kind in ("Pow", "Add", "Mul"):
        divisor, number = with_number(call, divisor, kind)
        if number is None:
            return None
        constants.append(float(number))
    beta, k, alpha = constants
    if divisor.shape != x.shape:
        return None
    pool, pool_operands, attributes = call.interpreter.made.get(id(_unviewed(call, divisor)), (None, (), {}))
    size, *spatial_kernel = attributes.get("kernel_shape", [0])
    padded = any(attributes.get("pads", ())) or attributes.get("auto_pad", b"NOTSET") != b"NOTSET"
    steps = (*attributes.get("strides", ()), *attributes.get("dilations", ()), *spatial_kernel)
    if pool != "AveragePool" or padded or attributes.get("ceil_mode") or set(steps) - {1}:
        return None
    _, unpadded, around = call.interpreter.zero_pads.get(id(pool_operands[0]), (None, None, {}))
    pads = {axis: pair for axis, pair in around.items() if any(pair)}
    if unpadded is None or pads != {2: (size // 2, (size - 1) // 2)}:
        return None
    if unpadded.shape[:3] != (x.shape[0], 1, x.shape[1]) or math.prod(unpadded.shape[3:]) != math.prod(x.shape[2:]):
        return None
    square, factors, _ = call.interpreter.made.get(id(_unviewed(call, unpadded)), (None, (), {}))
    if square != "Mul" or any(factor is not x for factor in factors):
        return None
    return functional.local_response_norm(x, size, alpha, beta, k)  # type: ignore[no-any-return]


def _unviewed(call: BoundNode, value: Any) -> Any:
    """The tensor whose elements, in their order, a value has in another shape."""
    while True:
        maker, operands, _ = call.interpreter.made.get(id(value), (None, (), {}))
        if maker not in _VIEWS:
            return value
        value = operands[0]
