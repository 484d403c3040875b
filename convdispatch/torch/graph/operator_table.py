"""ATen's operators with a counterpart in convdispatch: by name, the function that computes them on its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATORS: dict[str, Callable[..., Any]] = {}
"""Functions by the operator's name; each takes the net first, then the operator's own arguments."""
_NAMES = "abs sign exp expm1 log log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh asinh acosh atanh erf floor ceil"
UNARY = {name: f"{name}(x)" for name in _NAMES.split()} | {"neg": "-x", "reciprocal": "1 / x", "square": "square(x)"}
"""The formula of each operator of one tensor, which the device "opencl" computes by too."""
OF_SIZES = {
    f"aten.{name}.default" for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
}
"""Operators that read only the sizes of their tensor."""
PLACES = {"aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim"}
"""Operators whose result, or second result, is indices (int64) of elements."""
_VIEWS = "alias clone contiguous detach expand permute reshape unsqueeze _unsafe_view view"
MOVING = {f"aten.{name}.default" for name in _VIEWS.split()}
MOVING |= {"aten.squeeze.dim", "aten.squeeze.dims", "aten.transpose.int"}
"""Operators that reshape or move indices in the same way as floating-point elements."""


def operator(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under these operator names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return enter
