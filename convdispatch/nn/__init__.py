"""The thin framework: everything of a net that is not convolution."""

from . import functional
from .modules import Conv2d, Linear, Module, Sequential, observe

__all__ = ["Conv2d", "Linear", "Module", "Sequential", "functional", "observe"]
