"""``torch.ops.convdispatch.normed_convolution``: a convolution that reads ``activation(norm(input))`` and may return the
sums of its result's channels, with its backward; and batch norm by these two.

A norm is a table of three numbers a channel, mean, scale and shift: ``(input - mean) * scale + shift``. Neither the
normalised input nor a pass for the statistics is needed; autograd saves the input alone. Where the engine declines,
PyTorch's operators compute the same, with the reason counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..dispatch import normed
from ..dispatch.normed import sums_type
from ..dispatch.routing import original, routed, settings_in_force
from .fused_operator import activate, slope_times
from .operators import autocasts, gradients, without_tangents

_aten = torch.ops.aten
_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
_library = torch.library.Library("convdispatch", "FRAGMENT")
_library.define(
    f"normed_convolution(Tensor input, Tensor weight, Tensor? bias, Tensor? table, str? norm, bool sums, {_GEOMETRY}) "
    "-> (Tensor, Tensor)"
)
_library.define(
    f"normed_convolution_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor table, str norm, {_GEOMETRY}, "
    "bool[2] output_mask) -> (Tensor, Tensor, Tensor)"
)
normed_convolution = torch.ops.convdispatch.normed_convolution.default
normed_convolution_backward = torch.ops.convdispatch.normed_convolution_backward.default


# Batch norm by tables and sums, in PyTorch's operators.


def statistics(x: torch.Tensor) -> torch.Tensor:
    """The sums of a tensor's channels, as ``normed_convolution`` returns those of its result: the rows are count, mean
    and sum of squared distances from the mean."""
    axes = [0, *range(2, x.ndim)]
    variance, mean = torch.var_mean(x.to(sums_type(x.dtype)), axes, correction=0)
    count = x.numel() // x.shape[1]
    return torch.stack([torch.full_like(mean, count), mean, variance * count])


def training_table(
    sums: torch.Tensor, count: int, affine: Sequence[Any], running: Sequence[Any], momentum: Any, epsilon: float
) -> torch.Tensor:
    """The table of a batch norm by the batch's statistics, from the sums of ``count`` elements a channel.

    ``affine`` is weight and bias, ``running`` the buffers of running mean and variance, which are updated; each may be
    None.
    """
    mean, variance = sums[1], sums[2] / count
    with torch.no_grad():
        for buffer, value in zip(running, (mean, variance * (count / max(1, count - 1))), strict=True):
            if buffer is not None:
                buffer.copy_((1 - momentum) * buffer.to(value.dtype) + momentum * value)
    return _table(mean, variance, *affine, epsilon)


def frozen_table(affine: Sequence[Any], running: Sequence[Any], dtype: torch.dtype, epsilon: float) -> torch.Tensor:
    """The table of a batch norm by its running statistics, for an input of a dtype; arguments as in
    ``training_table``."""
    mean, variance = (each.to(sums_type(dtype)) for each in running)
    return _table(mean, variance, *affine, epsilon)


def _table(mean: torch.Tensor, variance: torch.Tensor, weight: Any, bias: Any, epsilon: float) -> torch.Tensor:
    scale = torch.rsqrt(variance + epsilon)
    scale = scale if weight is None else scale * weight.to(scale.dtype)
    shift = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)
    return torch.stack([mean, scale, shift])


def normalised(x: torch.Tensor, table: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``(x - mean) * scale + shift``, computed in the table's dtype, returned in x's or another one."""
    mean, scale, shift = (_over_channels(row, x.ndim) for row in table)
    return ((x.to(table.dtype) - mean) * scale + shift).to(dtype or x.dtype)


def _over_channels(row: torch.Tensor, ndim: int) -> torch.Tensor:
    return row.reshape(1, -1, *[1] * (ndim - 2))


# The operators, below autograd.


def _whole(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> tuple[Any, ...]:
    return stride, padding, dilation, False, [0] * len(stride), groups


def _activation(norm: str | None) -> str | None:
    return None if norm == "identity" else norm


def _input(x: torch.Tensor, table: Any, norm: str | None) -> torch.Tensor:
    """What the convolution reads, in PyTorch's operators."""
    if table is None:
        return x
    return activate(normalised(x, table, table.dtype), _activation(norm)).to(x.dtype)


def _forward(x: torch.Tensor, w: torch.Tensor, bias: Any, table: Any, norm: Any, sums: bool, *geometry: Any) -> Any:
    without_tangents("normed_convolution", (x, w, bias, table))

    def theirs() -> tuple[torch.Tensor, torch.Tensor]:
        y = original("convolution", _input(x, table, norm), w, bias, *_whole(*geometry))
        return y, statistics(y) if sums else x.new_empty(0, dtype=sums_type(x.dtype))

    arguments = (x, w, bias, table, norm, sums, *geometry)
    return routed("convolution", normed.forward, theirs, arguments, settings_in_force())


def _backward(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, table: torch.Tensor, norm: str, *rest: Any) -> Any:
    *geometry, mask = rest

    def theirs() -> tuple[Any, Any, Any]:
        arguments = (grad, _input(x, table, norm), w, None, *_whole(*geometry), [*mask, False])
        data, weights, _ = original("convolution_backward", *arguments)
        sums = None
        if mask[0]:
            affine, data = normalised(x, table, table.dtype), data.to(table.dtype)
            data = data if norm == "identity" else slope_times(data, norm, x=affine)
            data, axes = data.to(x.dtype), [0, *range(2, x.ndim)]
            stored = data.to(table.dtype)
            sums = torch.stack([stored.sum(axes), (stored * (x - _over_channels(table[0], x.ndim))).sum(axes)])
        return data, sums, weights

    arguments = (grad, x, w, table, norm, *rest)
    results = routed("convolution_backward", normed.backward, theirs, arguments, settings_in_force())
    # An operator cannot return None: a gradient that was not requested is an empty tensor, also in the fake kernel.
    return tuple(grad.new_empty(0) if each is None else each for each in results)


for _name, _compute in (("normed_convolution", _forward), ("normed_convolution_backward", _backward)):
    _library.impl(_name, _compute, "CompositeExplicitAutograd")


@torch.library.register_fake("convdispatch::normed_convolution", lib=_library)
def _(x: Any, w: Any, bias: Any, table: Any, norm: Any, sums: bool, *geometry: Any) -> Any:
    y = _aten.convolution.default(x, w, bias, *_whole(*geometry))
    return y, x.new_empty((3, w.shape[0]) if sums else (0,), dtype=sums_type(x.dtype))


@torch.library.register_fake("convdispatch::normed_convolution_backward", lib=_library)
def _(grad: Any, x: Any, w: Any, table: Any, norm: Any, *rest: Any) -> Any:
    *geometry, (wants_data, wants_weights) = rest
    mask = [wants_data, wants_weights, False]
    data, weights, _ = _aten.convolution_backward.default(grad, x, w, None, *_whole(*geometry), mask)
    sums = x.new_empty((2, x.shape[1]), dtype=sums_type(x.dtype)) if wants_data else grad.new_empty(0)
    return data if wants_data else grad.new_empty(0), sums, weights if wants_weights else grad.new_empty(0)


# Autograd.


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    x, w, bias, table, norm, has_sums, *geometry = inputs
    y, sums = output if has_sums else (None, None)
    ctx.save_for_backward(x, w, table, y, sums)
    ctx.norm, ctx.geometry, ctx.bias_sizes = norm, geometry, None if bias is None else [bias.shape[0]]


def _gradients(ctx: Any, grad: torch.Tensor, grad_of_sums: torch.Tensor) -> tuple[Any, ...]:
    """Gradients of input, weights, bias and table."""
    x, w, table, y, sums = ctx.saved_tensors
    if sums is not None:
        grad = grad.to(sums.dtype) + _through_sums(grad_of_sums, y, sums)
        grad = grad.to(y.dtype)
    if table is None:
        return *gradients(ctx, grad, x, w, ctx.bias_sizes, _whole(*ctx.geometry)), *[None] * 7
    needs_x, needs_w, needs_bias, needs_table = ctx.needs_input_grad[:4]
    by_x = by_table = by_bias = weights = None
    if needs_x or needs_table or needs_w:
        mask = [needs_x or needs_table, needs_w]
        data, grad_sums, weights = normed_convolution_backward(grad, x, w, table, ctx.norm, *ctx.geometry, mask)
        if needs_x:
            by_x = (data.to(table.dtype) * _over_channels(table[1], x.ndim)).to(x.dtype)
        if needs_table:
            by_table = torch.stack([-table[1] * grad_sums[0], grad_sums[1], grad_sums[0]])
    if needs_bias:
        by_bias = grad.sum((0, *range(2, grad.ndim)))
    return by_x, weights if needs_w else None, by_bias, by_table, *[None] * 6


def _through_sums(grad: torch.Tensor, y: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The gradient of y through its channels' means and sums of squared distances."""
    by_mean, by_squares, mean = (_over_channels(row, y.ndim) for row in (grad[1], grad[2], sums[1]))
    return by_mean / (y.numel() // y.shape[1]) + 2 * by_squares * (y.to(sums.dtype) - mean)


torch.library.register_autograd("convdispatch::normed_convolution", _gradients, setup_context=_keep, lib=_library)
autocasts(_library, "normed_convolution", normed_convolution, 3)
