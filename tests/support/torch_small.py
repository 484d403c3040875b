"""Nets of two convolutions with code of a test's own, for what Dynamo makes of that code."""

import torch
from torch import nn

__all__ = ["Body", "Disabled", "Net"]


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


class Body(nn.Module):
    """Layers by name, and ``body(self, ...)``, which uses them."""

    def __init__(self, body, **layers):
        super().__init__()
        self.body = body
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *given, **named):
        return self.body(self, *given, **named)
