"""GoogLeNet, Inception v1 (Szegedy et al. 2014): nine modules of four branches each; 224×224."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..elementwise.tensor import Tensor
from ..nn import LRN, AvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, Sequential, functional

_MODULES = (
    # Columns of _MODULES: name, input channels, output channels of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, and of the
    # projection after pooling; None stands for a pooling between modules.
    ("3a", 192, 64, 96, 128, 16, 32, 32),
    ("3b", 256, 128, 128, 192, 32, 96, 64),
    None,
    ("4a", 480, 192, 96, 208, 16, 48, 64),
    ("4b", 512, 160, 112, 224, 24, 64, 64),
    ("4c", 512, 128, 128, 256, 24, 64, 64),
    ("4d", 512, 112, 144, 288, 32, 64, 64),
    ("4e", 528, 256, 160, 320, 32, 128, 128),
    None,
    ("5a", 832, 256, 160, 320, 32, 128, 128),
    ("5b", 832, 384, 192, 384, 48, 128, 128),
)


class Inception(Module):
    """1×1; 1×1 then 3×3; 1×1 then 5×5; pooling then 1×1; concatenated along the channels."""

    def __init__(self, ic: int, widths: Sequence[int], layout: str, queue: Any) -> None:
        common = {"activation": "relu", "layout": layout, "queue": queue}
        width1, reduce3, width3, reduce5, width5, pooled = widths
        self.axis = 1 if layout == "nchw" else 3
        self.branch1 = Sequential(Conv2d(ic, width1, 1, **common))
        self.branch2 = Sequential(Conv2d(ic, reduce3, 1, **common), Conv2d(reduce3, width3, 3, padding=1, **common))
        self.branch3 = Sequential(Conv2d(ic, reduce5, 1, **common), Conv2d(reduce5, width5, 5, padding=2, **common))
        self.branch4 = Sequential(MaxPool2d(3, 1, 1, layout=layout), Conv2d(ic, pooled, 1, **common))

    def forward(self, x: Tensor) -> Tensor:
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return functional.concatenate([branch(x) for branch in branches], self.axis)


class GoogLeNet(Module):
    """Pictures ``[mb, 3, 224, 224]`` (for "nhwc" ``[mb, 224, 224, 3]``) to logits; without auxiliary classifiers."""

    SIZE, CHANNELS = 224, 3

    def __init__(self, classes: int = 1000, layout: str = "nchw", queue: Any = None) -> None:
        common = {"activation": "relu", "layout": layout, "queue": queue}
        self.layout = layout
        self.stem = Sequential(
            Conv2d(3, 64, 7, stride=2, padding=3, **common),
            MaxPool2d(3, 2, ceil_mode=True, layout=layout),
            LRN(5, layout=layout),
            Conv2d(64, 64, 1, **common),
            Conv2d(64, 192, 3, padding=1, **common),
            LRN(5, layout=layout),
            MaxPool2d(3, 2, ceil_mode=True, layout=layout),
        )
        pool = MaxPool2d(3, 2, ceil_mode=True, layout=layout)
        self.inceptions = Sequential(
            *(pool if row is None else Inception(row[1], row[2:], layout, queue) for row in _MODULES)
        )
        self.pool = AvgPool2d(7, 1, layout=layout)
        self.flatten = Flatten(layout=layout)
        self.dropout = Dropout(0.4)
        self.fc = Linear(1024, classes, queue=queue)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.flatten(self.pool(self.inceptions(self.stem(x))))))
