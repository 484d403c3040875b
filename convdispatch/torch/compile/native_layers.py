"""Converted and fused layers' plain inference on CUDA, launched below Python: ``convolution`` and ``fused_convolution``
as the native path takes them.

That path reads no texts, so this operator has a number for the activation. It has a kernel there alone and no
gradients: ``serves`` says whether a call is of its kind, all others are the other operators'. What was not decided yet
comes back to Python, as in ``dispatch.native``.
"""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch import native
from . import operators
from .fused_operator import by_engine

_ALONE = -1
"""In the place of an activation: a convolution alone, whose weights may learn."""
_KIND = "cuda"
_C: Any = torch._C
_state: dict[str, Any] = {}
"""Whether the native path takes them, once that was asked."""
_numbers: dict[str | None, int] = {}
_activations: list[str | None] = []

_library = torch.library.Library("convdispatch", "FRAGMENT")
_library.define(
    "fused_native(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int activation, "
    "int[] stride, int[] padding, int[] dilation, int groups) -> Tensor"
)
_operator = torch.ops.convdispatch.fused_native.default


def serves(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether a call on these is plain inference that the native path may take: nobody records it, or asks for
    gradients."""
    if torch.compiler.is_compiling() or x.device.type != _KIND:
        return False
    installed = _state.get(_KIND)
    if installed is None:
        installed = _state[_KIND] = native.install_fused(_KIND.upper(), _missed)
    if not installed or _C._len_torch_dispatch_stack() or _C._is_torch_function_mode_enabled():
        return False
    if torch.is_autocast_enabled("cuda") or _C._functorch.peek_interpreter_stack() is not None:
        return False
    learns = torch.is_grad_enabled()
    for each in (x, *others):
        if each is not None and (type(each) not in _KINDS or (learns and each.requires_grad)):
            return False
    return True


_KINDS = (torch.Tensor, torch.nn.Parameter)


def fused(x: Any, w: Any, bias: Any, residual: Any, activation: str | None, *geometry: Any) -> torch.Tensor:
    """``activation(convolution + residual)``."""
    number = _numbers.get(activation)
    if number is None:
        _activations.append(activation)
        number = _numbers[activation] = _activations.index(activation)
    return _operator(x, w, bias, residual, number, *geometry)  # type: ignore[no-any-return]


def alone(x: Any, w: Any, bias: Any, *geometry: Any) -> torch.Tensor:
    """A convolution, of which nothing is promised that ``convolution`` does not promise."""
    return _operator(x, w, bias, None, _ALONE, *geometry)  # type: ignore[no-any-return]


def _missed(x: Any, w: Any, bias: Any, residual: Any, number: int, *geometry: Any) -> torch.Tensor:
    if number == _ALONE:
        *lists, groups = geometry
        return operators.by_engine(x, w, bias, *lists, False, [0] * len(lists[0]), groups)
    return by_engine(x, w, bias, residual, _activations[number], *geometry)
