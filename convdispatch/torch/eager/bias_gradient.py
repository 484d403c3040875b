"""A bias' gradient: the sum of the result's over all axes but the channels'."""

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
"""Bytes below which PyTorch's one launch is as good as two."""
_cache = Programs(family=without_numbers)
dispatch.on_forget(_cache.drop)


def bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    """``grad`` ``[mb, c, ...]`` to ``[c]``, of grad's dtype, 16 bits summed in float32; the same numbers each time.

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
    """What ``bias_gradient`` just ran for ``grad``: kept kernels on (grad, sums), or None for PyTorch's sum."""
    found = _cache.get(_key(grad)) if grad.is_cuda and _takes(grad) else None
    return found if type(found) is Launched else None


def make_ready(grad: torch.Tensor) -> None:
    """What ``bias_gradient`` of tensors like ``grad`` runs, before a backward in which ranks wait for each other."""
    if grad.is_cuda and _takes(grad):
        with contextlib.suppress(ConvDispatchError, Fallback):  # the backward will say so
            _made(grad)


def _takes(grad: torch.Tensor) -> bool:
    form = FORMATS.get(grad.ndim)
    if form is None or grad.dtype is torch.float64 or grad.dtype not in DTYPES or grad.nbytes < _LEAST:
        return False
    return grad.shape[1] * grad.itemsize % 16 == 0 and grad.is_contiguous(memory_format=form)


def _key(grad: torch.Tensor) -> tuple[Any, ...]:
    return grad.shape, grad.dtype, grad.device


def _made(grad: torch.Tensor, making: bool = True) -> Any:
    """The kept kernels; None where they are not there and none are to be made."""
    key = _key(grad)
    found = _cache.get(key)
    if found is None and making:
        from ...nn.channel_sums import channel_sums  # nn is a fifth of a second of imports

        channels, dtype = grad.shape[1], DTYPES[grad.dtype]
        rows = grad.numel() // channels
        sizes = [grad.nbytes, channels * grad.itemsize]
        make = functools.partial(channel_sums, dtype=dtype, rows=rows, channels=channels)
        found = _cache.make(key, lambda: launched("the sums of channels", grad, sizes, make))
    return found
