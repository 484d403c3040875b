"""``torch.ops.convdispatch.fused_convolution``: ``activation(convolution + residual)`` in one pass over the result.

Public machinery alone, as ``operators``: fake kernel, gradients (twice), autocast. Where the engine declines, PyTorch's
own convolution runs and what follows it, with the reason counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..api.activation import parse_activation
from . import engine
from .operators import autocasts, convolution, convolution_backward
from .routing import original, routed, settings_in_force

__all__ = ["activate", "fused_convolution", "unfused"]

_F, _aten = torch.nn.functional, torch.ops.aten


class _Activation(NamedTuple):
    forward: Callable[..., torch.Tensor]
    """Of a tensor and the activation's numbers."""
    backward: Callable[..., torch.Tensor]
    """Of the result's gradient, the activation's input and its result, and the numbers."""


_ACTIVATIONS = {
    "relu": _Activation(torch.relu, lambda g, v, y: _aten.threshold_backward(g, y, 0)),
    "relu6": _Activation(_F.relu6, lambda g, v, y: _aten.hardtanh_backward(g, v, 0.0, 6.0)),
    "clip": _Activation(_F.hardtanh, lambda g, v, y, a, b: _aten.hardtanh_backward(g, v, a, b)),
    "leaky_relu": _Activation(_F.leaky_relu, lambda g, v, y, a: _aten.leaky_relu_backward(g, v, a, False)),
    "elu": _Activation(_F.elu, lambda g, v, y, a: _aten.elu_backward(g, a, 1.0, 1.0, False, v)),
    "sigmoid": _Activation(torch.sigmoid, lambda g, v, y: _aten.sigmoid_backward(g, y)),
    "silu": _Activation(_F.silu, lambda g, v, y: g * (s := torch.sigmoid(v)) * (1 + v * (1 - s))),
    "tanh": _Activation(torch.tanh, lambda g, v, y: _aten.tanh_backward(g, y)),
}


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


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    x, w, bias, residual, activation, *rest = inputs
    ctx.save_for_backward(x, w, bias, residual)
    ctx.activation, ctx.rest = activation, rest


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """The convolution is computed again: not every activation's slope can be told from its result."""
    x, w, bias, residual = ctx.saved_tensors
    geometry = _geometry(*ctx.rest)
    if ctx.activation is not None:
        name, numbers = parse_activation(ctx.activation)
        v = convolution(x, w, bias, *geometry)
        v = v if residual is None else v + residual
        grad = _ACTIVATIONS[name].backward(grad, v, activate(v, ctx.activation), *numbers)
    inner = grad
    if residual is not None and residual.shape != grad.shape:  # one of them was spread over the other
        inner = grad.sum_to_size(convolution(x, w, bias, *geometry).shape)
    asked = [*ctx.needs_input_grad[:2], ctx.needs_input_grad[2] and bias is not None]
    sizes = None if bias is None else [bias.shape[0]]
    found = convolution_backward(inner, x, w, sizes, *geometry, asked)
    of_residual = None
    if residual is not None and ctx.needs_input_grad[3]:
        of_residual = grad.sum_to_size(residual.shape).to(residual.dtype)
    return (*(each if wanted else None for each, wanted in zip(found, asked, strict=True)), of_residual, *[None] * 5)


torch.library.register_autograd("convdispatch::fused_convolution", _gradients, setup_context=_keep, lib=_library)
autocasts(_library, "fused_convolution", fused_convolution, 4)
