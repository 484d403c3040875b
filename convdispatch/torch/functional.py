"""conv1d to conv_transpose3d with ``torch.nn.functional``'s signatures, by an operator that compilers keep whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..device.places.stream import KINDS
from .compile import native_layers
from .compile.fused_operator import fused_convolution, unfused
from .compile.operators import convolution, in_autocast
from .compile.transforms import plain_operators, vmap_comes_first


def _each(value: Any, ndim: int) -> list[int]:
    values = [value] if isinstance(value, int | torch.SymInt) else list(value)
    return values * ndim if len(values) == 1 else values


def _conv(
    ndim: int, x: torch.Tensor, w: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> torch.Tensor:
    batched, lists = True, (stride, padding, dilation)
    if not (isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)):  # PyTorch raises its own error
        return getattr(torch.nn.functional, f"conv{ndim}d")(x, w, bias, *lists, groups)  # type: ignore[no-any-return]
    if not _as_layers_have_it(ndim, x, lists):
        x, batched, lists = _prepared(ndim, x, w, stride, padding, dilation)
    if native_layers.serves(x, w, bias):
        y = native_layers.run(x, w, bias, None, native_layers.ALONE, *lists, groups)
    else:
        y = _operator(x)(x, w, bias, *(_each(values, ndim) for values in lists), False, [0] * ndim, groups)
    return y if batched else y.squeeze(0)


def _as_layers_have_it(ndim: int, x: torch.Tensor, lists: tuple[Any, Any, Any]) -> bool:
    """Whether the arguments need no conversion: the input has a batch axis, and stride, padding and dilation are
    tuples."""
    stride, padding, dilation = lists
    return type(stride) is type(padding) is type(dilation) is tuple and x.ndim == ndim + 2


def _operator(x: torch.Tensor) -> Any:
    if x.is_complex():
        return _of_real_ones
    return _plain if plain_operators() else convolution


def _plain(x: torch.Tensor, w: torch.Tensor, bias: Any, *geometry: Any) -> torch.Tensor:
    """PyTorch's operator, which autocast does not know on CPUs: it knows what is above it, unless vmap is nearer."""
    kind = x.device.type
    casts = kind in KINDS or (kind == "cpu" and not vmap_comes_first((x, w, bias)))
    if casts and torch.is_autocast_enabled(kind):
        x, w, bias = in_autocast(kind, (x, w, bias))
    return torch.ops.aten.convolution.default(x, w, bias, *geometry)


def _of_real_ones(x: torch.Tensor, w: torch.Tensor, bias: Any, *geometry: Any) -> torch.Tensor:
    """A complex convolution by three real ones, as PyTorch computes it above its operator, which takes real numbers
    only."""
    (a, b), (c, d) = (torch.view_as_real(each.resolve_conj()).unbind(-1) for each in (x, w))
    function = _operator(a)
    real_product, imaginary_product, sum_product = (
        function(input_part, weight_part, None, *geometry)
        for input_part, weight_part in ((a, c), (b, d), (a + b, c + d))
    )
    y = torch.complex(real_product - imaginary_product, sum_product - real_product - imaginary_product)
    return y if bias is None else y + bias.reshape(-1, *[1] * (w.ndim - 2))


def _prepared(
    ndim: int, x: torch.Tensor, w: torch.Tensor, stride: Any, padding: Any, dilation: Any
) -> tuple[torch.Tensor, bool, tuple[Any, Any, Any]]:
    """The input with a batch axis, whether it had one, and stride, padding and dilation as tuples with a number per
    axis."""
    strides, dilations = _each(stride, ndim), _each(dilation, ndim)
    x, batched = _batched(x, ndim)
    if isinstance(padding, str):
        x, pads = _by_word(padding, x, w, strides, dilations)
    else:
        pads = _each(padding, ndim)
    return x, batched, (tuple(strides), tuple(pads), tuple(dilations))


def fused(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: Any,
    activation: str | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> torch.Tensor:
    """``activation(conv(x) + residual)`` in one pass; the residual may be anything that broadcasts."""
    ndim = w.ndim - 2
    if residual is not None and not (isinstance(residual, torch.Tensor) and residual.ndim == x.ndim):
        return unfused(_conv(ndim, x, w, bias, stride, padding, dilation, groups), residual, activation)
    batched, window = True, (stride, padding, dilation)
    if not _as_layers_have_it(ndim, x, window):
        x, batched, window = _prepared(ndim, x, w, stride, padding, dilation)
    if not batched and residual is not None:
        residual = residual.unsqueeze(0)
    if native_layers.serves(x, w, bias, residual):
        y = native_layers.run(x, w, bias, residual, activation, *window, groups)
        return y if batched else y.squeeze(0)
    lists = [_each(values, ndim) for values in window]
    if x.is_complex() or plain_operators():
        y = unfused(_operator(x)(x, w, bias, *lists, False, [0] * ndim, groups), residual, activation)
    else:
        y = fused_convolution(x, w, bias, residual, activation, *lists, groups)
    return y if batched else y.squeeze(0)


def _batched(x: torch.Tensor, ndim: int) -> tuple[torch.Tensor, bool]:
    if x.ndim not in (ndim + 1, ndim + 2):
        raise RuntimeError(
            f"input must have {ndim + 2} axes, or {ndim + 1} for one image without a batch, got shape {tuple(x.shape)}"
        )
    return (x, True) if x.ndim == ndim + 2 else (x.unsqueeze(0), False)


def _by_word(
    word: str, x: torch.Tensor, w: torch.Tensor, strides: list[int], dilations: list[int]
) -> tuple[torch.Tensor, list[int]]:
    if word == "valid":
        return x, [0] * len(strides)
    if word != "same":
        raise RuntimeError(f"padding must be numbers, 'same' or 'valid', got {word!r}")
    if any(step != 1 for step in strides):
        raise RuntimeError(f"padding='same' keeps the size only with stride 1, got stride {tuple(strides)}")
    totals = [spread * (size - 1) for spread, size in zip(dilations, w.shape[2:], strict=True)]
    if any(total % 2 for total in totals):  # an odd total pads one more at the end of the axis, as in PyTorch
        x = torch.nn.functional.pad(x, [side for total in reversed(totals) for side in (0, total % 2)])
    return x, [total // 2 for total in totals]


def _conv_transpose(
    ndim: int,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> torch.Tensor:
    lists = [_each(value, ndim) for value in (stride, padding, dilation, output_padding)]
    if not (isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)):
        pytorch_function = getattr(torch.nn.functional, f"conv_transpose{ndim}d")
        return pytorch_function(x, w, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]
    x, batched = _batched(x, ndim)
    y = _operator(x)(x, w, bias, *lists[:3], True, lists[3], groups)
    return y if batched else y.squeeze(0)


_Ints = int | Sequence[int]
_Tensor = torch.Tensor


def _convolution(ndim: int) -> Callable[..., torch.Tensor]:
    """Create the function ``conv1d``, ``conv2d`` or ``conv3d``."""

    def conv(
        input: _Tensor,
        weight: _Tensor,
        bias: _Tensor | None = None,
        stride: _Ints = 1,
        padding: _Ints | str = 0,
        dilation: _Ints = 1,
        groups: int = 1,
    ) -> _Tensor:
        return _conv(ndim, input, weight, bias, stride, padding, dilation, groups)

    return _named(conv, f"conv{ndim}d")


def _transposed_convolution(ndim: int) -> Callable[..., torch.Tensor]:
    """Create the function ``conv_transpose1d``, ``conv_transpose2d`` or ``conv_transpose3d``."""

    def conv_transpose(
        input: _Tensor,
        weight: _Tensor,
        bias: _Tensor | None = None,
        stride: _Ints = 1,
        padding: _Ints = 0,
        output_padding: _Ints = 0,
        groups: int = 1,
        dilation: _Ints = 1,
    ) -> _Tensor:
        return _conv_transpose(ndim, input, weight, bias, stride, padding, output_padding, groups, dilation)

    return _named(conv_transpose, f"conv_transpose{ndim}d")


def _named(function: Callable[..., torch.Tensor], name: str) -> Callable[..., torch.Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As ``torch.nn.functional.{name}``."
    return function


conv1d, conv2d, conv3d = map(_convolution, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed_convolution, (1, 2, 3))
