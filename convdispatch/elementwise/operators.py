"""The arithmetic of Tensor: operators, casts, assignment to views, and the gradients of views.

Tensor itself stands below the formulas; importing this package attaches, so whoever has a Tensor has its operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .apply import compute
from .filling import full
from .recorded import apply, sum_to
from .tensor import Tensor

__all__: list[str] = []


def _assign(self: Tensor, values: Tensor) -> None:
    compute("x", {"x": values}, out=self)


def astype(self: Tensor, dtype: Any) -> Tensor:
    """The values cast to ``dtype``, in new, contiguous memory."""
    return apply("x", x=self, dtype=dtype)


def _scatter(dy: Tensor, shape: tuple[int, ...], key: Any) -> Tensor:
    """The gradient of what was indexed from ``shape``: zero but where the index points."""
    dx = full(shape, 0, dy.dtype, dy.queue)
    apply("x", x=dy, out=dx[key])
    return dx


def _binary(text: str) -> Any:
    """An operator of a tensor and a tensor or number; NotImplemented for anything else."""

    def method(self: Tensor, other: Any) -> Tensor:
        if not isinstance(other, Tensor | int | float | np.number | np.bool_):
            return NotImplemented
        return apply(text, x=self, y=other.item() if isinstance(other, np.generic) else other)

    return method


def _power(self: Tensor, power: float) -> Tensor:
    return apply(f"x ** {power!r}", x=self)


def _negative(self: Tensor) -> Tensor:
    return apply("-x", x=self)


_METHODS = {
    "__add__": _binary("x + y"),
    "__radd__": _binary("y + x"),
    "__sub__": _binary("x - y"),
    "__rsub__": _binary("y - x"),
    "__mul__": _binary("x * y"),
    "__rmul__": _binary("y * x"),
    "__truediv__": _binary("x / y"),
    "__rtruediv__": _binary("y / x"),
    "__pow__": _power,
    "__neg__": _negative,
    "astype": astype,
    "_assign": _assign,
    "_scatter": staticmethod(_scatter),
    "_sum_to": staticmethod(sum_to),
}
for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
