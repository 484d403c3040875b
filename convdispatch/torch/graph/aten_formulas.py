"""ATen's elementwise operators, and its sums, extremes and norms over axes, as formulas of convdispatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ...nn import functional
from .operator_table import OPERATORS, operator
from .quantized import Missing

_FORMULAS = {"neg": "-x", "reciprocal": "1 / x", "square": "square(x)"}
_NAMES = "abs sign exp expm1 log log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh asinh acosh atanh erf floor ceil"
_POWERS = {1: "x", 2: "square(x)", 3: "x * square(x)", 4: "square(square(x))", 0.5: "sqrt(x)"}
_POWERS |= {-0.5: "rsqrt(x)", -1: "1 / x", -2: "1 / square(x)"}


def _of_one(text: str) -> Callable[..., Tensor]:
    return lambda net, x: apply(text, x=x)


for _name in _NAMES.split():
    OPERATORS[f"aten.{_name}.default"] = _of_one(f"{_name}(x)")
for _name, _text in _FORMULAS.items():
    OPERATORS[f"aten.{_name}.default"] = _of_one(_text)


@operator("aten.pow.Tensor_Scalar")
def _pow(net: Any, x: Any, power: float) -> Tensor:
    if power not in _POWERS:
        raise Missing(f"the power {power}")
    return apply(_POWERS[power], x=x)


@operator("aten.clamp.default", "aten.clamp_min.default")
def _clamp(net: Any, x: Any, least: Any = None, most: Any = None) -> Tensor:
    # A NaN in x fails both comparisons, so the result is NaN, as in PyTorch.
    for text, bound in (("where(x < b, b, x)", least), ("where(x > b, b, x)", most)):
        x = x if bound is None else apply(text, x=x, b=float(bound))
    return x  # type: ignore[no-any-return]


@operator("aten.clamp_max.default")
def _clamp_max(net: Any, x: Any, most: float) -> Tensor:
    return _clamp(net, x, None, most)


@operator("aten.maximum.default")
def _maximum(net: Any, x: Any, y: Any) -> Tensor:
    return apply("max(x, y)", x=net.put(x), y=net.put(y))


@operator("aten.minimum.default")
def _minimum(net: Any, x: Any, y: Any) -> Tensor:
    return apply("min(x, y)", x=net.put(x), y=net.put(y))


@operator("aten.addcmul.default")
def _addcmul(net: Any, x: Any, y: Any, z: Any, value: float = 1) -> Tensor:
    return apply("x + a * y * z", x=net.put(x), y=net.put(y), z=net.put(z), a=float(value))


@operator("aten.gelu.default")
def _gelu(net: Any, x: Any, approximate: str = "none") -> Tensor:
    return functional.activate(x, "gelu" if approximate == "none" else "gelu_tanh")


@operator("aten.rsub.Scalar")
def _rsub(net: Any, x: Any, y: float, alpha: float = 1) -> Tensor:
    return apply("y - x * a", x=x, y=float(y), a=float(alpha))


def _over(kind: str, text: str, after: str | None = None) -> Callable[..., Tensor]:
    def operation(net: Any, x: Any, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        axes = (axes,) if isinstance(axes, int) else axes
        y = reduce(kind, text, tuple(axis % x.ndim for axis in axes) if axes else None, keepdims=keepdim, x=x)
        return y if after is None else apply(after, x=y)

    return operation


OPERATORS |= {
    "aten.sum.dim_IntList": _over("sum", "x"),
    "aten.sum.default": _over("sum", "x"),
    "aten.mean.default": _over("mean", "x"),
    "aten.amax.default": _over("max", "x"),
    "aten.amin.default": _over("min", "x"),
    "aten.max.default": _over("max", "x"),
    "aten.min.default": _over("min", "x"),
}


@operator("aten.linalg_vector_norm.default")
def _norm(net: Any, x: Any, order: float = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    kinds = {1: ("sum", "abs(x)"), 2: ("sum", "square(x)", "sqrt(x)"), math.inf: ("max", "abs(x)")}
    if order not in kinds:
        raise Missing(f"a norm of the order {order}")
    return _over(*kinds[order])(net, x, axes, keepdim)


def _variance(x: Any, axes: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The variance over axes, and the mean, from the differences to the mean."""
    axes = tuple(axis % x.ndim for axis in ((axes,) if isinstance(axes, int) else axes or range(x.ndim)))
    count = math.prod(x.shape[axis] for axis in axes)
    divisor = count - (1 if correction is None else correction)
    if divisor <= 0:
        raise Missing(f"a variance of {count} numbers with the correction {correction}")
    mean = reduce("mean", "x", axes, keepdims=True, x=x)
    variance = reduce("sum", "square(x - m) * r", axes, keepdims=keepdim, x=x, m=mean, r=1.0 / divisor)
    return variance, mean if keepdim else functional.view(mean, variance.shape)


@operator("aten.var.correction")
def _var(net: Any, x: Any, axes: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return _variance(x, axes, correction, keepdim)[0]


@operator("aten.std.correction")
def _std(net: Any, x: Any, axes: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return apply("sqrt(v)", v=_variance(x, axes, correction, keepdim)[0])


@operator("aten.var_mean.correction")
def _var_mean(net: Any, x: Any, axes: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return _variance(x, axes, correction, keepdim)
