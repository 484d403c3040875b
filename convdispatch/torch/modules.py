"""Layers with a model's own parameters that call our operators, for compilers and export; ``convert`` inserts them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..api.activations import gradient_of_result
from . import functional
from .layer_activations import MODULES, has_hooks

F = nn.functional


class _Conv:
    """``nn.ConvNd._conv_forward`` by our operator; weights, hooks and state are the layer's own.

    TorchScript, which must read all of a method, reads PyTorch's own instead.
    """

    def _by_operator(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        layer: Any = self
        function = getattr(functional, f"conv{len(layer.kernel_size)}d")
        if layer.padding_mode != "zeros":
            input = F.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            return function(input, weight, bias, layer.stride, 0, layer.dilation, layer.groups)
        return function(input, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


class Conv1d(_Conv, nn.Conv1d):
    """``nn.Conv1d`` by our operator."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if torch.jit.is_scripting():
            if self.padding_mode != "zeros":
                input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
                return F.conv1d(input, weight, bias, self.stride, 0, self.dilation, self.groups)
            return F.conv1d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        else:  # noqa: RET505  TorchScript reads the other branch alone
            return self._by_operator(input, weight, bias)


class Conv2d(_Conv, nn.Conv2d):
    """``nn.Conv2d`` by our operator."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if torch.jit.is_scripting():
            if self.padding_mode != "zeros":
                input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
                return F.conv2d(input, weight, bias, self.stride, 0, self.dilation, self.groups)
            return F.conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        else:  # noqa: RET505  TorchScript reads the other branch alone
            return self._by_operator(input, weight, bias)


class Conv3d(_Conv, nn.Conv3d):
    """``nn.Conv3d`` by our operator."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if torch.jit.is_scripting():
            if self.padding_mode != "zeros":
                input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
                return F.conv3d(input, weight, bias, self.stride, 0, self.dilation, self.groups)
            return F.conv3d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        else:  # noqa: RET505  TorchScript reads the other branch alone
            return self._by_operator(input, weight, bias)


class _ConvTranspose:
    def _by_operator(self, input: torch.Tensor, output_size: Any) -> torch.Tensor:
        layer: Any = self
        ndim = len(layer.kernel_size)
        sizes = (layer.stride, layer.padding, layer.kernel_size)
        extra = layer._output_padding(input, output_size, *sizes, ndim, layer.dilation)
        function = getattr(functional, f"conv_transpose{ndim}d")
        geometry = (layer.stride, layer.padding, extra, layer.groups, layer.dilation)
        return function(input, layer.weight, layer.bias, *geometry)


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` by our operator."""

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """``forward`` with PyTorch's signature."""
        if torch.jit.is_scripting():
            extra = self._output_padding(
                input, output_size, self.stride, self.padding, self.kernel_size, 1, self.dilation
            )
            return F.conv_transpose1d(
                input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
            )
        else:  # noqa: RET505
            return self._by_operator(input, output_size)


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` by our operator."""

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """``forward`` with PyTorch's signature."""
        if torch.jit.is_scripting():
            extra = self._output_padding(
                input, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation
            )
            return F.conv_transpose2d(
                input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
            )
        else:  # noqa: RET505
            return self._by_operator(input, output_size)


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` by our operator."""

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """``forward`` with PyTorch's signature."""
        if torch.jit.is_scripting():
            extra = self._output_padding(
                input, output_size, self.stride, self.padding, self.kernel_size, 3, self.dilation
            )
            return F.conv_transpose3d(
                input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
            )
        else:  # noqa: RET505
            return self._by_operator(input, output_size)


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

    def forward(self, input):  # no annotations, as in PyTorch: TorchScript then assumes a tensor
        """``forward`` with PyTorch's signature."""
        if torch.jit.is_scripting():
            for layer in self:
                input = layer(input)
            return input
        else:  # noqa: RET505
            return self._in_pairs(input)

    def _in_pairs(self, input: Any) -> Any:
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
