"""A fused layer as TorchScript takes it: PyTorch's own layers, with the same parameters."""

from __future__ import annotations

import copy
from typing import Any, Optional

import torch
from torch import nn

from ..api.activations import ACTIVATIONS, parse_activation

__all__ = ["Scripted"]


class Scripted(nn.Module):
    """``activation(conv(input) + residual)``, of a layer derived from ``plain`` (``nn.ConvNd``)."""

    def __init__(self, layer: Any, plain: type[nn.Module], activation: str | None) -> None:
        super().__init__()
        self.conv = copy.copy(layer)
        self.conv.__class__ = plain
        self.activation = nn.Identity() if activation is None else _layer_of(activation)

    def forward(self, input: torch.Tensor, residual: Optional[torch.Tensor] = None) -> torch.Tensor:  # noqa: UP045
        """As the fused layer's; TorchScript reads this, and older annotations alone."""
        y = self.conv(input)
        if residual is not None:
            y = y + residual
        return self.activation(y)  # type: ignore[no-any-return]


def _layer_of(activation: str) -> Any:
    name, numbers = parse_activation(activation)
    theirs = ACTIVATIONS[name].torch
    if theirs is None:
        raise NotImplementedError(f"PyTorch has no layer for {activation}")
    return getattr(nn, theirs.module)(*numbers)
