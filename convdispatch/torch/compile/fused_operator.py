"""``torch.ops.convdispatch.fused_convolution``: ``activation(convolution + residual)`` in one pass over the result.

Public machinery alone, as ``operators``: fake kernel, gradients (twice), autocast. Where the engine declines, PyTorch's
own convolution runs and what follows it, with the reason counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...api.activations import ACTIVATIONS, formula_of, gradient_of_input, gradient_of_result, parse_activation
from ..dispatch import engine
from ..dispatch.quick_depthwise import quick_depthwise
from ..dispatch.routing import original, routed, settings_in_force
from ..geometry import by_axis, for_each_axis, has_sides, padded, whole
from .operators import autocasts, convolution, define, gradients, without_tangents

_F, _aten = torch.nn.functional, torch.ops.aten


_FROM_RESULT: dict[str, Callable[..., torch.Tensor]] = {
    "relu": lambda g, y: _aten.threshold_backward(g, y, 0),
    "relu6": lambda g, y: _aten.hardtanh_backward(g, y, 0.0, 6.0),
    "clip": lambda g, y, a, b: _aten.hardtanh_backward(g, y, a, b),
    "leaky_relu": lambda g, y, a: _aten.leaky_relu_backward(g, y, a, True),
    "elu": lambda g, y, a: _aten.elu_backward(g, a, 1.0, 1.0, True, y),
    "sigmoid": lambda g, y: _aten.sigmoid_backward(g, y),
    "tanh": lambda g, y: _aten.tanh_backward(g, y),
}
"""Gradients of activations, from their results, for which PyTorch has a kernel of one pass; the others use the
activation table's formulas."""
_NAMES: dict[str, Any] = {name: getattr(torch, name) for name in ("where", "exp", "expm1", "log1p", "tanh", "erf")}
_NAMES |= {"sigmoid": torch.sigmoid, "abs": torch.abs, "clip": torch.clamp, "inf": float("inf"), "nan": float("nan")}
"""The names in the activation table's formulas, bound to PyTorch's functions."""


def _compute(formula: str, **operands: torch.Tensor) -> torch.Tensor:
    # The evaluated formula is text of our activation table, never user input.
    return eval(formula, _NAMES | operands)  # type: ignore[no-any-return]


def activate(v: torch.Tensor, activation: str | None) -> torch.Tensor:
    """Apply one of ``conv()``'s activations, by PyTorch's function if it has one. Raises InvalidProblem for another
    name."""
    if activation is None:
        return v
    name, numbers = parse_activation(activation)
    entry = ACTIVATIONS[name]
    if entry.torch is None or (not entry.torch.attributes and numbers != entry.parameters):
        return _compute(formula_of(activation), x=v)
    function = getattr(torch, entry.torch.function, None) or getattr(_F, entry.torch.function)
    return function(v, *numbers) if entry.torch.attributes else function(v)


def slope_times(g: torch.Tensor, activation: str, *, y: Any = None, x: Any = None) -> torch.Tensor:
    """``g`` times the activation's slope, which is computed from the activation's result ``y`` or from its input
    ``x``."""
    name, numbers = parse_activation(activation)
    if y is None and name == "hardswish":
        return _aten.hardswish_backward(g, x)  # at NaN the gradient itself, as PyTorch's; the formula's is NaN
    if y is None:
        return _compute(gradient_of_input(activation), dy=g, x=x)
    if name in _FROM_RESULT:
        return _FROM_RESULT[name](g, y, *numbers)
    return _compute(str(gradient_of_result(activation)), dy=g, y=y)


def named_activation(name: str, values: Mapping[str, Any]) -> str | None:
    """The activation ``name`` of ``conv()`` with the ``values`` of PyTorch's function, of which those left out are
    PyTorch's own; None if one of them is not what the activation has."""
    entry: Any = ACTIVATIONS[name].torch
    if any(values.get(key, value) != value for key, value in entry.only.items()):
        return None
    numbers = ", ".join(repr(float(values.get(key, value))) for key, value in entry.attributes.items())
    return f"{name}({numbers})" if numbers else name


def unfused(y: torch.Tensor, residual: Any, activation: str | None) -> torch.Tensor:
    """The residual addition and the activation after a convolution, by PyTorch's own operators."""
    return activate(y if residual is None else y + residual, activation)


_library = torch.library.Library("convdispatch", "FRAGMENT")


def _forward(x: torch.Tensor, w: torch.Tensor, bias: Any, residual: Any, activation: Any, *rest: Any) -> torch.Tensor:
    """The fused convolution below autograd: by our engines, or by PyTorch's kernels with the reason counted."""
    without_tangents("fused_convolution", (x, w, bias, residual))

    def theirs() -> torch.Tensor:
        return unfused(original("convolution", x, w, bias, *whole(*rest)), residual, activation)

    def quick() -> torch.Tensor | None:
        if has_sides(rest[1], x.ndim - 2):
            return None
        y = quick_depthwise(x, w, bias, *whole(*rest))
        return None if y is None else unfused(y, residual, activation)

    arguments = (x, w, bias, residual, activation, *rest)
    return routed("convolution", engine.fused, theirs, arguments, settings_in_force(), quick)


def _fake(x: Any, w: Any, bias: Any, residual: Any, activation: Any, *rest: Any) -> torch.Tensor:
    x, geometry = padded(x, whole(*rest))
    return unfused(_aten.convolution.default(x, w, bias, *geometry), residual, activation)


fused_convolution = define(
    _library,
    "fused_convolution",
    # ``padding`` has a number for each axis, or two: the zeros before each axis, then those after each.
    "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str? activation, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor",
    _forward,
    _fake,
)


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    x, w, bias, residual, activation, *geometry_arguments = inputs
    ctx.from_result = (
        activation is None or gradient_of_result(activation) is not None
    )  # if False, the backward computes the convolution again
    ctx.save_for_backward(x, w, bias, residual, output if ctx.from_result and activation is not None else None)
    ctx.activation, ctx.rest = activation, geometry_arguments


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Gradients of all inputs. If the activation's slope cannot be computed from its result, the convolution runs
    again."""
    x, w, bias, residual, y = ctx.saved_tensors
    x, geometry = padded(x, whole(*ctx.rest))
    if ctx.activation is not None:
        if ctx.from_result:
            grad = slope_times(grad, ctx.activation, y=y)
        else:
            grad = slope_times(grad, ctx.activation, x=unfused(convolution(x, w, bias, *geometry), residual, None))
    convolution_gradient = grad
    if residual is not None:  # the residual may have broadcast the convolution's result
        convolution_gradient = grad.sum_to_size(_shape(x, w, *geometry[:3]))
    operand_gradients = gradients(ctx, convolution_gradient, x, w, None if bias is None else [bias.shape[0]], geometry)
    if operand_gradients[0] is not None and has_sides(ctx.rest[1], x.ndim - 2):
        crop = [-side for side in by_axis(ctx.rest[1])]
        operand_gradients[0] = _aten.constant_pad_nd.default(operand_gradients[0], crop)
    residual_gradient = None
    if residual is not None and ctx.needs_input_grad[3]:
        residual_gradient = grad.sum_to_size(residual.shape).to(residual.dtype)
    return *operand_gradients, residual_gradient, *[None] * 5


def _shape(x: torch.Tensor, w: torch.Tensor, *geometry: Sequence[int]) -> list[int]:
    """The shape of the convolution's result; ``geometry`` is stride, padding and dilation."""
    axes = zip(x.shape[2:], w.shape[2:], *(for_each_axis(values, x.ndim - 2) for values in geometry), strict=True)
    return [x.shape[0], w.shape[0], *((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in axes)]


torch.library.register_autograd("convdispatch::fused_convolution", _gradients, setup_context=_keep, lib=_library)
autocasts(_library, "fused_convolution", fused_convolution, 4)
