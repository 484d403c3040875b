"""Reductions of strided tensors, and of formulas over them, without the formula's values ever being stored."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..api.policy import current_policy
from ..device.programs.kernels import Programs, without_numbers
from .apply import checked_tensors, forms, launch_arguments, operand_of, result_dtype
from .codegen.expression import parse
from .codegen.reduction_kernel import OPERATIONS, Reduction, plan
from .codegen.strides import broadcast
from .filling import fill
from .tensor import Tensor

_calls = Programs(family=without_numbers)


class _BoundReduction:
    """One reduction over operands of known shapes, strides and types."""

    __slots__ = ("axes", "dtype", "formula", "reduction", "scale", "shape", "short")

    def __init__(
        self,
        operation: str,
        text: str,
        axes: Any,
        keepdims: bool,
        dtype: Any,
        given: dict[str, Any],
    ) -> None:
        if operation not in (*OPERATIONS, "mean"):
            raise InvalidArgument(f"reduce knows {', '.join((*OPERATIONS, 'mean'))}, got {operation!r}")
        self.formula = formula = parse(text)
        tensors = checked_tensors(formula, given)
        if formula.result is None or set(formula.assigned) & tensors.keys():
            raise InvalidArgument(f"reduce takes an expression that assigns no operand, got {formula.text!r}")
        self.shape = shape = broadcast({name: tensor.shape for name, tensor in tensors.items()})
        self.axes = _axes(axes, len(shape))
        keep = tuple(1 if a in self.axes else size for a, size in enumerate(shape))
        self.short = keep if keepdims else tuple(size for a, size in enumerate(shape) if a not in self.axes)
        count = math.prod(shape[a] for a in self.axes)
        if not count and operation not in ("sum", "prod") and math.prod(self.short):
            raise InvalidArgument(f"{operation} needs at least one element, got shape {shape} over axes {self.axes}")
        self.scale = 1.0 / max(1, count) if operation == "mean" else 1.0
        self.dtype = _kind(operation, formula, given) if dtype is None else np.dtype(dtype)
        scalars = tuple(name for name, value in given.items() if not isinstance(value, Tensor))
        integral = operation != "mean" and all(isinstance(given[name], numbers.Integral) for name in scalars)
        self.reduction: Reduction | None = None
        if math.prod(shape):
            operands = tuple(operand_of(name, tensor, shape, True, False) for name, tensor in tensors.items())
            context = next(iter(tensors.values())).context
            kind = "sum" if operation == "mean" else operation
            self.reduction = plan(
                context, kind, formula, shape, self.axes, operands, scalars, self.dtype, self.scale, integral
            )


def combine(
    operation: str,
    text: str,
    operands: dict[str, Any],
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
) -> tuple[_BoundReduction, Tensor]:
    """Compute ``reduce`` without recording it on a tape; return (the bound reduction, result)."""
    whole = current_policy().is_invariant
    named = [operation, text, tuple(axes) if isinstance(axes, list) else axes, keepdims, dtype, whole]
    key = forms(named, operands, None)
    call = _calls.get(key)
    if call is None:
        call = _calls.make(key, lambda: _BoundReduction(operation, text, axes, keepdims, dtype, operands))
    queue, arguments, scalars = launch_arguments(operands)
    result = Tensor.empty(call.short, call.dtype, queue)
    if call.reduction is not None:
        call.reduction(queue, arguments + scalars, (result.base_data, 0))
    elif result.size:
        fill(result, 1 if operation == "prod" else 0)
    return call, result


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(ndim))
    try:
        given = tuple(map(operator.index, (axes,) if hasattr(axes, "__index__") else axes))
    except TypeError:
        raise InvalidArgument(f"axes must be integers, got {axes!r}") from None
    positive = tuple(axis + ndim if axis < 0 else axis for axis in given)
    if any(not 0 <= axis < ndim for axis in positive) or len(set(positive)) != len(positive):
        raise InvalidArgument(f"axes must be different ones among {ndim}, got {axes!r}")
    return positive


def _kind(operation: str, formula: Any, given: dict[str, Any]) -> np.dtype:
    dtype = result_dtype(formula, given)
    if dtype.kind not in "iub":
        return dtype
    if operation == "mean":
        return np.dtype(np.float32)
    return np.dtype(np.int64) if operation in ("sum", "prod") else dtype
