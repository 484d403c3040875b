"""LeNet, AlexNet, OverFeat and VGG: convolutions in a row, then linear maps.

Each takes pictures ``[mb, c, h, w]`` (``[mb, h, w, c]`` for "nhwc") and returns logits ``[mb, classes]``. Parameters
have torchvision's names, if it has the net (``features.0.weight``, ``classifier.1.bias``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..elementwise.tensor import Tensor
from ..nn import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, Sequential


class Fused(Module):
    """A layer that does nothing, in place of a ReLU that torchvision numbers and that the previous layer computes
    here."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class _Classic(Module):
    """A net of ``features``, a flattening, and ``classifier``."""

    SIZE: int
    """Pixels along each side of the input."""
    CHANNELS = 3
    features: Sequential
    classifier: Sequential

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.flatten(self.features(x)))

    def _make(self, features: Sequence[Module], classifier: Sequence[Module], layout: str) -> None:
        self.layout, self.flatten = layout, Flatten(layout=layout)
        self.features, self.classifier = Sequential(*features), Sequential(*classifier)


def _features(rows: Sequence[tuple[int, ...] | MaxPool2d], channels: int, layout: str, queue: Any) -> list[Module]:
    """Convolutions with ReLU, and poolings between them; a row is channels, kernel, and perhaps stride and padding."""
    layers: list[Module] = []
    for row in rows:
        if isinstance(row, MaxPool2d):
            layers.append(row)
            continue
        oc, kernel, stride, padding = (*row, *(1, 0)[len(row) - 2 :])
        options = {"stride": stride, "padding": padding, "activation": "relu", "layout": layout, "queue": queue}
        layers += [Conv2d(channels, oc, kernel, **options), Fused()]
        channels = oc
    return layers


def _head(sizes: Sequence[int], queue: Any, dropout: bool = True) -> list[Module]:
    """Linear maps of these sizes, with ReLU between them, and dropout before all but the last."""
    layers: list[Module] = []
    for i, (ic, oc) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        layers += [Dropout(0.5)] if dropout and not last else []
        layers += [Linear(ic, oc, queue=queue)] if last else [Linear(ic, oc, activation="relu", queue=queue), Fused()]
    return layers


class LeNet(_Classic):
    """LeNet-5 (LeCun et al. 1998) as it is built today: ReLU, max pooling, 28×28 pictures of one channel."""

    SIZE, CHANNELS = 28, 1

    def __init__(self, classes: int = 10, layout: str = "nchw", queue: Any = None) -> None:
        pool = MaxPool2d(2, layout=layout)
        features = _features(((6, 5, 1, 2), pool, (16, 5), pool), 1, layout, queue)
        self._make(features, _head((400, 120, 84, classes), queue, dropout=False), layout)


class AlexNet(_Classic):
    """AlexNet in one tower (Krizhevsky 2014, "One Weird Trick"): 224×224."""

    SIZE = 224

    def __init__(self, classes: int = 1000, layout: str = "nchw", queue: Any = None) -> None:
        pool, conv256 = MaxPool2d(3, 2, layout=layout), (256, 3, 1, 1)
        rows = ((64, 11, 4, 2), pool, (192, 5, 1, 2), pool, (384, 3, 1, 1), conv256, conv256, pool)
        features = _features(rows, 3, layout, queue)
        self._make(features, _head((256 * 6 * 6, 4096, 4096, classes), queue), layout)


class OverFeat(_Classic):
    """OverFeat, the fast model (Sermanet et al. 2013): 231×231."""

    SIZE = 231

    def __init__(self, classes: int = 1000, layout: str = "nchw", queue: Any = None) -> None:
        pool = MaxPool2d(2, layout=layout)
        rows = ((96, 11, 4), pool, (256, 5), pool, (512, 3, 1, 1), (1024, 3, 1, 1), (1024, 3, 1, 1), pool)
        features = _features(rows, 3, layout, queue)
        self._make(features, _head((1024 * 6 * 6, 3072, 4096, classes), queue), layout)


class VGG(_Classic):
    """3×3 convolutions of padding 1 in blocks, a pooling after each (Simonyan and Zisserman 2014): 224×224.

    ``blocks`` says how many convolutions each of the five blocks has: ``(1, 1, 2, 2, 2)`` is configuration A,
    ``(2, 2, 3, 3, 3)`` D, known as VGG-16.
    """

    SIZE = 224

    def __init__(self, blocks: Sequence[int], classes: int = 1000, layout: str = "nchw", queue: Any = None) -> None:
        rows: list[tuple[int, ...] | MaxPool2d] = []
        for count, channels in zip(blocks, (64, 128, 256, 512, 512), strict=True):
            rows += [*[(channels, 3, 1, 1)] * count, MaxPool2d(2, layout=layout)]
        features = _features(rows, 3, layout, queue)
        self._make(features, _head((512 * 7 * 7, 4096, 4096, classes), queue), layout)


def vgg_a(classes: int = 1000, layout: str = "nchw", queue: Any = None) -> VGG:
    """VGG's configuration A: eight convolutions."""
    return VGG((1, 1, 2, 2, 2), classes, layout, queue)


def vgg16(classes: int = 1000, layout: str = "nchw", queue: Any = None) -> VGG:
    """VGG's configuration D: thirteen convolutions."""
    return VGG((2, 2, 3, 3, 3), classes, layout, queue)
