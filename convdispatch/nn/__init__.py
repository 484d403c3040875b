"""The thin framework, everything of a net that is not convolution: layers, losses, tape, optimisers, checkpoints.

Names are imported when first used: PyTorch's door wants one kernel of pooling, not all of this, in its first step.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tape import Tape
    from ..tensor import Parameter
    from . import functional
    from .autocasting import autocast
    from .capturing import Captured, capture
    from .layers import (
        LRN,
        Activation,
        AdaptiveAvgPool2d,
        AvgPool2d,
        BatchNorm2d,
        Conv2d,
        ConvTranspose2d,
        Dropout,
        Flatten,
        Linear,
        MaxPool2d,
        ReLU,
    )
    from .loss_scaling import LossScaler
    from .modules import Module, Sequential, observe
    from .optim import SGD, Adam, Optimizer
    from .saving import load_tensors, save_tensors

_NAMES = {
    "..tape": ("Tape",),
    "..tensor": ("Parameter",),
    ".autocasting": ("autocast",),
    ".capturing": ("Captured", "capture"),
    ".layers": (
        *("LRN", "Activation", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "Conv2d", "ConvTranspose2d"),
        *("Dropout", "Flatten", "Linear", "MaxPool2d", "ReLU"),
    ),
    ".loss_scaling": ("LossScaler",),
    ".modules": ("Module", "Sequential", "observe"),
    ".optim": ("SGD", "Adam", "Optimizer"),
    ".saving": ("load_tensors", "save_tensors"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "LRN",
    "SGD",
    "Activation",
    "Adam",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNorm2d",
    "Captured",
    "Conv2d",
    "ConvTranspose2d",
    "Dropout",
    "Flatten",
    "Linear",
    "MaxPool2d",
    "Module",
    "Optimizer",
    "Parameter",
    "ReLU",
    "Sequential",
    "Tape",
    "LossScaler",
    "autocast",
    "capture",
    "functional",
    "load_tensors",
    "observe",
    "save_tensors",
]


def __getattr__(name: str) -> Any:
    if name == "functional":
        return importlib.import_module(".functional", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
