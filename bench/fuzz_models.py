"""Random small models for ``fuzz_torch``, of few sizes: kernels that were compiled for one seed serve others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["OF", "Net", "made"]

ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU, nn.SiLU, nn.GELU, nn.Hardswish, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Mish, nn.ReLU6, nn.Softplus,
    lambda: nn.LeakyReLU(0.1), lambda: nn.Hardtanh(-1, 2), lambda: nn.ReLU(inplace=True),
]  # fmt: skip
OF = {
    1: (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d),
}


class Part(nn.Module):
    """Layers that one of the classes below combines."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class Residual(Part):
    """A sum with what went in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers[0](x) + x)


class Branches(Part):
    """Layers of one input, joined along channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.layers], 1)


class Gate(Part):
    """Squeeze and excite: a pooling and a layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.layers[1](self.layers[0](x)))


class Sized(Part):
    """A transposed layer that is told how large its result is: odd, as of an image that was halved."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x, output_size=[2 * size - 1 for size in x.shape[2:]])


class Net(nn.Module):
    """Layers one after the other, with habits (``fuzz_habits``) after its first half and at its end."""

    factor = 1.0

    def __init__(self, layers: list[nn.Module], ndim: int, channels: int, habits: list[Callable[..., Any]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.extra = OF[ndim][0](channels, 2, 1)
        self.register_buffer("table", torch.ones(3, *[1] * ndim))
        self.habits = habits
        self.gain, self.count = 1.0, 0

    def _through(self, layers: Any, habits: Any, y: torch.Tensor, x: Any, other: Any) -> Any:
        for layer in layers:
            y = layer(y)
        for habit in habits:
            y = habit(self, y, x, other)
        return y

    def encode(self, x: torch.Tensor, other: Any = None) -> torch.Tensor:
        """The first half."""
        return self._through(self.layers[: len(self.layers) // 2], self.habits[1::2], x, x, other)

    def decode(self, y: torch.Tensor, x: torch.Tensor, other: Any = None) -> Any:
        """The second half."""
        return self._through(self.layers[len(self.layers) // 2 :], self.habits[::2], y, x, other)

    def forward(self, x: torch.Tensor, other: Any = None) -> Any:
        return self.decode(self.encode(x, other), x, other)


def _conv(rng: random.Random, ndim: int, channels: int) -> tuple[nn.Module, int]:
    groups = rng.choice([1, 1, 1, 1, 2, channels])
    groups = groups if channels % groups == 0 else 1
    out = rng.choice([channels, 8, 16])
    out = out if out % groups == 0 else channels
    kernel = rng.choice([1, 3, 3, 3, 2])
    options: dict[str, Any] = {"groups": groups, "bias": rng.random() < 0.7, "dilation": rng.choice([1, 1, 1, 1, 2])}
    if rng.random() < 0.2:
        options["padding"] = "same"
    else:
        options |= {"padding": rng.choice([kernel // 2, kernel // 2, 0]), "stride": rng.choice([1, 1, 1, 2])}
        if rng.random() < 0.1:
            options["padding_mode"] = rng.choice(["reflect", "replicate", "circular"])
    return OF[ndim][0](channels, out, kernel, **options), out


def _layer(rng: random.Random, ndim: int, channels: int) -> tuple[nn.Module, int]:
    conv, transposed, norm, max_pool, mean_pool, adaptive = OF[ndim]
    kind = rng.random()
    if kind < 0.4:
        return _conv(rng, ndim, channels)
    if kind < 0.46:
        return transposed(channels, 8, 2, stride=2, bias=rng.random() < 0.5), 8
    if kind < 0.5:
        return Sized(transposed(channels, 8, 3, stride=2, padding=1)), 8
    if kind < 0.6:
        return norm(channels), channels
    if kind < 0.75:
        return rng.choice(ACTIVATIONS)(), channels
    if kind < 0.82:
        return rng.choice([max_pool(2), max_pool(3, 2, 1), mean_pool(2), adaptive(3)]), channels
    if kind < 0.9:
        body = nn.Sequential(conv(channels, channels, 3, padding=1, bias=False), norm(channels))
        return Residual(body), channels
    if kind < 0.95:
        return Branches(conv(channels, 8, 1), conv(channels, 8, 3, padding=1)), 16
    return Gate(adaptive(1), conv(channels, channels, 1)), channels


FEW: list[Callable[[], nn.Module]] = [
    lambda: nn.Conv2d(8, 8, 3, padding=1),
    lambda: nn.Conv2d(8, 8, 3, padding=1),
    lambda: nn.Conv2d(8, 8, 1, bias=False),
    lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
    lambda: nn.ConvTranspose2d(8, 8, 2, stride=2),
    lambda: Sized(nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1)),
    lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
    lambda: Residual(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))),
    lambda: nn.BatchNorm2d(8),
    nn.ReLU,
    nn.SiLU,
]
"""Layers of models with habits, whose kernels are compiled once for all seeds."""


def _tie(rng: random.Random, layers: list[nn.Module]) -> None:
    """Layers share their weights, as a module or as a parameter of views."""
    by_shape: dict[Any, list[nn.Module]] = {}
    for layer in nn.ModuleList(layers).modules():
        if isinstance(layer, OF[1][:2] + OF[2][:2] + OF[3][:2]):
            by_shape.setdefault((type(layer), layer.weight.shape), []).append(layer)
    for same in by_shape.values():
        for other in same[1:]:
            other.weight = same[0].weight
        if len(same) == 1 and rng.random() < 0.5:  # weights that start inside of a larger tensor
            (layer,) = same
            wide = torch.cat([layer.weight.detach().flatten()[:4], layer.weight.detach().flatten()])
            layer.weight = nn.Parameter(wide[-layer.weight.numel() :].view(layer.weight.shape))  # type: ignore[arg-type]


def made(
    rng: random.Random, habits: list[Callable[..., Any]], simple: bool = False
) -> tuple[nn.Module, tuple[int, ...]]:
    """A model and its input's shape: of 3 to 8 layers, with habits of 2 or 3 of few kinds, simple of one."""
    Net.factor = 1.0
    ndim, channels, wanted = (
        (2, 8, rng.randint(2, 3))
        if habits
        else (rng.choice([1, 2, 2, 2, 2, 3]), rng.choice([3, 8, 16]), rng.randint(3, 8))
    )
    shape = (rng.choice([1, 2]), channels, *[{1: 16, 2: rng.choice([8, 9]), 3: 5}[ndim]] * ndim)
    x, layers, inputs = torch.randn(shape), [], channels
    while len(layers) < wanted:
        if habits:
            layer, out = rng.choice(FEW)(), 8
        else:
            layer, out = _layer(rng, ndim, channels) if layers else _conv(rng, ndim, channels)
        try:
            with torch.no_grad():
                y = layer.eval()(x)
        except Exception:  # larger than what is left, or padded by more than it has
            continue
        if 0 in y.shape or y.numel() > 1 << 16:
            continue
        x, channels = y, out
        layers.append(layer)
    if simple:
        layers = [OF[ndim][0](inputs, 8, 3, padding=1)]
    for layer in nn.ModuleList(layers).modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    if rng.random() < 0.2:
        _tie(rng, layers)
    if not habits and rng.random() < 0.7:
        return nn.Sequential(*layers), shape
    return Net(layers, ndim, inputs, habits), shape
