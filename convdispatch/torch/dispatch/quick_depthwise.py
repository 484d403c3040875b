"""Depthwise convolutions on CUDA while our kernel is being compiled: by the kernel that PyTorch's library contains.

For half precision, and for channels last in any, PyTorch hands depthwise convolutions to cuDNN, which compiles a kernel
for each (by NVRTC): 3.5 of the 3.9 s of EfficientNet-B0's first call on an H200. PyTorch's own kernel runs slower, and
is there at once. Its gradients have no operator of their own: PyTorch takes them for float32 tensors, contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..geometry import Geometry, format_of

_WIDE = frozenset({torch.float32, torch.float64})
_DTYPES = _WIDE | {torch.float16, torch.bfloat16}
_MOST = 2**31
"""PyTorch's depthwise kernel takes tensors of fewer elements than this."""


def quick_depthwise(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *geometry: Any) -> torch.Tensor | None:
    """The result of ``aten::convolution`` in PyTorch's memory format; None for what the depthwise kernel does not
    compute."""
    layer = Geometry.of(*geometry)
    lists = [_pair(each) for each in layer[:3]]
    if layer.transposed or not _takes(x, w, layer.groups, lists[1]):
        return None
    form = format_of(x, w, bias, layer)
    y = _convolve(x.contiguous(), w.contiguous(), list(w.shape[2:]), bias, *lists)
    # The clone sets channels-last strides even for images of one pixel
    return y if form is torch.contiguous_format else y.clone(memory_format=form)


def quick_depthwise_backward(
    theirs: Callable[..., Any],
    grad: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    *geometry_and_mask: Any,
) -> tuple[torch.Tensor | None, ...] | None:
    """The result of ``aten::convolution_backward`` by PyTorch's own kernel ``theirs``; None for what that does not
    compute."""
    *geometry, mask = geometry_and_mask
    layer = Geometry.of(*geometry)
    if layer.transposed or grad.dtype != x.dtype or not _takes(x, w, layer.groups, _pair(layer.padding)):
        return None
    form = format_of(x, w, None, layer)
    if form is torch.contiguous_format and x.dtype in _WIDE:
        return None  # PyTorch's backward does not use cuDNN for these
    wide = x.dtype if x.dtype in _WIDE else torch.float32
    try:
        plain = [each.to(wide).contiguous() for each in (grad, x, w)]
        found = theirs(*plain, bias_sizes, *geometry_and_mask)
    except torch.OutOfMemoryError:  # the copies need memory that cuDNN may not need
        return None
    of_x, of_w, of_bias = (each.to(x.dtype) if wanted else None for each, wanted in zip(found, mask, strict=True))
    return *(each if each is None else each.clone(memory_format=form) for each in (of_x, of_w)), of_bias


def _takes(x: torch.Tensor, w: torch.Tensor, groups: int, padding: Sequence[int]) -> bool:
    """Whether PyTorch's depthwise kernel computes such a layer."""
    if not _on_cuda(x) or x.ndim != 4 or w.ndim != 4 or x.dtype not in _DTYPES or x.dtype != w.dtype:
        return False
    if not 1 < groups == x.shape[1] or w.shape[1] != 1 or w.shape[0] % groups or min(x.shape) == 0:
        return False
    return x.numel() < _MOST and w.shape[0] // groups * x.numel() * (1 + max(padding)) < _MOST


def _on_cuda(x: torch.Tensor) -> bool:
    return x.is_cuda


def _convolve(x: torch.Tensor, w: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.ops.aten._conv_depthwise2d.default(x, w, *rest)  # type: ignore[no-any-return]


def _pair(values: Sequence[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)
