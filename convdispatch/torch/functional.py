"""conv1d to conv_transpose3d with ``torch.nn.functional``'s signatures, by an operator that compilers keep whole.

``torch.func``'s transforms and forward-mode differentiation have rules for ``aten::convolution``; ``torch.jit.trace``
and the ONNX exporters know it. A custom operator would lose tangents, or be unknown to whoever loads the graph, so
there these functions call PyTorch's. Below it, under ``enable()``, the numbers are computed here all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..device.places.stream import KINDS
from .compile.operators import BELOW_AUTOGRAD, convolution, in_autocast
from .geometry import for_each_axis

_C: Any = torch._C
_TENSORS = (torch.Tensor, torch.nn.Parameter)


def convolve(
    ndim: int,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: Any,
    window: tuple[Any, Any, Any],
    groups: int,
) -> torch.Tensor:
    """The convolution of an input with a batch axis or without; ``window`` is stride, padding and dilation as
    ``torch.nn.functional`` takes them. Raises PyTorch's kinds of errors."""
    if _is_pytorchs(x, w):
        return getattr(torch.nn.functional, f"conv{ndim}d")(x, w, bias, *window, groups)
    x, batched = _batched(x, ndim)
    stride, padding, dilation = window
    strides, dilations = for_each_axis(stride, ndim), for_each_axis(dilation, ndim)
    if isinstance(padding, str):
        x, pads = _by_word(padding, x, w, strides, dilations)
    else:
        pads = for_each_axis(padding, ndim)
    y = _operator(x, w, bias)(x, w, bias, strides, pads, dilations, False, [0] * ndim, groups)
    return y if batched else y.squeeze(0)


def _is_pytorchs(x: Any, w: Any) -> bool:
    """Whether PyTorch's function is called: for what is no tensor it raises its own error, and complex numbers it
    computes by three convolutions of real ones."""
    return not (isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)) or x.is_complex()


def _operator(*operands: torch.Tensor | None) -> Any:
    """The operator with the arguments of ``aten::convolution`` that computes a call on these operands."""
    if _is_plain_inference(*operands):
        return BELOW_AUTOGRAD[convolution]
    return _plain if plain_operators() else convolution


def _is_plain_inference(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether nothing records a call on these tensors, and no gradients are needed: the operators' overloads below
    autograd spare the host several times a launch."""
    kind = x.device.type
    if kind not in ("cpu", *KINDS) or torch.compiler.is_compiling():
        return False
    if _C._len_torch_dispatch_stack() or _C._is_torch_function_mode_enabled() or _C._get_tracing_state() is not None:
        return False
    if forward_ad._current_level >= 0 or _C._functorch.peek_interpreter_stack() is not None:
        return False
    learns = torch.is_grad_enabled()
    return not torch.is_autocast_enabled(kind) and all(
        each is None or (type(each) in _TENSORS and not (learns and each.requires_grad)) for each in (x, *others)
    )


def plain_operators() -> bool:
    """Whether a layer's call must use PyTorch's ``convolution`` now: it is recorded, or differentiated by a
    transform."""
    if torch.compiler.is_compiling():  # compilers and torch.export keep custom operators whole
        return torch.onnx.is_in_onnx_export()
    if _C._get_tracing_state() is not None or forward_ad._current_level >= 0:
        return True
    functionalize = _C._functorch.TransformType.Functionalize  # which takes any operator
    transforms = _C._functorch.get_interpreter_stack() if _C._functorch.peek_interpreter_stack() is not None else ()
    return any(each.key() != functionalize for each in transforms)


def _plain(x: torch.Tensor, w: torch.Tensor, bias: Any, *geometry: Any) -> torch.Tensor:
    """PyTorch's operator, which autocast does not know on CPUs: it knows what is above it, unless vmap is nearer."""
    kind = x.device.type
    casts = kind in KINDS or (kind == "cpu" and not _vmap_comes_first((x, w, bias)))
    if casts and torch.is_autocast_enabled(kind):
        x, w, bias = in_autocast(kind, (x, w, bias))
    return torch.ops.aten.convolution.default(x, w, bias, *geometry)


def _vmap_comes_first(operands: Sequence[Any]) -> bool:
    """Whether ``torch.vmap`` is the innermost transform, and one of these operands has an axis of its: then PyTorch
    looks for vmap's rule before that of autocast."""
    innermost = _C._functorch.peek_interpreter_stack()
    if innermost is None or innermost.key() != _C._functorch.TransformType.Vmap:
        return False
    return any(isinstance(each, torch.Tensor) and _C._functorch.is_batchedtensor(each) for each in operands)


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
        return convolve(ndim, input, weight, bias, (stride, padding, dilation), groups)

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
        if _is_pytorchs(input, weight):
            pytorch_function = getattr(torch.nn.functional, f"conv_transpose{ndim}d")
            return pytorch_function(input, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]
        x, batched = _batched(input, ndim)
        *lists, extra = (for_each_axis(value, ndim) for value in (stride, padding, dilation, output_padding))
        y = _operator(x, weight, bias)(x, weight, bias, *lists, True, extra, groups)
        return y if batched else y.squeeze(0)

    return _named(conv_transpose, f"conv_transpose{ndim}d")


def _named(function: Callable[..., torch.Tensor], name: str) -> Callable[..., torch.Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As ``torch.nn.functional.{name}``."
    return function


conv1d, conv2d, conv3d = map(_convolution, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed_convolution, (1, 2, 3))
