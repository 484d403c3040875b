"""``torch.ops.convdispatch.fused_convolution``: ``activation(convolution + residual)`` in one pass over the result.

Public machinery alone, as ``operators``: fake kernel, gradients (twice), autocast. Where the engine declines, PyTorch's
own convolution runs and what follows it, with the reason counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...api.activation import parse_activation
from ..dispatch import engine
from ..dispatch.routing import original, routed, settings_in_force
from .operators import autocasts, convolution, gradients

__all__ = ["activate", "fused_convolution", "unfused"]

_F, _aten = torch.nn.functional, torch.ops.aten


class _Activation(NamedTuple):
    forward: Callable[..., torch.Tensor]
    """Of a tensor and the activation's numbers."""
    backward: Callable[..., torch.Tensor]
    """Of the result's gradient, the activation's result, and the numbers; of its input where ``again``."""
    again: bool = False
    """Whether the slope cannot be told from the result."""


def _mish_backward(g: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's own has no gradient."""
    t = torch.tanh(_F.softplus(v))
    return g * (t + v * torch.sigmoid(v) * (1 - t * t))


_ACTIVATIONS = {
    "relu": _Activation(torch.relu, lambda g, y: _aten.threshold_backward(g, y, 0)),
    "relu6": _Activation(_F.relu6, lambda g, y: _aten.hardtanh_backward(g, y, 0.0, 6.0)),
    "clip": _Activation(_F.hardtanh, lambda g, y, a, b: _aten.hardtanh_backward(g, y, a, b)),
    "leaky_relu": _Activation(_F.leaky_relu, lambda g, y, a: _aten.leaky_relu_backward(g, y, a, True)),
    "elu": _Activation(_F.elu, lambda g, y, a: _aten.elu_backward(g, a, 1.0, 1.0, True, y)),
    "sigmoid": _Activation(torch.sigmoid, lambda g, y: _aten.sigmoid_backward(g, y)),
    "silu": _Activation(_F.silu, lambda g, v: g * (s := torch.sigmoid(v)) * (1 + v * (1 - s)), again=True),
    "tanh": _Activation(torch.tanh, lambda g, y: _aten.tanh_backward(g, y)),
    "hardsigmoid": _Activation(
        lambda v, a, b: torch.clamp(v * a + b, 0, 1), lambda g, y, a, b: g * a * ((y > 0) & (y < 1))
    ),
    "hardswish": _Activation(_F.hardswish, lambda g, v: _aten.hardswish_backward(g, v), again=True),
    "gelu": _Activation(_F.gelu, lambda g, v: _aten.gelu_backward(g, v), again=True),
    "mish": _Activation(_F.mish, lambda g, v: _mish_backward(g, v), again=True),
}
_BELOW = {
    "leaky_relu": lambda g, v, a: _aten.leaky_relu_backward(g, v, a, False),
    "elu": lambda g, v, a: _aten.elu_backward(g, a, 1.0, 1.0, False, v),
}
"""As ``backward``, of the input: where the number is below zero the result's sign does not tell the input's."""


def activate(v: torch.Tensor, activation: str | None) -> torch.Tensor:
    """PyTorch's own of ``conv()``'s activations. Raises InvalidProblem for another."""
    if activation is None:
        return v
    name, numbers = parse_activation(activation)
    return _ACTIVATIONS[name].forward(v, *numbers)


def unfused(y: torch.Tensor, residual: Any, activation: str | None) -> torch.Tensor:
    """What follows a convolution, by PyTorch's own operators."""
    return activate(y if residual is None else y + residual, activation)


_library = torch.library.Library("convdispatch", "FRAGMENT")
_library.define(
    "fused_convolution(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str? activation, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor"
)
fused_convolution = torch.ops.convdispatch.fused_convolution.default


def _geometry(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> tuple[Any, ...]:
    """As ``aten::convolution`` takes it."""
    return stride, padding, dilation, False, [0] * len(stride), groups


def _forward(x: torch.Tensor, w: torch.Tensor, bias: Any, residual: Any, activation: Any, *rest: Any) -> torch.Tensor:
    def theirs() -> torch.Tensor:
        return unfused(original("convolution", x, w, bias, *_geometry(*rest)), residual, activation)

    arguments = (x, w, bias, residual, activation, *rest)
    return routed("convolution", engine.fused, theirs, arguments, settings_in_force())


_library.impl("fused_convolution", _forward, "CompositeExplicitAutograd")


@torch.library.register_fake("convdispatch::fused_convolution", lib=_library)
def _(x: Any, w: Any, bias: Any, residual: Any, activation: Any, *rest: Any) -> torch.Tensor:
    return unfused(_aten.convolution.default(x, w, bias, *_geometry(*rest)), residual, activation)


def _slope_from_result(activation: str | None) -> bool:
    """Whether a gradient needs the result alone, and computes no convolution again."""
    if activation is None:
        return True
    name, numbers = parse_activation(activation)
    return not _ACTIVATIONS[name].again and not (name in _BELOW and numbers[0] < 0)


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    x, w, bias, residual, activation, *rest = inputs
    ctx.from_result = _slope_from_result(activation)
    ctx.save_for_backward(x, w, bias, residual, output if ctx.from_result and activation is not None else None)
    ctx.activation, ctx.rest = activation, rest


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Where the slope cannot be told from the result the convolution is computed again."""
    x, w, bias, residual, y = ctx.saved_tensors
    geometry = _geometry(*ctx.rest)
    if ctx.activation is not None:
        name, numbers = parse_activation(ctx.activation)
        if ctx.from_result:
            grad = _ACTIVATIONS[name].backward(grad, y, *numbers)
        else:
            v = unfused(convolution(x, w, bias, *geometry), residual, None)
            grad = _BELOW.get(name, _ACTIVATIONS[name].backward)(grad, v, *numbers)
    inner = grad
    if residual is not None:  # it may have spread the convolution's result
        inner = grad.sum_to_size(_shape(x, w, *ctx.rest[:3]))
    found = gradients(ctx, inner, x, w, None if bias is None else [bias.shape[0]], geometry)
    of_residual = None
    if residual is not None and ctx.needs_input_grad[3]:
        of_residual = grad.sum_to_size(residual.shape).to(residual.dtype)
    return *found, of_residual, *[None] * 5


def _shape(x: torch.Tensor, w: torch.Tensor, *geometry: Sequence[int]) -> list[int]:
    """The convolution's result's, whose ``geometry`` is stride, padding and dilation."""
    axes = zip(x.shape[2:], w.shape[2:], *(_each(values, x.ndim - 2) for values in geometry), strict=True)
    return [x.shape[0], w.shape[0], *((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in axes)]


def _each(values: Sequence[int], ndim: int) -> list[int]:
    return [*values] * ndim if len(values) == 1 else [*values]


torch.library.register_autograd("convdispatch::fused_convolution", _gradients, setup_context=_keep, lib=_library)
autocasts(_library, "fused_convolution", fused_convolution, 4)
