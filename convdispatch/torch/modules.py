"""Layers with a model's own parameters that call our operators, for compilers and export; ``convert`` inserts them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import functional


def _unless_scripted(original: Callable[..., Any]) -> Any:
    """A method that calls ``_by_operator`` of its layer. TorchScript, which reads a method's text and the names in it,
    finds those of PyTorch's ``original``."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return self._by_operator(*arguments, **named)

    return functools.wraps(original)(types.FunctionType(method.__code__, original.__globals__))


def _layer(theirs: Any, method: str, by_operator: Callable[..., Any]) -> Any:
    """PyTorch's class ``theirs`` by our operator: a class of the same name, whose ``method`` calls ``by_operator``."""
    words = f"``nn.{theirs.__name__}`` by our operator."
    body = {"__doc__": words, "_by_operator": by_operator, method: _unless_scripted(getattr(theirs, method))}
    return type(theirs.__name__, (theirs,), body)


def _convolved(layer: Any, input: torch.Tensor, weight: torch.Tensor, bias: Any) -> Any:
    padding = layer.padding
    if layer.padding_mode != "zeros":
        input = nn.functional.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    window = layer.stride, padding, layer.dilation
    return functional.convolve(len(layer.kernel_size), input, weight, bias, window, layer.groups)


def _transposed(layer: Any, input: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    ndim = len(layer.kernel_size)
    sizes = (layer.stride, layer.padding, layer.kernel_size)
    extra = layer._output_padding(input, output_size, *sizes, ndim, layer.dilation)
    geometry = (layer.stride, layer.padding, extra, layer.groups, layer.dilation)
    function = getattr(functional, f"conv_transpose{ndim}d")
    return function(input, layer.weight, layer.bias, *geometry)  # type: ignore[no-any-return]


_PLAIN, _TRANSPOSED = (nn.Conv1d, nn.Conv2d, nn.Conv3d), (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_OURS: dict[type, type] = {each: _layer(each, "_conv_forward", _convolved) for each in _PLAIN}
_OURS |= {each: _layer(each, "forward", _transposed) for each in _TRANSPOSED}
"""The class of ours by PyTorch's."""
Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d = _OURS.values()


def swap(module: nn.Module) -> bool:
    """Make a layer call our operator, in place, if it is exactly PyTorch's class; returns whether it does."""
    our_class = _OURS.get(type(module))
    if our_class is not None:
        module.__class__ = our_class
    return our_class is not None
