"""Plain inference of converted and fused layers on CPUs and CUDA, launched below Python: ``convolution`` and
``fused_convolution`` by the native call path.

That path reads no texts, and lists cost the host more than all of it, so this operator has one number for a layer's
activation and geometry. It has a kernel there alone and no gradients: ``serves`` says whether a call is of its kind,
all others are the other operators'. What was not decided yet comes back to Python, as in ``dispatch.native``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..dispatch import native
from . import operators
from .fused_operator import by_engine

ALONE = "alone"
"""Passed instead of an activation: a plain ``convolution``, with that operator's rules for constant weights."""
_NAME = "convdispatch::fused_native"
_KINDS = (torch.Tensor, torch.nn.Parameter)
_C: Any = torch._C
_numbers: dict[tuple[Any, ...], int] = {}
_layers: list[tuple[Any, ...]] = []
"""The layer parameters by number: activation, stride, padding, dilation, groups."""
_lock = threading.Lock()

_library = torch.library.Library("convdispatch", "FRAGMENT")
_library.define("fused_native(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int layer) -> Tensor")
_operator = torch.ops.convdispatch.fused_native.default


def serves(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether a call on these tensors is plain inference that the native call path may take: nothing records it, and no
    gradients are needed."""
    kind = x.device.type
    if x.is_complex() or torch.compiler.is_compiling() or not native.installed(_NAME, kind, _missed):
        return False
    if _C._len_torch_dispatch_stack() or _C._is_torch_function_mode_enabled():
        return False
    if _C._get_tracing_state() is not None or forward_ad._current_level >= 0:
        return False
    if torch.is_autocast_enabled(kind) or _C._functorch.peek_interpreter_stack() is not None:
        return False
    learns = torch.is_grad_enabled()
    for each in (x, *others):
        if each is not None and (type(each) not in _KINDS or (learns and each.requires_grad)):
            return False
    return True


def run(x: Any, w: Any, bias: Any, residual: Any, *layer: Any) -> torch.Tensor:
    """``activation(convolution + residual)``; ``layer`` is the activation or ALONE, stride, padding and dilation as
    tuples, groups."""
    number = _numbers.get(layer)
    if number is None:
        with _lock:
            number = _numbers.setdefault(layer, len(_layers))
            _layers[number:] = [layer]
    return _operator(x, w, bias, residual, number)  # type: ignore[no-any-return]


def _missed(x: Any, w: Any, bias: Any, residual: Any, number: int) -> torch.Tensor:
    activation, *geometry_lists, groups = _layers[number]
    lists = [_each(values, w.ndim - 2) for values in geometry_lists]
    if activation == ALONE:
        return operators.by_engine(x, w, bias, *lists, False, [0] * len(lists[0]), groups)
    return by_engine(x, w, bias, residual, activation, *lists, groups)


def _each(values: Sequence[int], ndim: int) -> list[int]:
    return [*values] * ndim if len(values) == 1 else [*values]
