"""Creates nets by their names, for commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..api.errors import InvalidArgument
from ..nn import Module


def _catalogue() -> dict[str, Callable[..., Module]]:
    from .classics import AlexNet, LeNet, OverFeat, vgg16, vgg_a
    from .efficientnet import EfficientNetLite0
    from .googlenet import GoogLeNet
    from .resnet import ResNet50

    return {
        "lenet": LeNet,
        "alexnet": AlexNet,
        "overfeat": OverFeat,
        "vgg_a": vgg_a,
        "vgg16": vgg16,
        "googlenet": GoogLeNet,
        "resnet50": ResNet50,
        "efficientnet_lite0": EfficientNetLite0,
    }


def names() -> list[str]:
    """The names of all nets."""
    return list(_catalogue())


def create(name: str, classes: int | None = None, layout: str = "nchw", queue: Any = None) -> Module:
    """The net of that name with random weights; without ``classes`` it has as many as the published net.

    It has ``SIZE`` and ``CHANNELS``, the pixels along a side and the channels of its input. Raises InvalidArgument for
    an unknown name.
    """
    if name not in _catalogue():
        raise InvalidArgument(f"there is no net {name!r}; there are {', '.join(names())}")
    options = {} if classes is None else {"classes": classes}
    return _catalogue()[name](layout=layout, queue=queue, **options)
