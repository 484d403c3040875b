"""The gradient of a bias: the sum of the result's gradient over all axes but the channels."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from ...api.errors import ConvDispatchError, Frozen
from ...calls.framework.fallback import Fallback
from ...device.programs.kernels import Programs, without_numbers
from ...selection import dispatch
from .. import ranks
from ..geometry import DTYPES, FORMATS
from .recorded_launches import Launched, launched

_LEAST = 1 << 20
"""Below this many bytes PyTorch's one launch is as fast as our two."""
_cache = Programs(family=without_numbers)
dispatch.on_forget(_cache.drop)


def bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    """Sum ``grad`` ``[mb, c, ...]`` to ``[c]``, in grad's dtype, 16 bits summed in float32; results are reproducible.

    On CUDA, channels last, by kernels of ours, in about the time of a read; else, and where these cannot be had, by
    PyTorch's own.
    """
    if grad.is_cuda and _takes(grad):
        with contextlib.suppress(Frozen, Fallback):
            sums = _made(grad, making=not ranks.many())
            if sums is not None:
                out = grad.new_empty(grad.shape[1])
                sums(grad, out)
                return out
    return grad.sum((0, *range(2, grad.ndim)))


def kernels_of(grad: torch.Tensor) -> Any:
    """The cached kernels on (grad, sums) that ``bias_gradient`` just ran for ``grad``; None where PyTorch's sum ran."""
    kernels = _cache.get(_key(grad)) if grad.is_cuda and _takes(grad) else None
    return kernels if type(kernels) is Launched else None


def make_ready(grad: torch.Tensor) -> None:
    """Build what ``bias_gradient`` runs for tensors like ``grad``, before a backward in which ranks wait for each
    other."""
    if grad.is_cuda and _takes(grad):
        with contextlib.suppress(ConvDispatchError, Fallback):  # the backward itself raises the error
            _made(grad)


def _takes(grad: torch.Tensor) -> bool:
    form = FORMATS.get(grad.ndim)
    if form is None or grad.dtype is torch.float64 or grad.dtype not in DTYPES or grad.nbytes < _LEAST:
        return False
    return grad.shape[1] * grad.itemsize % 16 == 0 and grad.is_contiguous(memory_format=form)


def _key(grad: torch.Tensor) -> tuple[Any, ...]:
    return grad.shape, grad.dtype, grad.device


def _made(grad: torch.Tensor, making: bool = True) -> Any:
    """The cached kernels; None if there are none and ``making`` is False."""
    key = _key(grad)
    kernels = _cache.get(key)
    if kernels is None and making:
        from ...nn.channel_sums import channel_sums  # imported here because importing nn takes 0.2 s

        channels, dtype = grad.shape[1], DTYPES[grad.dtype]
        rows = grad.numel() // channels
        sizes = [grad.nbytes, channels * grad.itemsize]
        make = functools.partial(channel_sums, dtype=dtype, rows=rows, channels=channels)
        kernels = _cache.make(key, lambda: launched("the sums of channels", grad, sizes, make))
    return kernels
