"""ONNX's operators as operations of tensors: importing this enters them all into ``call.OPERATORS``.

An operator is a function with ``@operator``, in the module of its kind.

- ``activations``: activations with their parameters, softmax.
- ``convolution``: Conv and ConvTranspose, Gemm and MatMul.
- ``elementwise``: arithmetic, comparisons, functions, casts, and products and quotients that are one operation here.
- ``integers``: convolutions and products of integers.
- ``normalization``: norms.
- ``quantization``: QuantizeLinear and DequantizeLinear.
- ``reduction``: reductions, ArgMax, TopK, CumSum.
- ``resizing``: Resize and Upsample.
- ``shaping``: Reshape, Concat, Slice, Pad and their like.
- ``windows``: windows and padding as numbers, and poolings.
"""

from . import (
    activations,  # noqa: F401
    convolution,  # noqa: F401
    elementwise,  # noqa: F401
    integers,  # noqa: F401
    normalization,  # noqa: F401
    quantization,  # noqa: F401
    reduction,  # noqa: F401
    resizing,  # noqa: F401
    shaping,  # noqa: F401
    windows,  # noqa: F401
)
