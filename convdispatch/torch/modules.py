"""Layers with a model's own parameters that call our operators, for compilers and export; ``convert`` inserts them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..api.activations import ACTIVATIONS, gradient_of_result
from . import functional
from .compile.fused_operator import named_activation


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


def _convolved(layer: Any, input: torch.Tensor, weight: torch.Tensor, bias: Any, activation: str | None = None) -> Any:
    padding = layer.padding
    if layer.padding_mode != "zeros":
        input = nn.functional.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    window = layer.stride, padding, layer.dilation
    return functional.convolve(len(layer.kernel_size), input, weight, bias, window, layer.groups, activation)


def _transposed(layer: Any, input: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    ndim = len(layer.kernel_size)
    sizes = (layer.stride, layer.padding, layer.kernel_size)
    extra = layer._output_padding(input, output_size, *sizes, ndim, layer.dilation)
    geometry = (layer.stride, layer.padding, extra, layer.groups, layer.dilation)
    function = getattr(functional, f"conv_transpose{ndim}d")
    return function(input, layer.weight, layer.bias, *geometry)  # type: ignore[no-any-return]


Conv1d, Conv2d, Conv3d = _PAIRED = tuple(
    _layer(each, "_conv_forward", _convolved) for each in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
)
ConvTranspose1d, ConvTranspose2d, ConvTranspose3d = _TRANSPOSED = tuple(
    _layer(each, "forward", _transposed) for each in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
)
_OURS: dict[type, type] = {each.__base__: each for each in (*_PAIRED, *_TRANSPOSED)}


class Sequential(nn.Sequential):
    """``nn.Sequential`` whose convolutions fuse the activation that follows, in training too.

    Each layer stays what it is, with its own parameters and name; a pair of which somebody watches one runs one by one.
    """

    forward = _unless_scripted(nn.Sequential.forward)

    def _by_operator(self, input: Any) -> Any:
        waiting_layer: Any = None
        for layer in self:
            if waiting_layer is not None:
                activation = _activation(waiting_layer, layer) if isinstance(input, torch.Tensor) else None
                if activation is not None:
                    input = _convolved(waiting_layer, input, waiting_layer.weight, waiting_layer.bias, activation)
                    waiting_layer = None
                    continue
                input, waiting_layer = waiting_layer(input), None
            if type(layer) in _PAIRED:
                waiting_layer = layer
            else:
                input = layer(input)
        return input if waiting_layer is None else waiting_layer(input)


def _activation(layer: Any, activation_layer: Any) -> str | None:
    """The activation string of ``conv()`` for the layer after a convolution, if one pass may compute both and the
    activation's result determines its slope."""
    if type(activation_layer) not in MODULES or _watched(layer) or _watched(activation_layer):
        return None
    activation = text_of(activation_layer)
    return None if activation is None or gradient_of_result(activation) is None else activation


def _watched(module: Any) -> bool:
    """Whether hooks see or change a module's calls, or those of all modules."""
    every = nn.modules.module
    return "forward" in module.__dict__ or any(
        getattr(owner, f"{prefix}_{kind}_hooks")
        for owner, prefix in ((module, ""), (every, "_global"))
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    )


def swap(module: nn.Module, pairs: bool = False) -> bool:
    """Make a layer call our operator, in place, if it is exactly PyTorch's class; returns whether it does. With
    ``pairs``, sequences fuse activations."""
    our_class = Sequential if pairs and type(module) is nn.Sequential else _OURS.get(type(module))
    if our_class is not None:
        module.__class__ = our_class
    return our_class is not None


MODULES: dict[type, str] = {
    getattr(nn, each.torch.module): name for name, each in ACTIVATIONS.items() if each.torch is not None
}
"""The activation's name for each of PyTorch's activation layers."""


def text_of(layer: nn.Module) -> str | None:
    """The activation string of ``conv()`` for a layer of a class in MODULES; None if it has other numbers than ours."""
    name = MODULES[type(layer)]
    entry: Any = ACTIVATIONS[name].torch
    return named_activation(
        name, {key: getattr(layer, key) for key in (*entry.attributes, *entry.only) if hasattr(layer, key)}
    )
