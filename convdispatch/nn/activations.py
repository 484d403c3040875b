"""Activations as formulas, one kernel each; their gradients come from the formulas' derivatives."""

from __future__ import annotations

from ..api.activation import parse_activation
from ..device.tracing import operation
from ..elementwise import apply
from ..tensor import Tensor

__all__ = ["FORMULAS", "activate", "formula_of", "from_result"]

# Comparisons, not max: NaN must come out as NaN, as in PyTorch.
FORMULAS = {
    "relu": "where(x < 0, 0, x)",
    "relu6": "clip(x, 0, 6)",
    "clip": "clip(x, {0}, {1})",
    "leaky_relu": "where(x < 0, {0} * x, x)",
    "elu": "where(x < 0, {0} * expm1(x), x)",
    "sigmoid": "sigmoid(x)",
    "silu": "x * sigmoid(x)",
    "tanh": "tanh(x)",
    "hardsigmoid": "clip(x * {0} + {1}, 0, 1)",
    "hardswish": "x * clip(x / 6 + 0.5, 0, 1)",
    "gelu": "0.5 * x * (1 + erf(x * 0.7071067811865476))",
    "mish": "x * tanh(where(x > 20, x, log1p(exp(x))))",
    "softplus": "where(x > 20, x, log1p(exp(x)))",
}
"""What each computes of x; ``{0}`` and ``{1}`` are its parameters."""

# dy times the slope, from the result y alone: what a fused epilogue leaves behind. At its corners as PyTorch: 0.
_FROM_RESULT = {
    "relu": "where(y > 0, dy, 0)",
    "relu6": "where(y > 0 and y < 6, dy, 0)",
    "clip": "where(y > {0} and y < {1}, dy, 0)",
    "leaky_relu": "where(y > 0, dy, {0} * dy)",
    "elu": "where(y > 0, dy, dy * (y + {0}))",
    "sigmoid": "dy * y * (1 - y)",
    "tanh": "dy * (1 - y * y)",
    "hardsigmoid": "where(y > 0 and y < 1, {0} * dy, 0)",
}


@operation
def activate(x: Tensor, activation: str) -> Tensor:
    """An activation by name: those of ``conv()``'s epilogue, or softplus.

    Raises InvalidProblem for another name.
    """
    return apply(formula_of(activation), x=x)


def formula_of(activation: str) -> str:
    """What an activation computes of x, as a formula. Raises InvalidProblem for an unknown name."""
    if activation == "softplus":
        return FORMULAS[activation]
    name, numbers = parse_activation(activation)
    return FORMULAS[name].format(*numbers)


def from_result(activation: str) -> str | None:
    """Formula of dy and y for the gradient through an activation; None where y does not determine the slope."""
    name, numbers = parse_activation(activation)
    if name in ("leaky_relu", "elu") and numbers[0] < 0:  # then the result does not tell its side
        return None
    return _FROM_RESULT[name].format(*numbers) if name in _FROM_RESULT else None
