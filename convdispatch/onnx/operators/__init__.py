"""ONNX's operators as operations of tensors: importing this enters them all."""

from . import (  # fmt: skip
    activations,
    convolution,
    elementwise,
    indexing,
    integers,
    matrix,
    normalization,
    pooling,
    quantization,
    quotients,
    reduction,
    resizing,
    shaping,
)

__all__ = [
    "activations",
    "convolution",
    "elementwise",
    "indexing",
    "integers",
    "matrix",
    "normalization",
    "pooling",
    "quantization",
    "quotients",
    "reduction",
    "resizing",
    "shaping",
]
