"""convert: a model's convolution layers replaced by layers that call the operator, for compilers and export."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from . import functional

__all__ = ["convert"]


class _Conv:
    """What ``nn.ConvNd`` does in ``_conv_forward``, by the operator; weights, hooks and state are the layer's own."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        layer: Any = self
        function = getattr(functional, f"conv{len(layer.kernel_size)}d")
        if layer.padding_mode != "zeros":
            input = nn.functional.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            return function(input, weight, bias, layer.stride, 0, layer.dilation, layer.groups)
        return function(input, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


class Conv1d(_Conv, nn.Conv1d):
    """``nn.Conv1d`` by the operator."""


class Conv2d(_Conv, nn.Conv2d):
    """``nn.Conv2d`` by the operator."""


class Conv3d(_Conv, nn.Conv3d):
    """``nn.Conv3d`` by the operator."""


class _ConvTranspose:
    def forward(self, input: torch.Tensor, output_size: Any = None) -> torch.Tensor:
        layer: Any = self
        ndim = len(layer.kernel_size)
        sizes = (layer.stride, layer.padding, layer.kernel_size)
        extra = layer._output_padding(input, output_size, *sizes, ndim, layer.dilation)
        function = getattr(functional, f"conv_transpose{ndim}d")
        geometry = (layer.stride, layer.padding, extra, layer.groups, layer.dilation)
        return function(input, layer.weight, layer.bias, *geometry)


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` by the operator."""


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` by the operator."""


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` by the operator."""


_OURS: dict[type, type] = {
    each.__mro__[2]: each for each in (Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
}


def convert(model: nn.Module) -> nn.Module:
    """Replace ``nn.Conv1d`` to ``nn.ConvTranspose3d`` in ``model`` by layers of the same parameters that call
    ``torch.ops.convdispatch.convolution``; changes the model, and answers it.

    Layers of classes derived from these are left: what they changed would be lost.
    """
    for module in model.modules():
        ours = _OURS.get(type(module))
        if ours is not None:
            module.__class__ = ours
    return model
