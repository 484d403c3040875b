"""Activations, one kernel each; their gradients come from the formulas' derivatives."""

from __future__ import annotations

from ..api.activations import formula_of
from ..device.tracing import operation
from ..elementwise import apply
from ..elementwise.tensor import Tensor


@operation
def activate(x: Tensor, activation: str) -> Tensor:
    """An activation by name: those of ``conv()``'s epilogue. Raises InvalidProblem for another."""
    return apply(formula_of(activation), x=x)
