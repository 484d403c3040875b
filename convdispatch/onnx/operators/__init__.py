"""ONNX's operators as operations of tensors: importing this enters them all."""

from . import activations, convolution, elementwise, indexing, matrix, normalization, pooling, quantization, reduction
from . import resizing, shaping  # fmt: skip

__all__ = [
    "activations",
    "convolution",
    "elementwise",
    "indexing",
    "matrix",
    "normalization",
    "pooling",
    "quantization",
    "reduction",
    "resizing",
    "shaping",
]
