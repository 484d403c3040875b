"""ResNet-50 (He et al. 2015), with the stride in the 3×3 convolution as it is trained today; 224×224.

Parts are named as torchvision names them (``layer1.0.conv1.weight``).
"""

from __future__ import annotations

from typing import Any

from ..elementwise.tensor import Tensor
from ..nn import AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Module, Sequential


class Bottleneck(Module):
    """1×1 down to ``width``, 3×3, 1×1 up to four times that, plus the input or its projection."""

    def __init__(self, ic: int, width: int, stride: int, layout: str, queue: Any) -> None:
        common = {"layout": layout, "queue": queue}
        oc = 4 * width
        self.conv1 = Conv2d(ic, width, 1, bias=False, **common)
        self.bn1 = BatchNorm2d(width, activation="relu", **common)
        self.conv2 = Conv2d(width, width, 3, stride=stride, padding=1, bias=False, **common)
        self.bn2 = BatchNorm2d(width, activation="relu", **common)
        self.conv3 = Conv2d(width, oc, 1, bias=False, **common)
        self.bn3 = BatchNorm2d(oc, activation="relu", **common)
        self.downsample = None
        if stride > 1 or ic != oc:
            project = Conv2d(ic, oc, 1, stride=stride, bias=False, **common)
            self.downsample = Sequential(project, BatchNorm2d(oc, **common))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.bn1(self.conv1(x))))
        return self.bn3(self.conv3(y), residual=shortcut)


class ResNet50(Module):
    """Pictures ``[mb, 3, 224, 224]`` (``[mb, 224, 224, 3]`` for "nhwc") to logits ``[mb, classes]``."""

    SIZE, CHANNELS = 224, 3

    def __init__(self, classes: int = 1000, layout: str = "nchw", queue: Any = None) -> None:
        common = {"layout": layout, "queue": queue}
        self.layout = layout
        self.conv1 = Conv2d(3, 64, 7, stride=2, padding=3, bias=False, **common)
        self.bn1 = BatchNorm2d(64, activation="relu", **common)
        self.maxpool = MaxPool2d(3, 2, 1, layout=layout)
        stages, ic = [], 64
        for count, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
            blocks = []
            for i in range(count):
                blocks.append(Bottleneck(ic, width, stride if i == 0 else 1, layout, queue))
                ic = 4 * width
            stages.append(Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = AdaptiveAvgPool2d(1, layout=layout)
        self.flatten = Flatten(layout=layout)
        self.fc = Linear(2048, classes, queue=queue)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(self.flatten(self.avgpool(x)))
