"""What answers a depthwise convolution on CUDA while its kernel is compiled: the one that PyTorch's library holds.

For half precision, and for channels last in any, PyTorch hands depthwise convolutions to cuDNN, which compiles a kernel
for each (by NVRTC): 3.5 of the 3.9 s of EfficientNet-B0's first call on an H200. PyTorch's own kernel runs slower, and
is there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..geometry import Geometry, format_of

_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_MOST = 2**31
"""Elements of a tensor that the kernel takes."""


def quick_depthwise(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor | None:
    """The result of ``aten::convolution`` in PyTorch's memory format; None for what that kernel does not compute."""
    if transposed or not _on_cuda(x) or x.ndim != 4 or w.ndim != 4 or x.dtype not in _DTYPES or x.dtype != w.dtype:
        return None
    if not 1 < groups == x.shape[1] or w.shape[1] != 1 or w.shape[0] % groups or min(x.shape) == 0:
        return None
    lists = [_pair(each) for each in (stride, padding, dilation)]
    if x.numel() >= _MOST or w.shape[0] // groups * x.numel() * (1 + max(lists[1])) >= _MOST:
        return None
    form = format_of(x, w, bias, Geometry.of(stride, padding, dilation, False, output_padding, groups))
    y = _convolve(x.contiguous(), w.contiguous(), list(w.shape[2:]), bias, *lists)
    return y if form is torch.contiguous_format else y.clone(memory_format=form)  # of one pixel too


def _on_cuda(x: torch.Tensor) -> bool:
    return x.is_cuda


def _convolve(x: torch.Tensor, w: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.ops.aten._conv_depthwise2d.default(x, w, *rest)  # type: ignore[no-any-return]


def _pair(values: Sequence[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)
