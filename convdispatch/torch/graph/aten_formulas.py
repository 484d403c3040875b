"""ATen's elementwise operators, and its sums, extremes with their places, and norms over axes, as formulas of
convdispatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...elementwise import apply, argmax, reduce
from ...elementwise.tensor import Tensor
from ...nn import functional
from .operator_table import OPERATORS, UNARY, operator
from .quantized import Missing

_POWERS = {1: "x", 2: "square(x)", 3: "x * square(x)", 4: "square(square(x))", 0.5: "sqrt(x)"}
_POWERS |= {-0.5: "rsqrt(x)", -1: "1 / x", -2: "1 / square(x)"}


def _formula(text: str, *names: str, **numbers: float) -> Callable[..., Tensor]:
    """An operation that applies a formula to its arguments: tensors of these names, then ``numbers`` with their
    defaults."""

    def operation(net: Any, *given: Any, **named: Any) -> Tensor:
        operands = {**numbers, **dict(zip((*names, *numbers), given)), **named}
        return apply(text, **{name: net.put(each) for name, each in operands.items()})  # type: ignore[no-any-return]

    return operation


def _sum(sign: str) -> Callable[..., Tensor]:
    """A sum, difference, product or quotient; one times the second operand is that operand."""
    plain, scaled = _formula(f"x {sign} y", "x", "y"), _formula(f"x {sign} (y * alpha)", "x", "y", alpha=1.0)
    return lambda net, x, y, alpha=1: plain(net, x, y) if alpha == 1 else scaled(net, x, y, float(alpha))


def _over(kind: str, text: str, after: str | None = None) -> Callable[..., Tensor]:
    """A reduction over axes of a formula of x, and a formula of its result."""

    def operation(net: Any, x: Any, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        y = reduce(kind, text, _axes(x, axes) or None, keepdims=keepdim, x=x)
        return y if after is None else apply(after, x=y)

    return operation


def _axes(x: Any, axes: Any) -> tuple[int, ...]:
    return tuple(axis % x.ndim for axis in ((axes,) if isinstance(axes, int) else axes or ()))


OPERATORS |= {f"aten.{name}.default": _formula(text, "x") for name, text in UNARY.items()}
OPERATORS |= {
    f"aten.{name}.{kind}": _sum(sign)
    for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))
    for kind in ("Tensor", "Scalar")
}
OPERATORS |= {
    "aten.maximum.default": _formula("max(x, y)", "x", "y"),
    "aten.minimum.default": _formula("min(x, y)", "x", "y"),
    "aten.addcmul.default": _formula("x + value * y * z", "x", "y", "z", value=1.0),
    "aten.rsub.Scalar": _formula("y - x * alpha", "x", "y", alpha=1.0),
    "aten._prelu_kernel.default": _formula("where(x > 0, x, x * a)", "x", "a"),
    "aten.clamp_max.default": lambda net, x, most: _clamp(net, x, None, most),
    "aten.sum.dim_IntList": _over("sum", "x"),
    "aten.sum.default": _over("sum", "x"),
    "aten.mean.default": _over("mean", "x"),
    "aten.amax.default": _over("max", "x"),
    "aten.amin.default": _over("min", "x"),
    "aten.max.default": _over("max", "x"),
    "aten.min.default": _over("min", "x"),
}


@operator("aten.pow.Tensor_Scalar")
def _pow(net: Any, x: Any, power: float) -> Tensor:
    if power not in _POWERS:
        raise Missing(f"the power {power}")
    return apply(_POWERS[power], x=x)  # type: ignore[no-any-return]


@operator("aten.clamp.default", "aten.clamp_min.default")
def _clamp(net: Any, x: Any, least: Any = None, most: Any = None) -> Tensor:
    # A NaN in x fails both comparisons, so the result is NaN, as in PyTorch.
    for text, bound in (("where(x < b, b, x)", least), ("where(x > b, b, x)", most)):
        x = x if bound is None else apply(text, x=x, b=float(bound))
    return x  # type: ignore[no-any-return]


@operator("aten.gelu.default")
def _gelu(net: Any, x: Any, approximate: str = "none") -> Tensor:
    return functional.activate(x, "gelu" if approximate == "none" else "gelu_tanh")


@operator("aten.linalg_vector_norm.default")
def _norm(net: Any, x: Any, order: float = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    kinds = {1: ("sum", "abs(x)"), 2: ("sum", "square(x)", "sqrt(x)"), math.inf: ("max", "abs(x)")}
    if order not in kinds:
        raise Missing(f"a norm of the order {order}")
    return _over(*kinds[order])(net, x, axes, keepdim)


@operator("aten.var_mean.correction")
def _variance(
    net: Any, x: Any, axes: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The variance over axes, and the mean, from the differences to the mean."""
    axes = _axes(x, axes) or tuple(range(x.ndim))
    count = math.prod(x.shape[axis] for axis in axes)
    divisor = count - (1 if correction is None else correction)
    if divisor <= 0:
        raise Missing(f"a variance of {count} numbers with the correction {correction}")
    mean = reduce("mean", "x", axes, keepdims=True, x=x)
    variance = reduce("sum", "square(x - m) * r", axes, keepdims=keepdim, x=x, m=mean, r=1.0 / divisor)
    return variance, mean if keepdim else functional.view(mean, variance.shape)


OPERATORS["aten.var.correction"] = lambda *given, **named: _variance(*given, **named)[0]
OPERATORS["aten.std.correction"] = lambda *given, **named: apply("sqrt(v)", v=_variance(*given, **named)[0])


class _Extremes(Sequence[Tensor]):
    """The largest or smallest values along an axis; their places are computed only on access."""

    def __init__(self, largest: bool, x: Tensor, axis: int, keepdim: bool = False) -> None:
        self._largest, self._given = largest, (x, axis % x.ndim, keepdim)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: Any) -> Any:
        if number:
            return _places(self._largest, *self._given)
        x, axis, keepdim = self._given
        return reduce("max" if self._largest else "min", "x", (axis,), keepdims=keepdim, x=x)


def _places(largest: bool, x: Any, axis: int | None = None, keepdim: bool = False) -> Tensor:
    if axis is None:
        y = argmax(functional.view(x, (x.size,)), 0, largest=largest)
        return functional.view(y, (1,) * x.ndim) if keepdim else y
    return argmax(x, axis, keepdims=keepdim, largest=largest)  # type: ignore[no-any-return]


OPERATORS |= {
    "aten.argmax.default": lambda net, *given, **named: _places(True, *given, **named),
    "aten.argmin.default": lambda net, *given, **named: _places(False, *given, **named),
    "aten.max.dim": lambda net, *given: _Extremes(True, *given),
    "aten.min.dim": lambda net, *given: _Extremes(False, *given),
}
