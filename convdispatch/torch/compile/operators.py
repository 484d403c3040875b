"""``torch.ops.convdispatch.convolution`` and its backward: ATen's schemas, with fake kernels, gradients and autocast.

Public machinery alone (``torch.library``), so ``torch.compile(fullgraph=True)`` and ``torch.export`` take them whole.
They hold without ``enable``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..captures import device_type
from ..dispatch import engine, native
from ..dispatch.quick_depthwise import quick_depthwise
from ..dispatch.routing import original, routed, settings_in_force

_GEOMETRY = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups"
)
FIXED_STRIDE_ORDER = (torch.Tag.needs_fixed_stride_order,)
"""The tag of every operator here: inductor hands an operator that a pass put into its graph operands in any strides,
unless a tag says otherwise, and a convolution would copy those into its memory format first."""
_library = torch.library.Library("convdispatch", "DEF")
BELOW_AUTOGRAD: dict[Any, Any] = {}
"""The overloads without gradients, by operator: PyTorch's wrapper of gradients in Python takes as long as our kernel's
launch, and a graph that AOTAutograd has split does not need it."""


def define(library: torch.library.Library, name: str, signature: str, compute: Callable[..., Any], fake: Any) -> Any:
    """Define an operator and its overload below autograd; returns the operator. ``compute`` is its kernel on every
    device until the first call on one has registered the native path's kernel there, where there is one."""

    def kernel(*arguments: Any) -> Any:
        native.installed(f"convdispatch::{name}", arguments[0].device.type, compute)
        return compute(*arguments)

    for overload in (name, f"{name}.below_autograd"):
        library.define(f"{overload}{signature}", tags=FIXED_STRIDE_ORDER)
        library.impl(overload, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"convdispatch::{overload}", fake, lib=library)
    packet = getattr(torch.ops.convdispatch, name)
    BELOW_AUTOGRAD[packet.default] = packet.below_autograd
    return packet.default


def leave_autograd(graph: torch.fx.Graph) -> None:
    """Let a graph in which nothing records gradients call our operators below autograd."""
    for node in graph.nodes:
        node.target = BELOW_AUTOGRAD.get(node.target, node.target) if node.op == "call_function" else node.target


def without_tangents(name: str, arguments: Sequence[Any]) -> None:
    """Raise NotImplementedError for forward-mode differentiation, whose tangents a custom operator would lose.

    Layers and functions of ``convdispatch.torch`` call PyTorch's operators there (``functional``).
    """
    if forward_ad._current_level < 0:
        return
    for each in arguments:
        if isinstance(each, torch.Tensor) and forward_ad.unpack_dual(each).tangent is not None:
            raise NotImplementedError(
                f"torch.ops.convdispatch.{name} has no forward-mode derivative, and its result would lose the tangent: "
                "call convdispatch.torch.conv2d (conv1d to conv_transpose3d) or a converted layer, which have"
            )


def _forward(*arguments: Any) -> torch.Tensor:
    """``convolution`` below autograd: by our engines, or by PyTorch's kernel with the reason counted."""
    without_tangents("convolution", arguments)
    pytorch_kernel = lambda: original("convolution", *arguments)  # noqa: E731
    quick_kernel = lambda: quick_depthwise(*arguments)  # noqa: E731
    return routed("convolution", engine.forward, pytorch_kernel, arguments, settings_in_force(), quick_kernel)


def _backward(grad: torch.Tensor, *backward_arguments: Any) -> tuple[torch.Tensor, ...]:
    arguments = (grad, *backward_arguments)
    pytorch_kernel = lambda: original("convolution_backward", *arguments)  # noqa: E731
    results = routed("convolution_backward", engine.backward, pytorch_kernel, arguments, settings_in_force())
    # An operator cannot return None: a gradient that was not requested is an empty tensor, also in the fake kernel.
    return tuple(grad.new_empty(0) if each is None else each for each in results)


def _fake_backward(grad: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    results = torch.ops.aten.convolution_backward.default(grad, *rest)
    return tuple(each if asked else grad.new_empty(0) for each, asked in zip(results, rest[-1], strict=True))


convolution = define(
    _library,
    "convolution",
    f"(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}) -> Tensor",
    _forward,
    lambda *arguments: torch.ops.aten.convolution.default(*arguments),
)
convolution_backward = define(
    _library,
    "convolution_backward",
    f"(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, {_GEOMETRY}, "
    "bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


# Autograd formulas of ``convolution`` and of its backward.


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    x, w, bias, *geometry = inputs
    ctx.save_for_backward(x, w)
    ctx.geometry, ctx.bias_sizes = geometry, None if bias is None else [bias.shape[0]]


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return *gradients(ctx, grad, *ctx.saved_tensors, ctx.bias_sizes, ctx.geometry), *[None] * 6


def gradients(
    ctx: Any, grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias_sizes: Any, geometry: Sequence[Any]
) -> list[torch.Tensor | None]:
    """Gradients of input, weights and bias, the operator's first arguments; None for those that are not requested."""
    requested = [*ctx.needs_input_grad[:2], ctx.needs_input_grad[2] and bias_sizes is not None]
    # Under a compiler, the bias gradient is a plain sum, which the compiler fuses with neighbouring operators.
    sum_bias_apart = requested[2] and type(grad) is not torch.Tensor
    mask = [*requested[:2], requested[2] and not sum_bias_apart]
    operator_results: Any = (None, None, None)
    if any(mask):
        operator_results = convolution_backward(grad, x, w, bias_sizes, *geometry, mask)
    requested_gradients = [
        each if is_requested else None for each, is_requested in zip(operator_results, mask, strict=True)
    ]
    if sum_bias_apart:
        requested_gradients[2] = grad.sum((0, *range(2, grad.ndim)))
    return requested_gradients


def _keep_backward(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    grad, x, w, _, *geometry, mask = inputs
    ctx.save_for_backward(grad, x, w)
    ctx.geometry, ctx.mask = geometry, mask


def _second_gradients(ctx: Any, of_data: Any, of_weights: Any, of_bias: Any) -> tuple[Any, ...]:
    """Gradients of the backward: it is linear in each operand, so each of its derivatives is a convolution again."""
    grad, x, w = ctx.saved_tensors
    of_data, of_weights, of_bias = (
        each if is_requested else None
        for each, is_requested in zip((of_data, of_weights, of_bias), ctx.mask, strict=True)
    )
    by_grad = by_x = by_w = None
    if ctx.needs_input_grad[0]:
        terms = []
        if of_data is not None:
            terms.append(convolution(of_data, w, None, *ctx.geometry))
        if of_weights is not None:
            terms.append(convolution(x, of_weights, None, *ctx.geometry))
        if of_bias is not None:
            terms.append(of_bias.reshape(1, -1, *[1] * (grad.ndim - 2)).expand_as(grad))
        by_grad = sum(terms) if terms else None
    if ctx.needs_input_grad[1] and of_weights is not None:
        by_x = convolution_backward(grad, x, of_weights, None, *ctx.geometry, [True, False, False])[0]
    if ctx.needs_input_grad[2] and of_data is not None:
        by_w = convolution_backward(grad, of_data, w, None, *ctx.geometry, [False, True, False])[1]
    return by_grad, by_x, by_w, *[None] * 8


torch.library.register_autograd("convdispatch::convolution", _gradients, setup_context=_keep, lib=_library)
torch.library.register_autograd(
    "convdispatch::convolution_backward", _second_gradients, setup_context=_keep_backward, lib=_library
)


# Autocast rules of the operators.


def in_autocast(kind: str, operands: Sequence[Any]) -> list[Any]:
    """Operands as autocast gives them to a convolution on devices of the type ``kind``: floating ones of up
    to 32 bits in the type that was asked for."""
    dtype = torch.get_autocast_dtype(kind)

    def casts(each: Any) -> bool:
        return isinstance(each, torch.Tensor) and each.is_floating_point() and each.dtype != torch.float64

    return [each.to(dtype) if casts(each) else each for each in operands]


def _casting(kind: str) -> Callable[..., torch.Tensor]:
    """``convolution`` under autocast, which casts its tensors as it does those of PyTorch's own."""

    def cast(*arguments: Any) -> torch.Tensor:
        with torch.amp.autocast(kind, enabled=False):
            return convolution(*in_autocast(kind, arguments[:3]), *arguments[3:])

    return cast


def _autocasts(library: torch.library.Library, name: str) -> None:
    """Register autocast for an operator with a convolution's arguments, on CPUs and this build's devices."""
    for kind in ("cpu", device_type()):
        library.impl(name, _casting(kind), f"Autocast{kind.upper()}")


_autocasts(_library, "convolution")
