"""EfficientNet-lite0 (Tan and Le 2019; lite: no squeeze-and-excite, relu6 for swish): 224×224.

A stem, sixteen inverted bottlenecks, a head, the mean over the area, and a linear map: 49 convolutions with a batch
norm folded into each. Pads are TensorFlow's SAME: with stride 2 the far side gets the odd one.
"""

from __future__ import annotations

from typing import Any

from ..elementwise.tensor import Tensor
from ..nn import Conv2d, Linear, Module
from ..nn.functional import global_average_pool

_STAGES = (
    # Columns of _STAGES: repeats, kernel size, stride of the first block, expansion, input channels, output channels.
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


def _same(kernel: int, stride: int) -> tuple[tuple[int, int], tuple[int, int]]:
    # TensorFlow's SAME padding for a size that the stride divides, as in all of this net: the output has size / stride.
    total = max(kernel - stride, 0)
    return ((total // 2, total - total // 2),) * 2


class InvertedBottleneck(Module):
    """1×1 to ``expansion`` times the channels, depthwise, 1×1 back; plus the input if the shape allows it."""

    def __init__(self, kernel: int, stride: int, expansion: int, ic: int, oc: int, **common: Any) -> None:
        wide, bounded = ic * expansion, common | {"activation": "relu6"}
        self.expand = Conv2d(ic, wide, 1, **bounded) if expansion > 1 else None
        padding = _same(kernel, stride)
        self.depthwise = Conv2d(wide, wide, kernel, stride=stride, padding=padding, groups=wide, **bounded)
        self.project = Conv2d(wide, oc, 1, **common)
        self.adds_input = stride == 1 and ic == oc

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.expand(x)
        return self.project(self.depthwise(y), residual=x if self.adds_input else None)


class EfficientNetLite0(Module):
    """Pictures ``[mb, 3, 224, 224]`` (``[mb, 224, 224, 3]`` for "nhwc") to logits ``[mb, classes]``."""

    SIZE, CHANNELS = 224, 3

    def __init__(self, classes: int = 1000, layout: str = "nchw", queue: Any = None) -> None:
        common = {"layout": layout, "queue": queue}
        self.layout = layout
        self.stem = Conv2d(3, 32, 3, stride=2, padding=_same(3, 2), activation="relu6", **common)
        self.blocks = [
            InvertedBottleneck(kernel, 1 if i else stride, expansion, oc if i else ic, oc, **common)
            for repeats, kernel, stride, expansion, ic, oc in _STAGES
            for i in range(repeats)
        ]
        self.head = Conv2d(320, 1280, 1, activation="relu6", **common)
        self.classifier = Linear(1280, classes, **common)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(global_average_pool(self.head(x), self.layout))
