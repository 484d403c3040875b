"""Layers with a model's own parameters that call our operators, for compilers and export; ``convert`` inserts them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..api.activations import ACTIVATIONS, Torch, gradient_of_result
from . import functional

F = nn.functional


def _unless_scripted(original: Callable[..., Any]) -> Any:
    """A method that calls ``_by_operator`` of its layer. TorchScript, which reads a method's text and the names in it,
    finds those of PyTorch's ``original``."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return self._by_operator(*arguments, **named)

    return functools.wraps(original)(types.FunctionType(method.__code__, original.__globals__))


class _Conv:
    """``nn.ConvNd._conv_forward`` by our operator; weights, hooks and state are the layer's own."""

    def _by_operator(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        layer: Any = self
        function = getattr(functional, f"conv{len(layer.kernel_size)}d")
        if layer.padding_mode != "zeros":
            input = F.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            return function(input, weight, bias, layer.stride, 0, layer.dilation, layer.groups)
        return function(input, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


class Conv1d(_Conv, nn.Conv1d):
    """``nn.Conv1d`` by our operator."""

    _conv_forward = _unless_scripted(nn.Conv1d._conv_forward)


class Conv2d(_Conv, nn.Conv2d):
    """``nn.Conv2d`` by our operator."""

    _conv_forward = _unless_scripted(nn.Conv2d._conv_forward)


class Conv3d(_Conv, nn.Conv3d):
    """``nn.Conv3d`` by our operator."""

    _conv_forward = _unless_scripted(nn.Conv3d._conv_forward)


class _ConvTranspose:
    def _by_operator(self, input: torch.Tensor, output_size: Any = None) -> torch.Tensor:
        layer: Any = self
        ndim = len(layer.kernel_size)
        sizes = (layer.stride, layer.padding, layer.kernel_size)
        extra = layer._output_padding(input, output_size, *sizes, ndim, layer.dilation)
        function = getattr(functional, f"conv_transpose{ndim}d")
        geometry = (layer.stride, layer.padding, extra, layer.groups, layer.dilation)
        return function(input, layer.weight, layer.bias, *geometry)


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` by our operator."""

    forward = _unless_scripted(nn.ConvTranspose1d.forward)


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` by our operator."""

    forward = _unless_scripted(nn.ConvTranspose2d.forward)


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` by our operator."""

    forward = _unless_scripted(nn.ConvTranspose3d.forward)


_OURS: dict[type, type] = {
    each.__mro__[2]: each for each in (Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
}


def _fused(layer: Any, input: torch.Tensor, activation: str | None) -> torch.Tensor:
    padding = layer.padding
    if layer.padding_mode != "zeros":
        input = F.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    geometry = (layer.stride, padding, layer.dilation, layer.groups)
    return functional.fused(input, layer.weight, layer.bias, None, activation, *geometry)


class Sequential(nn.Sequential):
    """``nn.Sequential`` whose convolutions fuse the activation that follows, in training too.

    Each layer stays what it is, with its own parameters and name; a pair of which somebody watches one runs one by one.
    """

    forward = _unless_scripted(nn.Sequential.forward)

    def _by_operator(self, input: Any) -> Any:
        waiting_layer = None
        for layer in self:
            if waiting_layer is not None:
                activation = _activation(waiting_layer, layer) if isinstance(input, torch.Tensor) else None
                if activation is not None:
                    input, waiting_layer = _fused(waiting_layer, input, activation), None
                    continue
                input, waiting_layer = waiting_layer(input), None
            if type(layer) in _PAIRED:
                waiting_layer = layer
            else:
                input = layer(input)
        return input if waiting_layer is None else waiting_layer(input)


_PAIRED = (Conv1d, Conv2d, Conv3d)


def _activation(layer: Any, activation_layer: Any) -> str | None:
    """The activation string of ``conv()`` for the layer after a convolution, if one pass may compute both and the
    activation's result determines its slope."""
    kind = type(activation_layer)
    if kind not in MODULES or _watched(layer) or _watched(activation_layer):
        return None
    activation = MODULES[kind](activation_layer)
    return None if activation is None or gradient_of_result(activation) is None else activation


def _watched(module: Any) -> bool:
    """Whether hooks see or change a module's calls, or those of all modules."""
    hooks = nn.modules.module
    return bool(
        has_hooks(module)
        or "forward" in module.__dict__
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or hooks._global_backward_hooks
        or hooks._global_backward_pre_hooks
    )


def swap(module: nn.Module, pairs: bool = False) -> bool:
    """Make a layer call our operator, in place, if it is exactly PyTorch's class; returns whether it does. With
    ``pairs``, sequences fuse activations."""
    our_class = Sequential if pairs and type(module) is nn.Sequential else _OURS.get(type(module))
    if our_class is not None:
        module.__class__ = our_class
    return our_class is not None


def _words_of(name: str, theirs: Torch) -> Callable[[Any], str | None]:
    def words(layer: Any) -> str | None:
        if any(getattr(layer, key, value) != value for key, value in theirs.only.items()):
            return None
        numbers = ", ".join(repr(float(getattr(layer, each))) for each in theirs.attributes)
        return f"{name}({numbers})" if numbers else name

    return words


MODULES: dict[type, Callable[[Any], str | None]] = {
    getattr(nn, each.torch.module): _words_of(name, each.torch) for name, each in ACTIVATIONS.items() if each.torch
}
"""For each activation layer class, a function that returns the activation string of ``conv()``, or None."""


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks, which see or change its calls."""
    early_hooks = module._forward_pre_hooks or module._backward_pre_hooks
    return bool(early_hooks or module._forward_hooks or module._backward_hooks)
