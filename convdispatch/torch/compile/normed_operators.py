"""Convolutions with a batch norm before them and the statistics of their results behind them, and batch norm by these.

``convolve`` reads ``activation((input - mean) * scale + shift)`` and may return the mean and the sum of squared
distances of each channel of its result. Neither the normalised input nor a pass for the statistics is needed; autograd
saves the input alone. Below it are two operators; where the engine declines, PyTorch's operators compute the same, with
the reason counted.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from ..dispatch import normed
from ..dispatch.normed import sums_type
from ..dispatch.routing import original, routed, settings_in_force
from ..geometry import whole
from .fused_operator import activate, slope_times
from .operators import convolution_backward, define, gradients, in_autocast, without_tangents

_aten = torch.ops.aten
_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"


# Batch norm in PyTorch's operators. Its numbers are tensors of one number a channel, mean, scale and shift, because a
# compiler fuses what reads these; ``table`` has them as rows for convolutions.


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and the sum of squared distances from it, of each channel of a tensor."""
    axes = [0, *range(2, x.ndim)]
    variance, mean = torch.var_mean(x.to(sums_type(x.dtype)), axes, correction=0)
    return mean, variance * (x.numel() // x.shape[1])


def norm_numbers(mean: torch.Tensor, squares: torch.Tensor, count: int, *rest: Any) -> tuple[Any, Any, Any]:
    """Mean, scale and shift of a batch norm by a mean and ``count`` times a variance; ``rest`` is its weight, bias and
    epsilon."""
    weight, bias, epsilon = rest
    mean, squares = (each.to(sums_type(each.dtype)) for each in (mean, squares))
    scale = torch.rsqrt(squares / count + epsilon)
    scale = scale if weight is None else scale * weight.to(scale.dtype)
    return mean, scale, torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)


def update_running(buffers: Sequence[torch.Tensor], values: Sequence[Any], momentum: Any) -> None:
    """Move running statistics towards a batch's, as PyTorch does: each of ``values`` is a tensor and the number by
    which it is divided. All at once, so that a compiler makes one kernel of them."""
    with torch.no_grad():
        old = torch._foreach_mul([buffer.to(value.dtype) for buffer, (value, _) in zip(buffers, values, strict=True)],
                                 1 - momentum)  # fmt: skip
        new = torch._foreach_mul([value / divisor for value, divisor in values], momentum)
        torch._foreach_copy_(list(buffers), torch._foreach_add(old, new))


def table(mean: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """The three as rows, without gradients. ``torch.stack`` would be a kernel a row."""
    row = torch.arange(3, device=mean.device).unsqueeze(1)
    return torch.where(row == 0, mean, torch.where(row == 1, scale, shift))


def normalised(x: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
    """``(x - mean) * scale + shift`` of mean, scale and shift, computed in their dtype, returned in x's."""
    return _Normalised.apply(x, *norm)  # type: ignore[no-any-return]


def _normalised(x: torch.Tensor, norm: Sequence[torch.Tensor]) -> torch.Tensor:
    mean, scale, shift = (_over_channels(each, x.ndim) for each in norm)
    return (x.to(mean.dtype) - mean) * scale + shift


def activated(x: torch.Tensor, norm: Sequence[torch.Tensor], activation: str | None) -> torch.Tensor:
    """``activation(norm(x))`` without gradients, for ``convolve``, which has them."""
    with torch.no_grad():
        return _activated(x, norm, activation)


def _activated(x: torch.Tensor, norm: Sequence[torch.Tensor], activation: str | None) -> torch.Tensor:
    return activate(_normalised(x, norm), None if activation == "identity" else activation).to(x.dtype)


def rectified(x: torch.Tensor) -> torch.Tensor:
    """relu without gradients, for ``convolve``, which has them."""
    with torch.no_grad():
        return torch.relu(x)


class _Normalised(torch.autograd.Function):
    """``normalised``. The backward sums the gradient itself, not its product with the scale, so that a compiler stores
    no gradient in the dtype of sums."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *norm[:2])
        return _normalised(x, norm).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, mean, scale = ctx.saved_tensors
        wide, distance = grad.to(mean.dtype), x.to(mean.dtype) - _over_channels(mean, x.ndim)
        axes = [0, *range(2, x.ndim)]
        by_shift, by_scale = wide.sum(axes), (wide * distance).sum(axes)
        return (wide * _over_channels(scale, x.ndim)).to(x.dtype), -scale * by_shift, by_scale, by_shift


def _over_channels(numbers: torch.Tensor, ndim: int) -> torch.Tensor:
    return numbers.reshape(1, -1, *[1] * (ndim - 2))


# The operators, below autograd.


def _input(x: torch.Tensor, table: Any, norm: str | None) -> torch.Tensor:
    """What the convolution reads, in PyTorch's operators."""
    return x if table is None else activated(x, table, norm)


def _forward(x: torch.Tensor, w: torch.Tensor, bias: Any, table: Any, norm: Any, sums: bool, *geometry: Any) -> Any:
    without_tangents("normed_convolution", (x, w, bias, table))

    def theirs() -> tuple[torch.Tensor, torch.Tensor | None]:
        y = original("convolution", _input(x, table, norm), w, bias, *whole(*geometry))
        if not sums:
            return y, None
        mean, squares = statistics(y)
        return y, torch.stack([torch.full_like(mean, y.numel() // y.shape[1]), mean, squares])

    arguments = (x, w, bias, table, norm, sums, *geometry)
    return _defined(x, routed("convolution", normed.forward, theirs, arguments, settings_in_force()))


def _defined(like: torch.Tensor, results: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """An operator cannot return None: a result that was not requested is an empty tensor, also in the fake kernel."""
    return tuple(like.new_empty(0) if each is None else each for each in results)


def _backward(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *rest: Any) -> Any:
    table, residual, read, norm, *geometry, mask = rest

    def theirs() -> tuple[Any, Any, Any]:
        given = _input(x, table, norm) if read is None else read
        arguments = (grad, given, w, None, *whole(*geometry), [*mask[:2], False])
        data, weights, _ = original("convolution_backward", *arguments)
        sums = None
        if mask[0]:
            normed_input, data = _normalised(x, table), data.to(table.dtype)
            data = data if residual is None else data + residual
            data = data if norm == "identity" else slope_times(data, norm, normed_input)
            data = data.to(x.dtype)
        if mask[2]:
            axes, stored = [0, *range(2, x.ndim)], data.to(table.dtype)
            sums = torch.stack([stored.sum(axes), (stored * (x - _over_channels(table[0], x.ndim))).sum(axes)])
        return data, weights, sums

    arguments = (grad, x, w, *rest)
    return _defined(grad, routed("convolution_backward", normed.backward, theirs, arguments, settings_in_force()))


def _channel_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Sums over images and pixels of products of two tensors' channels, ``[left's, right's]``, in float32."""
    columns, rows = (each.movedim(1, -1).flatten(0, -2) for each in (left, right))
    if not left.is_cpu:
        return torch.mm(columns.T, rows, out_dtype=torch.float32)
    return columns.T.float() @ rows.float()


def _fake(x: Any, w: Any, bias: Any, table: Any, norm: Any, sums: bool, *geometry: Any) -> Any:
    y = _aten.convolution.default(x, w, bias, *whole(*geometry))
    return y, x.new_empty((3, w.shape[0]), dtype=sums_type(x.dtype)) if sums else x.new_empty(0)


def _fake_backward(grad: Any, x: Any, w: Any, *rest: Any) -> Any:
    _table, _residual, _read, _norm, *geometry, mask = rest
    plain = [*mask[:2], False]
    data, weights, _ = _aten.convolution_backward.default(grad, x, w, None, *whole(*geometry), plain)
    sums = x.new_empty((2, x.shape[1]), dtype=sums_type(x.dtype)) if mask[2] else None
    return tuple(each if asked else grad.new_empty(0) for each, asked in zip((data, weights, sums), mask, strict=True))


_library = torch.library.Library("convdispatch", "FRAGMENT")
normed_convolution = define(
    _library,
    "normed_convolution",
    "(Tensor input, Tensor weight, Tensor? bias, Tensor? table, str? norm, bool sums, "
    f"{_GEOMETRY}) -> (Tensor, Tensor)",
    _forward,
    _fake,
)
normed_convolution_backward = define(
    _library,
    "normed_convolution_backward",
    "(Tensor grad_output, Tensor input, Tensor weight, Tensor table, Tensor? residual, Tensor? read, str? norm, "
    f"{_GEOMETRY}, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)
channel_products = define(
    _library,
    "channel_products",
    "(Tensor left, Tensor right) -> Tensor",
    _channel_products,
    lambda left, right: left.new_empty((left.shape[1], right.shape[1]), dtype=torch.float32),
)


def sum_in_kernels(graph: Any) -> None:
    """In AOTAutograd's graph, take the sums over pixels of gradients that ``normed_convolution_backward`` returns from
    its kernel, which has the values that it stores."""
    for node in graph.find_nodes(op="call_function", target=_aten.sum.dim_IntList):
        data = node.args[0]
        if data.target is torch.ops.prims.convert_element_type.default:
            data = data.args[0]
        call = data.args[0] if data.target is operator.getitem and data.args[1] == 0 else None
        if getattr(call, "target", None) is not normed_convolution_backward or node.meta["val"].ndim != 1:
            continue
        values = call.meta["val"]
        if node.meta["val"].numel() != values[0].shape[1]:
            continue
        *rest, (wants_data, wants_weights, _) = call.args
        call.args = (*rest, [wants_data, wants_weights, True])
        sums = values[0].new_empty((2, values[0].shape[1]), dtype=sums_type(values[0].dtype))
        call.meta["val"] = (*values[:2], sums)
        with graph.inserting_after(call):
            rows = graph.call_function(operator.getitem, (call, 2))
        with graph.inserting_after(rows):
            row = graph.call_function(_aten.select.int, (rows, 0, 0))
        rows.meta["val"], row.meta = sums, dict(node.meta)
        node.replace_all_uses_with(row)
        graph.erase_node(node)


# Autograd.


def convolve(operands: Sequence[Any], norm: Any, activation: str | None, sums: bool, *geometry: Any) -> Any:
    """The convolution of ``activation(norm(input))``, with gradients; with ``sums`` also mean and sum of squared
    distances of each channel of the result.

    ``operands`` are input, weight, bias, and the result of ``activated`` or None: with it the norm is fused in the
    gradient of the input alone. ``norm`` is mean, scale and shift, or None if the input is read as it is. The
    activation is a problem's ``norm``.

    With the result of ``rectified`` but no ``norm`` the input goes through relu alone. Then the last result is relu's,
    for all its other readers: their gradient is added to the convolution's before relu's slope, where that is computed.
    """
    return _NormedConvolution.apply(*_operands(operands, norm), activation, sums, geometry)


def _operands(operands: Sequence[Any], norm: Any) -> list[Any]:
    """The tensors of ``convolve``, in autocast's type, and of the norm before it."""
    kind = operands[0].device.type
    cast = in_autocast(kind, operands) if torch.is_autocast_enabled(kind) else operands
    return [*cast, *((None, None, None) if norm is None else norm)]


def _convolved(ctx: Any, given: Sequence[Any], sums: bool, geometry: Sequence[Any]) -> Any:
    """The operator's results, for input, weight, bias, what is read or None, the norm's numbers and the activation."""
    x, w, bias, read, *norm, activation = given
    ctx.activation, ctx.geometry, ctx.bias_sizes = activation, geometry, None if bias is None else [bias.shape[0]]
    if read is not None or norm[1] is None:
        return normed_convolution(x if read is None else read, w, bias, None, None, sums, *geometry)
    return normed_convolution(x, w, bias, table(*norm), activation, sums, *geometry)


class _NormedConvolution(torch.autograd.Function):
    """``convolve``. The gradients of mean, scale and shift are tensors of their own, not rows of one, so that a
    compiler fuses what reads them."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        *inputs, has_sums, geometry = given
        x, w, _, read, *norm, _ = inputs
        y, sums = _convolved(ctx, inputs, has_sums, geometry)
        mean = sums[1] if has_sums else None
        is_join = read is not None and norm[1] is None
        ctx.save_for_backward(None if is_join else x, w, read, *norm, y if has_sums else None, mean)
        results = [y, *((mean, sums[2]) if has_sums else ()), *((read,) if is_join else ())]
        return tuple(results) if len(results) > 1 else y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *more: Any) -> tuple[Any, ...]:  # type: ignore[override]
        x, w, read, *norm, y, mean = ctx.saved_tensors
        if y is not None:  # the gradient of y through its statistics
            by_mean, by_squares, mean = (_over_channels(each, y.ndim) for each in (*more[:2], mean))
            distance = y.to(mean.dtype) - mean
            grad = grad.to(mean.dtype) + by_mean / (y.numel() // y.shape[1]) + 2 * by_squares * distance
            grad = grad.to(y.dtype)
        is_join = x is None
        if norm[1] is None and not is_join:
            return *gradients(ctx, grad, x, w, ctx.bias_sizes, whole(*ctx.geometry)), *[None] * 7
        needs_x, needs_w, needs_bias, _, *needs_norm = ctx.needs_input_grad[:7]
        by_x, by_w, by_norm = None, None, (None, None, None)
        mask = [needs_x or any(needs_norm), needs_w, any(needs_norm)]
        if is_join and any(mask):
            nothing = torch.zeros(read.shape[1], dtype=sums_type(read.dtype), device=read.device)
            rows = table(nothing, nothing + 1, nothing)
            arguments = (grad, read, w, rows, more[-1], read, ctx.activation, *ctx.geometry, mask)
            by_x, by_w, _ = normed_convolution_backward(*arguments)
        elif any(mask):
            arguments = (grad, x, w, table(*norm), None, read, ctx.activation, *ctx.geometry, mask)
            by_x, by_w, by_norm = _through_norm(normed_convolution_backward(*arguments), x, norm[1], mask)
        by_bias = grad.sum((0, *range(2, grad.ndim))) if needs_bias else None
        return by_x if needs_x else None, by_w if needs_w else None, by_bias, None, *by_norm, None, None, None


def _through_norm(results: Sequence[torch.Tensor], x: torch.Tensor, scale: torch.Tensor, mask: Sequence[bool]) -> Any:
    """The results of ``normed_convolution_backward`` for a mask as gradients of the norm's input x, of the weights, and
    of the norm's mean, scale and shift."""
    data, weights, sums = results
    by_norm = (-scale * sums[0], sums[1], sums[0]) if mask[2] else (None, None, None)
    by_x = (data.to(scale.dtype) * _over_channels(scale, x.ndim)).to(x.dtype) if mask[0] else None
    return by_x, weights, by_norm


def normalised_pointwise(operands: Sequence[Any], norm: Any, activation: str | None, *rest: Any) -> Any:
    """Batch norm of ``convolve``'s result u for a convolution of one pixel, stride 1 and no padding; with it the mean
    and the sum of squared distances of each channel of u. ``rest`` is the norm's weight, bias and epsilon, stride,
    padding, dilation and groups.

    The gradients read no u. With u - mean(u) = w (a - mean(a)), where a is what the convolution reads, u's gradient is
    ``scale (dy - mean(dy)) - rate w (a - mean(a))`` for one number ``rate`` a channel. So the gradient of a is that of
    dy by scaled weights and a convolution of a by ``w^T rate w``; the gradient of w, and ``rate``, follow from dy's and
    a's products with a, summed over pixels. Where u has several times a's channels, these products cost little, and two
    passes over dy and u are not needed.
    """
    return _NormalisedPointwise.apply(*_operands(operands, norm), activation, *rest[:3], rest[3:])


class _NormalisedPointwise(torch.autograd.Function):
    """``normalised_pointwise``."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        *inputs, weight, shift, epsilon, geometry = given
        x, w, _, read, *norm, _ = inputs
        u, (_, mean, squares) = _convolved(ctx, inputs, True, geometry)
        ctx.count = u.numel() // u.shape[1]
        deviation = torch.rsqrt(squares / ctx.count + epsilon)
        _, scale, _ = numbers = norm_numbers(mean, squares, ctx.count, weight, shift, epsilon)
        ctx.save_for_backward(x, w, read, *norm, deviation, scale)
        ctx.mark_non_differentiable(mean, squares)
        return _normalised(u, numbers).to(x.dtype), mean, squares

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:  # type: ignore[override]
        x, w, a, *norm, deviation, scale = ctx.saved_tensors
        if a is None:
            a = x if norm[1] is None else _activated(x, norm, ctx.activation)
        wide, axes, geometry, count = scale.dtype, [0, *range(2, x.ndim)], ctx.geometry, ctx.count
        by_shift, mean = grad.to(wide).sum(axes), a.to(wide).sum(axes) / count
        products, squares = (_products(each, a, geometry) for each in (grad, a))
        matrix = w.flatten(1).to(wide)
        products = products - by_shift[:, None] * mean
        by_scale = (matrix * products).sum(1)
        rate = (scale * deviation * deviation * by_scale / count)[:, None]
        weights = scale[:, None] * products - rate * (matrix @ (squares - count * mean[:, None] * mean))
        by_x, by_norm, ones = None, (None, None, None), [1] * (x.ndim - 2)
        needs_norm = any(ctx.needs_input_grad[4:7])
        if ctx.needs_input_grad[0] or needs_norm:
            scaled = (scale[:, None] * matrix).to(x.dtype).reshape(w.shape)
            square = (matrix.T @ (-rate * matrix)).to(x.dtype)
            constant = -(square.to(wide) @ mean) - matrix.T @ (scale * by_shift / count)
            square = square.reshape(*square.shape, *ones)
            correction, _ = normed_convolution(a, square, constant.to(x.dtype), None, None, False, *geometry)
            mask = [True, False, needs_norm]
            if norm[1] is None:
                by_x = convolution_backward(grad, a, scaled, None, *whole(*geometry), mask)[0] + correction
            else:
                arguments = (grad, x, scaled, table(*norm), correction, None, ctx.activation, *geometry, mask)
                by_x, _, by_norm = _through_norm(normed_convolution_backward(*arguments), x, norm[1], mask)
        by_bias = w.new_zeros(ctx.bias_sizes) if ctx.bias_sizes else None  # the norm subtracts the bias again
        weights = weights.to(w.dtype).reshape(w.shape)
        affine_gradients = [
            each if needed else None
            for each, needed in zip((deviation * by_scale, by_shift), ctx.needs_input_grad[8:10], strict=True)
        ]
        return by_x, weights, by_bias, None, *by_norm, None, *affine_gradients, None, None


def _products(left: torch.Tensor, right: torch.Tensor, geometry: Sequence[Any]) -> torch.Tensor:
    """``channel_products`` in the dtype of sums, for any dtype."""
    if right.dtype.itemsize == 2:
        return channel_products(left, right)
    shape = (left.shape[1], right.shape[1], *[1] * (left.ndim - 2))
    arguments = (left, right, right.new_empty(shape), None, *whole(*geometry), [False, True, False])
    return convolution_backward(*arguments)[1].flatten(1)  # type: ignore[no-any-return]
