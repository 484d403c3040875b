"""The thin framework, everything of a net that is not convolution: layers, losses, tape, optimisers, checkpoints.

``functional`` has the operations of tensors, ``layers`` the modules that call them with parameters of their own. A new
operation goes to a module of its own, with its kernel beside it, and into ``functional``; a new layer into ``layers``.
Names are imported when first used: PyTorch's door wants one kernel of pooling, not all of this, in its first step.

- ``activations``: activations by name.
- ``attention``: scaled dot-product attention.
- ``autocasting``: mixed precision.
- ``capturing``: functions whose kernels are recorded once and replayed.
- ``channel_sums``: a bias' gradient with channels last.
- ``convolution``: convolutions, transposed convolutions and linear maps on the tape.
- ``dropout``: dropout.
- ``functional``: all operations, by the names that users import.
- ``layers``: layers with parameters.
- ``loss_scaling``: scales for float16 gradients.
- ``losses``: softmax, cross-entropy, mean squares.
- ``matrix``: products of matrices.
- ``modules``: parts of a net, their names and values.
- ``normalization``: norms by batch, by group, by neighbours.
- ``optim``: optimisers.
- ``pooling``: pooling.
- ``quantized``: operations on integers of 8 bits.
- ``saving``: safetensors files.
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
    "..tape": "Tape",
    "..tensor": "Parameter",
    ".autocasting": "autocast",
    ".capturing": "Captured capture",
    ".layers": "LRN Activation AdaptiveAvgPool2d AvgPool2d BatchNorm2d Conv2d ConvTranspose2d Dropout Flatten Linear "
    "MaxPool2d ReLU",
    ".loss_scaling": "LossScaler",
    ".modules": "Module Sequential observe",
    ".optim": "SGD Adam Optimizer",
    ".saving": "load_tensors save_tensors",
}
"""What each module has for users; it is imported when one of its names is first asked for."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["functional", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "functional":
        return importlib.import_module(".functional", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
