"""A net of two convolutions with code between them, for what Dynamo makes of that code."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Disabled", "Net"]


class Net(nn.Module):
    """Two convolutions; subclasses change what ``middle`` computes between them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def middle(self, y):
        return y * 2

    def forward(self, x):
        return self.two(self.middle(torch.relu(self.one(x))))


class Disabled(Net):
    """``middle`` is no part of a graph, and needs a value."""

    @torch.compiler.disable
    def middle(self, y):
        return y * float(y.numpy().max())
