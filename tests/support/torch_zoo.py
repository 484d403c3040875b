"""Small forms of well-known nets as plain PyTorch modules, by the structure of torchvision."""

from __future__ import annotations

import torch
from torch import nn


def _conv(ic: int, oc: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = kernel // 2
    return [nn.Conv2d(ic, oc, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(oc)]


class _Residual(nn.Module):
    def __init__(self, ic: int, oc: int, stride: int, main: list[nn.Module]) -> None:
        super().__init__()
        self.main = nn.Sequential(*main)
        self.shortcut = nn.Identity() if stride == 1 and ic == oc else nn.Sequential(*_conv(ic, oc, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.main(x) + self.shortcut(x))


def _bottleneck(ic: int, width: int, stride: int) -> _Residual:
    relu = nn.ReLU(inplace=True)
    main = [*_conv(ic, width, 1), relu, *_conv(width, width, 3, stride), relu, *_conv(width, 4 * width, 1)]
    return _Residual(ic, 4 * width, stride, main)


def _basic(ic: int, width: int, stride: int) -> _Residual:
    return _Residual(ic, width, stride, [*_conv(ic, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, width, 3)])


class ResNet(nn.Module):
    """ResNet (He et al. 2015), stride in the 3x3 convolution."""

    def __init__(self, counts: tuple[int, ...], block, expansion: int, base: int = 4, classes: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_conv(3, base, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        ic = base
        for stage, count in enumerate(counts):
            for number in range(count):
                width = base << stage
                layers.append(block(ic, width, 2 if stage and not number else 1))
                ic = expansion * width
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(ic, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.features(x).mean((2, 3)))


class VGG(nn.Module):
    """VGG-16 (Simonyan and Zisserman 2014); ``side`` pixels of the last plane go to the classifier."""

    def __init__(self, base: int = 2, hidden: int = 8, classes: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        ic = 3
        for width, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(count):
                layers += [nn.Conv2d(ic, width * base, 3, padding=1), nn.ReLU(inplace=True)]
                ic = width * base
            layers.append(nn.MaxPool2d(2))
        self.features, self.pool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d(7)
        head = [nn.Linear(49 * ic, hidden), nn.ReLU(True), nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(True)]
        self.classifier = nn.Sequential(nn.Flatten(), *head, nn.Dropout(), nn.Linear(hidden, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.features(x)))


class _Inverted(nn.Module):
    def __init__(self, ic: int, oc: int, stride: int, factor: int) -> None:
        super().__init__()
        wide, relu = factor * ic, nn.ReLU6(inplace=True)
        self.main = nn.Sequential(
            *_conv(ic, wide, 1), relu, *_conv(wide, wide, 3, stride, wide), relu, *_conv(wide, oc, 1)
        )
        self.adds = stride == 1 and ic == oc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.main(x) if self.adds else self.main(x)


class _UNet(nn.Module):
    """Down by strides, up by transposed convolutions, joined."""

    def __init__(self, base: int) -> None:
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.first = nn.Sequential(*_conv(3, base, 3), relu)
        self.down = nn.Sequential(*_conv(base, 2 * base, 3, 2), relu)
        self.up = nn.ConvTranspose2d(2 * base, base, 2, 2)
        self.last = nn.Conv2d(2 * base, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.last(torch.cat([first, self.up(self.down(first))], 1))


def _dilated() -> nn.Module:
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(*_conv(3, 8, 3), relu, nn.Conv2d(8, 8, 3, padding=2, dilation=2), relu, nn.Conv2d(8, 3, 1))


def _sound() -> nn.Module:
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(
        nn.Conv1d(2, 8, 9, 4), relu, nn.Conv1d(8, 8, 5, padding="same"), nn.ConvTranspose1d(8, 2, 8, 4)
    )


def _volume() -> nn.Module:
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), relu, nn.Conv3d(4, 4, 3, 2), relu, nn.ConvTranspose3d(4, 1, 2, 2)
    )


# Small forms for tests: (net, shape of an input); those of LARGE take longer.
LARGE = {
    "resnet18": (lambda: ResNet((2, 2, 2, 2), _basic, 1), (4, 3, 96, 96)),
    "resnet50": (lambda: ResNet((3, 4, 6, 3), _bottleneck, 4), (4, 3, 96, 96)),
    "vgg16": (VGG, (2, 3, 32, 32)),
}
ZOO = {
    "bottlenecks": (lambda: ResNet((1, 1), _bottleneck, 4), (4, 3, 32, 32)),
    "mobilenet": (
        lambda: nn.Sequential(*_conv(3, 8, 3, 2), _Inverted(8, 8, 1, 3), _Inverted(8, 12, 2, 3)),
        (2, 3, 24, 24),
    ),
    "unet": (lambda: _UNet(6), (2, 3, 16, 20)),
    "dilated": (_dilated, (2, 3, 16, 16)),
    "sound": (_sound, (2, 2, 64)),
    "volume": (_volume, (2, 1, 9, 10, 11)),
}


def resnet50() -> nn.Module:
    """The whole net, whose name is torchvision's."""
    return ResNet((3, 4, 6, 3), _bottleneck, 4, base=64, classes=1000)
