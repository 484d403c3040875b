"""The thin framework, everything of a net that is not convolution: layers, losses, tape, optimisers, checkpoints."""

from ..tape import Tape
from ..tensor import Parameter
from . import functional
from .autocasting import autocast
from .capture import Captured, capture
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
