"""Nets of two convolutions with code of a test's own, for what Dynamo makes of that code."""

import torch
from torch import nn

import convdispatch.torch as ct

__all__ = ["Body", "Called", "Disabled", "Net", "both", "picture"]


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


class Called(nn.Module):
    """Two convolutions of a tensor among what is given; ``body(self, result, ...)`` computes the answer from it."""

    def __init__(self, body=lambda m, y, x: y):
        super().__init__()
        self.one, self.two, self.body = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1), body

    def layers(self, x):
        return self.two(self.one(x).relu())

    def forward(self, *given, **named):
        x = given[0] if given else named["x"]
        x = x["x"] if isinstance(x, dict) else x[0] if isinstance(x, list | tuple) else x
        return self.body(self, self.layers(x), *(given or (x,)), **{k: v for k, v in named.items() if k != "x"})


def both(body=lambda m, y, x: y):
    """A model and its converted one."""
    model = Called(body).eval().requires_grad_(False)
    return model, ct.convert(model, fuse=True)


def picture(*shape):
    """Of a shape, or 1x3x6x6."""
    return torch.randn(*(shape or (1, 3, 6, 6)))
